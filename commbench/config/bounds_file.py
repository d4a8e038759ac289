"""A file of bounds for `expect`: each entry becomes an expectation as it is written on the command
line, so that ranks and run.json have the bounds themselves."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]

from commbench.core.errors import ConfigError
from commbench.core.terminal import first_line

from .user_files import bounded_yaml

SUFFIXES = (".yaml", ".yml")
ENTRY_KEYS = ("benchmark", "layout", "sizes", "column", "bound")
NEEDED_KEYS = ("column", "bound")
EXAMPLE = "{benchmark: all_reduce, layout: 1x4, sizes: 1KiB..1MiB, column: median_s, bound: <=1e-3}"


def is_bounds_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(SUFFIXES)


def with_bounds(expect: Any) -> Any:
    """The value of `expect` with the bounds of each file in its place; raises ConfigError."""
    values = expect if isinstance(expect, list) else [expect]
    if not any(map(is_bounds_file, values)):
        return expect
    return [
        text for value in values for text in (_texts(value) if is_bounds_file(value) else [value])
    ]


def _texts(path: str) -> list[str]:
    try:
        entries = yaml.safe_load(bounded_yaml(path))
    except ConfigError as error:
        raise ConfigError(f"expect={error}") from error
    except (ValueError, yaml.YAMLError) as error:  # ValueError: a number, a date
        raise ConfigError(f"expect={path} can't be read: {first_line(error)}") from error
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"expect={path} is not a list of bounds; write entries like {EXAMPLE}")
    return [
        _text(f"expect={path}, entry {number}", entry) for number, entry in enumerate(entries, 1)
    ]


def _text(where: str, entry: Any) -> str:
    """`all_reduce:1x4:1KiB..1MiB:median_s<=1e-3`."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: {entry} is not a bound; write one like {EXAMPLE}")
    unknown = [str(name) for name in entry if name not in ENTRY_KEYS]
    if unknown:
        allowed = ", ".join(ENTRY_KEYS)
        raise ConfigError(f"{where}: {', '.join(unknown)} is unknown; allowed: {allowed}")
    missing = [name for name in NEEDED_KEYS if entry.get(name) is None]
    if missing:
        raise ConfigError(f"{where} lacks {' and '.join(missing)}; write one like {EXAMPLE}")
    sizes = entry.get("sizes")
    if sizes is not None and ".." not in str(sizes):
        sizes = f"{sizes}..{sizes}"
    scope = (entry.get("benchmark"), entry.get("layout"), sizes)
    prefix = "".join(f"{value}:" for value in scope if value is not None)
    return f"{prefix}{entry['column']}{entry['bound']}"
