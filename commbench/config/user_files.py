"""YAML files of the user, which may come from others: plain files, and bounded before their values
are read (core/foreign.py has the other bounds)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult

from commbench.core.errors import ConfigError, Unreadable
from commbench.core.foreign import whole_file
from commbench.core.terminal import one_line

SCHEME = "user"  # of the path of --config-dir
MOST_BYTES = 2**20
MOST_VALUES = 20_000
MOST_REFERENCES = 16  # each may stand for many others
DEEPEST = 30  # values within values
REFERENCE = "${"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def bounded_yaml(path: str | Path) -> str:
    """The text of a file of YAML; raises ConfigError, without the key that names the file."""
    try:
        text = whole_file(path, MOST_BYTES).decode()
        _check_events(text)
    except Unreadable as error:
        raise ConfigError(str(error)) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read: {one_line(str(error))}") from error
    return text


def _check_events(text: str) -> None:
    """Raises ValueError. An alias counts as all that it stands for, since it is copied."""
    if text.count(REFERENCE) > MOST_REFERENCES:
        raise ValueError(f"it has more than {MOST_REFERENCES} references ({REFERENCE}...)")
    anchored = dict[str, int]()
    # of the lists and mappings that are open: their anchors, and the values in them
    anchors = list[str | None]()
    counts = [0]
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
            counts.append(1)
        elif isinstance(event, yaml.CollectionEndEvent):
            _add(anchored, anchors.pop(), counts.pop(), counts)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchored:
                raise ValueError(f"its alias *{event.anchor} stands for no value before it")
            counts[-1] += anchored[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            _add(anchored, event.anchor, 1, counts)
        if len(anchors) > DEEPEST:
            raise ValueError(f"its values are nested more than {DEEPEST} deep")
        if counts[-1] > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values, those of aliases included")


def _add(anchored: dict[str, int], anchor: str | None, count: int, counts: list[int]) -> None:
    if anchor is not None:
        anchored[anchor] = count
    counts[-1] += count


class UserFiles(FileConfigSource):  # type: ignore[misc, unused-ignore]
    """The folder of --config-dir, as Hydra reads it."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        bounded_yaml(Path(self.path) / self._normalize_file_name(config_path))
        result: Any = super().load_config(config_path)
        assert isinstance(result, ConfigResult)
        return result


def search_path(folder: Path) -> str:
    """The folder as a word of Hydra's search path."""
    SourcesRegistry.instance().register(UserFiles)
    return f"{SCHEME}://{folder}"
