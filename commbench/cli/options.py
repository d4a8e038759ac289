"""What commands share: their parser, types of options, and how they write files."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any, NoReturn

from commbench.core.errors import ConfigError, Unreadable
from commbench.results.load import find_runs, load_run
from commbench.stats.thresholds import SMALLEST_CHANGE

LARGEST_NUMBER = 10**18 - 1
PROGRAM = "commbench"
LAST = "last"
RESULTS = "results"  # where runs are stored unless output says another folder
LAUNCH_OPTION = re.compile(r"--local[-_]rank=\d+")


class CommandParser(argparse.ArgumentParser):
    """Raises ConfigError, which points to the command's help, instead of printing usage and
    exiting. The description keeps its lines."""

    def __init__(self, **more: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        setting = re.search(r"arguments: --?(\w[\w.]*)(?:[= ](\S*))?", message)
        hint = setting_hint(setting[1], setting[2]) if setting else ""
        if LAUNCH_OPTION.search(message):
            hint = (
                "python -m torch.distributed.launch adds it; start with torchrun instead:"
                " torchrun --nproc-per-node N -m commbench; "
            )
        raise ConfigError(f"{message}; {hint}see {self.prog} --help")


def setting_hint(name: str, value: str | None) -> str:
    """`settings have no dashes: backend=gloo; ` for an option that is a key here or elsewhere."""
    # loads omegaconf, which --help does not need
    from commbench.config.keys import OTHER_KEYS, OVERRIDES

    if name not in OTHER_KEYS and name.partition(".")[0] not in OVERRIDES:
        return ""
    meant = OTHER_KEYS.get(name, f"{name}={value or 'VALUE'}")
    return f"settings have no dashes: {meant}; "


def whole_number(least: int, most: int = LARGEST_NUMBER) -> Callable[[str], int]:
    """The type of an option that takes an integer between these bounds."""
    bounds = f"from {least} on" if most == LARGEST_NUMBER else f"from {least} to {most}"

    def parse(word: str) -> int:
        if not re.fullmatch(r"\d{1,18}", word) or not least <= int(word) <= most:
            raise argparse.ArgumentTypeError(f"{word} is not a whole number {bounds}")
        return int(word)

    return parse


def percent(word: str) -> float:
    number = word.removesuffix("%")
    value = float(number) if re.fullmatch(r"\d{1,4}(\.\d{1,9})?", number) else 0.0
    if not value:
        raise argparse.ArgumentTypeError(f"{word} is not a percentage above 0")
    return value


def add_delta(parser: argparse.ArgumentParser) -> None:
    """`--delta`, the same for all commands that compare."""
    parser.add_argument(
        "--delta",
        type=percent,
        default=100 * SMALLEST_CHANGE,
        metavar="PERCENT",
        help=f"least change that matters (default {100 * SMALLEST_CHANGE:g})",
    )


def with_last_runs(paths: Sequence[str]) -> list[str]:
    """The paths, with the runs of the newest command below `results` in place of the word last.

    Raises ConfigError where there is none.
    """
    return [run for path in paths for run in (_last_runs() if path == LAST else [path])]


def _last_runs() -> list[str]:
    if Path(LAST).exists():
        return [LAST]
    runs = find_runs(RESULTS) if Path(RESULTS).is_dir() else []
    if not runs:
        raise ConfigError(f"there is no run below ./{RESULTS}; name the folder of a run")
    newest = load_run(runs[-1]).get("sweep_id")
    of_sweep = (run for run in runs[:-1] if newest is not None and _sweep_of(run) == newest)
    return [*map(str, of_sweep), str(runs[-1])]


def _sweep_of(run: Path) -> Any:
    """The command that a run is of; an empty text where it can't be read, as of another version."""
    with suppress(Unreadable):
        return load_run(run).get("sweep_id")
    return ""


def show_command(folders: Sequence[Path]) -> str:
    """The command that shows these runs with what their flags mean."""
    paths = [str(folder.absolute()) for folder in folders]
    here = [path.removeprefix(f"{Path.cwd()}/") for path in paths]
    with suppress(ConfigError, Unreadable):
        here = [LAST] if here == _last_runs() else here
    return f"{shlex.join(_called())} show {shlex.join(here)} --flags"


def _called() -> list[str]:
    """The words that call commbench from here, as its path where a shell does not find it."""
    program = Path(sys.argv[0])
    if program.name != PROGRAM:
        return [sys.executable, "-m", PROGRAM] if program.name == "__main__.py" else [PROGRAM]
    return [PROGRAM if which(PROGRAM) else str(program).removeprefix(f"{Path.cwd()}/")]


def check_file(option: str, name: str) -> None:
    """Raises ConfigError where no file of that name can exist, before anything is computed."""
    folder = Path(name).parent
    if Path(name).is_dir():
        raise ConfigError(f"{option} {name} is a folder; name a file in it")
    if not folder.is_dir():
        raise ConfigError(
            f"{option} {name}: there is no folder {folder}; make it, or choose another"
        )


def write_file(option: str, name: str, content: str | bytes, replace: bool = True) -> None:
    """Raises ConfigError where the file can't be written, or exists and must not be replaced."""
    try:
        data = content if isinstance(content, bytes) else content.encode(errors="replace")
        with Path(name).open("wb" if replace else "xb") as out:
            out.write(data)
    except OSError as error:
        raise ConfigError(
            f"{option} {name} can't be written: {error.strerror}; choose another file"
        ) from error
