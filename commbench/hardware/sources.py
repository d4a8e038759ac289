"""Reading files and commands for facts: a missing file is None, and a source that fails does not
affect others."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess, Popen, TimeoutExpired
from typing import Any

import psutil

from commbench.core.terminal import first_line
from commbench.core.units import natural_key

Facts = dict[str, Any]
FactSource = Callable[[Path], Mapping[str, Any]]
ROOT = Path("/")
OWN_MAPS = Path("/proc/self/maps")
# raised by psutil where /proc is masked: its files may be missing, empty or have other fields
MASKED = (psutil.Error, OSError, RuntimeError, ValueError, LookupError)
LONGEST_OUTPUT = 1 << 24  # characters of a command that are kept
LONGEST_MESSAGE = 200  # characters of why it failed


class NoReading(Exception):
    """Raised by a source that can't be read, with one line that says why."""


def gather(noun: str, sources: Iterable[FactSource], root: Path) -> Facts:
    """The facts of all sources except those that are None; exceptions are recorded in
    `noun.error`."""
    facts: Facts = {}
    errors = list[str]()
    for source in sources:
        try:
            facts |= {key: value for key, value in source(root).items() if value is not None}
        except NoReading as error:
            errors.append(fact_text(str(error)))
        except Exception as error:  # an unusual machine must not end the run
            errors.append(f"{source.__name__}: {fact_text(repr(error))}")
    return facts | ({f"{noun}.error": "; ".join(errors)} if errors else {})


def read_text(path: Path) -> str:
    """The text of a file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def read_line(path: Path) -> str | None:
    """The text of a short file as one line, or None if it is missing or empty."""
    return fact_text(read_text(path)) or None


def read_int(path: Path) -> int | None:
    """The number that a file consists of, or None."""
    return parse_int(read_text(path))


def read_link(path: Path) -> str | None:
    """The target of a symbolic link, or None."""
    try:
        return str(path.readlink())
    except OSError:
        return None


def children(path: Path, pattern: str = ".*") -> list[Path]:
    """The entries of a folder whose name matches, node2 before node10; empty without such a
    folder."""
    try:
        named = [child for child in path.iterdir() if re.fullmatch(pattern, child.name)]
    except OSError:
        return []
    return sorted(named, key=lambda child: natural_key(child.name))


def mapped_files(names: tuple[str, ...], maps: Path = OWN_MAPS) -> list[str]:
    """The files in the memory of this process whose names begin so. A folder may have any name,
    which is kept byte by byte."""
    text = ""
    with suppress(OSError):
        text = maps.read_text(errors="surrogateescape")
    paths = (f"/{path}" for line in text.splitlines() if (path := line.partition("/")[2]))
    return list(dict.fromkeys(path for path in paths if Path(path).name.startswith(names)))


def parse_int(text: str) -> int | None:
    """A decimal number of at most 19 digits, else None; int() would also accept 1_000 and digits of
    other scripts."""
    match = re.fullmatch(r"\s*([+-]?[0-9]{1,19})\s*", text)
    return int(match[1]) if match else None


def parse_fields(text: str, separator: str = ":") -> dict[str, str]:
    """`key: value` lines as a dict; of a repeated key the first value, lines without a separator
    are skipped."""
    fields = dict[str, str]()
    for line in text.splitlines():
        key, match, value = line.partition(separator)
        if match and key.strip() not in fields:
            fields[key.strip()] = fact_text(value)
    return fields


def fact_text(text: str) -> str:
    """The text on one line, without NUL bytes, repeated spaces or lone surrogates, so that it can
    be JSON."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ").split())


def key_part(name: str) -> str:
    """The name of an interface or variable in the characters that keys may have; eth0.100 stays as
    it is."""
    safe = re.sub(r"[^A-Za-z0-9_\-:@.]", "_", name)
    return ".".join(part or "_" for part in safe.split("."))


def command_output(
    command: Sequence[str],
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
    name: str | None = None,
) -> str:
    """What a command prints. Raises NoReading where it is not installed, fails or does not answer
    in time; `name` stands for it in the reason."""
    name = name or Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise NoReading(f"{name} is not installed")
    try:
        finished = run_command(command, timeout_s, environ)
    except OSError as error:
        raise NoReading(f"{name} can't be started: {error.strerror}") from error
    if finished is None:
        raise NoReading(f"{name} did not answer within {timeout_s:g} s")
    if finished.returncode != 0:
        printed = first_line(finished.stderr) or first_line(finished.stdout)
        message = fact_text(printed)[:LONGEST_MESSAGE] or f"status {finished.returncode}"
        raise NoReading(f"{name} failed: {message}")
    return finished.stdout


def run_command(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> CompletedProcess[str] | None:
    """Run a command; None if it does not end in time. Raises OSError if it cannot be started."""
    child = Popen(
        command,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        encoding="utf-8",
        errors="replace",
        env=environ,
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
    except TimeoutExpired:
        # nvidia-smi on a broken GPU can't be killed (state D): subprocess.run would wait for it
        # forever
        child.kill()
        with suppress(TimeoutExpired):
            child.wait(timeout=0.5)
        for pipe in (child.stdout, child.stderr):
            if pipe:
                pipe.close()
        return None
    # of a program that prints without end the beginning is enough
    return CompletedProcess(command, child.returncode, out[:LONGEST_OUTPUT], err[:LONGEST_OUTPUT])
