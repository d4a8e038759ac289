"""How provenance reads its sources: a missing file is None, and one broken source never hurts another."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Facts = dict[str, Any]
Source = Callable[[Path], Mapping[str, Any]]
ROOT = Path("/")


class Finished(NamedTuple):
    """A command that ended: its exit status and what it printed."""

    status: int
    out: str
    err: str


def gather(noun: str, sources: Iterable[Source], root: Path) -> Facts:
    """The facts of all sources, without those that are None; what broke is named in `noun.error`."""
    facts: Facts = {}
    errors: list[str] = []
    for source in sources:
        try:
            facts |= {key: value for key, value in source(root).items() if value is not None}
        except Exception as error:  # a strange machine must not cost the run
            errors.append(f"{source.__name__}: {one_line(repr(error))}")
    return facts | ({f"{noun}.error": "; ".join(errors)} if errors else {})


def read_text(path: Path) -> str | None:
    """The whole text of a file, or None when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None


def read_line(path: Path) -> str | None:
    """The text of a short file as one line, or None when it is missing or empty."""
    return one_line(read_text(path) or "") or None


def read_int(path: Path) -> int | None:
    """The one number in a file, or None."""
    return parse_int(read_text(path) or "")


def read_link(path: Path) -> str | None:
    """What a symbolic link points to, or None."""
    try:
        return str(path.readlink())
    except OSError:
        return None


def exists(path: Path) -> bool:
    """Whether a path is there; one that may not be looked at is not (older Pythons raise)."""
    try:
        return path.exists()
    except OSError:
        return False


def children(path: Path, pattern: str = ".*") -> list[Path]:
    """What lies in a folder and has such a name, node2 before node10; nothing when there is no folder."""
    try:
        found = [child for child in path.iterdir() if re.fullmatch(pattern, child.name)]
    except OSError:
        return []
    return sorted(found, key=lambda child: _natural(child.name))


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in parts]


def parse_int(text: str) -> int | None:
    """A decimal number of at most 19 digits; int() itself also takes 1_000 and foreign digits."""
    match = re.fullmatch(r"\s*([+-]?[0-9]{1,19})\s*", text)
    return int(match[1]) if match else None


def parse_float(text: str) -> float | None:
    """A plain decimal number such as 2600.000; no exponent, inf or nan."""
    match = re.fullmatch(r"\s*([+-]?[0-9]{1,19}(?:\.[0-9]{1,19})?)\s*", text)
    return float(match[1]) if match else None


def parse_fields(text: str, separator: str = ":") -> dict[str, str]:
    """`key: value` lines as a dict; of a repeated key the first, lines without a separator are skipped."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, found, value = line.partition(separator)
        if found:
            fields.setdefault(key.strip(), one_line(value))
    return fields


def one_line(text: str) -> str:
    """Text without newlines, NUL bytes, repeated spaces or half characters, so that it can be JSON."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join(whole.replace("\0", " ").split())


def first_line(text: str) -> str:
    """The first line that isn't empty, or an empty text."""
    return next((one_line(line) for line in text.splitlines() if line.strip()), "")


def key_part(name: str) -> str:
    """A foreign name (interface, variable) in the letters that keys are made of; eth0.100 stays as it is."""
    safe = re.sub(r"[^A-Za-z0-9_\-:@.]", "_", name)
    return ".".join(part or "_" for part in safe.split("."))


def run_command(command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None) -> Finished | None:
    """Run a command; None when it gave no answer in time. Raises OSError when it can't be started."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environ,
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return None
    return Finished(child.returncode, out, err)


def _abandon(child: subprocess.Popen[str]) -> None:
    """Kill, and don't wait for long: nvidia-smi on a broken GPU sleeps where no signal reaches it."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # subprocess.run would wait for ever
        child.wait(timeout=0.5)
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()
