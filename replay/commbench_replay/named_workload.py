"""A workload by the name that a configuration or results give it: a generator with its numbers, or
a file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

from commbench.core.errors import ConfigError, Unreadable
from commbench.core.foreign import bounded_reading, whole_file

from .generators import GENERATORS, generate
from .workload import Workload, WorkloadOperation
from .workload_file import parse_workload

DIGEST_LETTERS = 12
WORKLOAD_FILE = "job.json"  # beside the runs of `commbench replay --on`
# Case.workload of an operation that is measured alone
ALONE = re.compile(r"(?P<workload>.+) #(?P<operation>\d+) \w+", re.DOTALL)


@dataclass(frozen=True)
class NamedWorkload:
    """A workload and its name in results."""

    text: str
    workload: Workload


WorkloadOn = Callable[[int], NamedWorkload]  # a number of ranks


def is_generator(text: str) -> bool:
    return text.partition(" ")[0] in GENERATORS


def recorded_name(text: str) -> str:
    """As results have it: a generator, or a file with the digest of its content. Raises
    ConfigError."""
    return text if is_generator(text) else _file_source(text).text


def source_of(text: str, size: int) -> NamedWorkload:
    """Of a layout with `size` ranks. Raises ConfigError."""
    if not is_generator(text):
        return _file_source(text)
    try:
        return NamedWorkload(text, generated(text, size))
    except ConfigError as error:
        raise ConfigError(f"workload={error}") from error


@lru_cache(maxsize=8)
def generated(text: str, ranks: int | None = None) -> Workload:
    """The workload of a generator, on so many ranks where the text does not say it. Raises
    ConfigError, whose text begins with the name of the generator."""
    name, *words = text.split()
    wrong = [word for word in words if "=" not in word]
    if wrong:
        raise ConfigError(f"{name}: {wrong[0]!r} is not KEY=VALUE")
    numbers = dict(word.partition("=")[::2] for word in words)
    if ranks is not None:
        numbers.setdefault("ranks", str(ranks))
    return generate(name, numbers)


def listed_workloads(text: str) -> list[WorkloadOn]:
    """A generator with its numbers, for each combination of those in lists (`bucket=[1MiB,25MiB]`);
    or a file."""
    if not is_generator(text):
        return [partial(source_of, text)]
    name, *words = text.split()
    pairs = [word.partition("=") for word in words]
    axes = [
        [f"{key}{equals}{value}" for value in values.strip("[]").split(",")]
        for key, equals, values in pairs
    ]
    return [partial(_generated_on, " ".join((name, *chosen))) for chosen in product(*axes)]


def _generated_on(text: str, ranks: int) -> NamedWorkload:
    return NamedWorkload(text, generated(text, ranks))


def workload_named(name: str, size: int, files: Iterable[Path]) -> Workload | None:
    """The workload that results call so, of a layout with `size` ranks: of a generator, or in one
    of these files; None if it is in none of them."""
    if is_generator(name):
        return source_of(name, size).workload
    for path in files:
        try:
            source = _file_source(str(path))
        except ConfigError:  # it is gone, or another file
            continue
        if source.text == name:
            return source.workload
    return None


def alone_text(workload: str, number: int, operation: WorkloadOperation) -> str:
    """Case.workload of one operation: `workload` is the name of all of them."""
    return f"{workload} #{number} {operation.operation}"


def operation_number(text: str | None) -> int | None:
    """Of the operation that a Case.workload names; None for the sequence of all."""
    match = ALONE.fullmatch(text or "")
    return None if match is None else int(match["operation"])


def sequence_name(text: str) -> str:
    """Of the workload that a Case.workload is of, alone or not."""
    match = ALONE.fullmatch(text)
    return text if match is None else match["workload"]


@lru_cache(maxsize=8)
def _file_source(path: str) -> NamedWorkload:
    try:
        content = whole_file(path)
    except (OSError, ValueError, Unreadable) as error:  # ValueError: a null character in the path
        raise ConfigError(
            f"workload={path} is no generator ({', '.join(GENERATORS)}), and as a file it can't be"
            f" read: {error}"
        ) from error
    try:
        with bounded_reading(path):
            workload = parse_workload(content, path)
    except Unreadable as error:
        raise ConfigError(f"workload={error}") from error
    digest = hashlib.sha256(content).hexdigest()[:DIGEST_LETTERS]
    return NamedWorkload(f"{Path(path).stem}@{digest}", workload)
