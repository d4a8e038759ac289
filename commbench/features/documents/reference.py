"""Known values to compare with: one file per kind of machine in the folder data, and in the folder
of the user's own.

A file says how its machine is recognised, and has documents with values. A key of the file holds
for its documents, one of a document for its values. docs/reference.md has all keys.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml  # type: ignore[import-untyped]

from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.layout import ACROSS_NODES, SAME_NODE, SELF, Pair, link_of
from commbench.core.terminal import one_line
from commbench.core.units import RATES, format_number, format_seconds, parse_bytes, parse_pairs
from commbench.results.row import KINDS, Row

FOLDER = "data"
OWN = "COMMBENCH_REFERENCE"  # the user's own folder
MOST_FILES = 1000  # in it
LONGEST_PATTERN = 200
VERSION = r"\d+(?:\.\d+)+"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of C: ten times as fast
UNITS = {  # of a document -> its size in the unit of the column
    **RATES,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "us round trip": 0.5e-6,  # of a latency, which is half of it
    "1/s": 1.0,
    "%": 0.01,
    "x": 1.0,
    "B": 1.0,
    "ranks": 1.0,
}
BOUNDS = ("value", "range", "at_least", "at_most", "floor", "ceiling", "by_size", "by_time_s")
ITSELF = "itself"
TEXTS = ("machine", "name", "source", "setting", "library", "tool", "note", "licence")
SURE = ("", "high", "medium", "low")
Sure = Literal["", "high", "medium", "low"]
SPANS = {SELF: ITSELF, SAME_NODE: "within", ACROSS_NODES: "between"}


def is_in_bits(unit: str) -> bool:
    return unit.endswith("b/s")


@dataclass(frozen=True)
class Point:
    """`low` to `high` in the document's unit, one of them infinite where it has one bound.

    For messages of `least_bytes` to `most_bytes`; `at_s`: seconds since the start of a soak.
    `is_threshold`: a check fails beyond it, however little.
    """

    low: float
    high: float
    least_bytes: int = 0
    most_bytes: float = math.inf
    at_s: float | None = None
    is_threshold: bool = False

    @property
    def value(self) -> float:
        """The value, or the bound that there is."""
        return self.low if math.isfinite(self.low) else self.high

    def holds(self, message_bytes: int | None) -> bool:
        """Whether the value is of messages of that size, 0 for none."""
        return self.least_bytes <= (message_bytes or 0) <= self.most_bytes

    def beyond(self, value: float) -> float:
        """By which factor a value in that unit lies above the end, or below 1 before the begin; 1
        between them."""
        nearest = min(max(value, self.low), self.high)
        return value / nearest if nearest else math.nan

    @property
    def message_bytes(self) -> int | None:
        """None for a range of sizes."""
        return self.least_bytes if self.least_bytes == self.most_bytes else None

    def text(self, write: Callable[[float], str]) -> str:
        """`1.18 GB/s .. 1.19 GB/s`, `at least 460 GB/s`; `write` makes the text of a number."""
        if not math.isfinite(self.high):
            return f"at least {write(self.low)}"
        if not math.isfinite(self.low):
            return f"at most {write(self.high)}"
        return " .. ".join(dict.fromkeys((write(self.low), write(self.high))))


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A value of a document, or its values by size or time; `setting` is the document's name for
    it.

    `where`: variables and other columns with the values that a row must have, in one of these maps.
    `span` and `ranks`, null for any, are of the machine that the document had. `way`: columns in
    which the document's way of measuring may differ from ours. `name`: of the machine, in a line.
    """

    machine: str
    recognised_by: tuple[str, ...]
    source: str
    setting: str
    where: tuple[Mapping[str, Any], ...]
    column: str
    unit: str
    points: tuple[Point, ...]
    label: str | None = None
    experiment: str | None = None
    span: str | None = None
    ranks: int | None = None
    library: str = ""
    date: str = ""  # empty where the runs do not say it
    of: str = ""  # the column of which a ratio is
    over: Mapping[str, Sequence[str]] | None = None  # of rows with the first value over the second
    libraries: Mapping[str, str] = field(default_factory=dict)  # of values of `over`
    labels: tuple[str, ...] = ()  # its settings, for which other labels may stand
    statistic: str = ""  # over all cases that fit; else each case stands for itself
    place: str = ""
    note: str = ""
    guess: bool = False
    name: str = ""
    licence: str = ""
    tool: str = ""
    how: str = ""
    way: Mapping[str, Any] = field(default_factory=dict)
    measurements: int | None = None
    sure: Sure = ""
    file: str = ""  # of the user's own folder

    @property
    def title(self) -> str:
        return f"{self.machine}: {self.setting}"

    @property
    def title_of_table(self) -> str:
        """Its setting; of a curve over time its place in the document."""
        return self.setting if self.points[0].at_s is None else self.place

    @property
    def published(self) -> str:
        """The document, with its date where it has one."""
        return ", ".join(filter(None, (self.source, self.date)))

    @property
    def origin(self) -> str:
        """The document, and where in it."""
        return ", ".join(filter(None, (self.published, self.place)))

    @property
    def place_of_ranks(self) -> str:
        """`8 H100 SXM`, `16 H100 SXM, between nodes`, or the machine in full."""
        if not self.name:
            return self.machine
        where = ", between nodes" if self.span == "between" else ""
        return f"{self.ranks} {self.name}{where}" if self.ranks else f"{self.name}{where}"

    def write(self, value: float) -> str:
        """A value in its unit, as it is shown."""
        number = value * UNITS[self.unit]
        return (
            format_seconds(number) if self.column == "median_s" else f"{format_number(number)} GB/s"
        )

    @property
    def decides(self) -> bool:
        """Whether a run can miss it: neither a guess nor a value that is in doubt."""
        return not self.guess and self.sure != "low"

    @property
    def is_own(self) -> bool:
        """Whether commbench's own documents are the source."""
        return self.source.startswith("commbench ")

    @property
    def is_of_directions(self) -> bool:
        """Whether its ratio is of the two directions of a pair."""
        return self.over is not None and "direction" in self.over

    @property
    def is_of_a_machine(self) -> bool:
        return bool(self.recognised_by or self.label)

    def is_of(self, hardware: Iterable[str]) -> bool:
        """Whether one of these texts describes the machine: its facts, or the label of a run."""
        return any(
            all(_is_in(pattern, text) for pattern in patterns)
            for text in hardware
            for patterns in (self.recognised_by, [self.label] if self.label else ())
            if patterns
        )

    def with_labels(self, own: Sequence[str]) -> Reference:
        """The value with as many labels of runs in place of its own, also in the words for it."""
        if not self.labels or len(own) != len(self.labels) or set(own) & set(self.labels):
            return self
        stand_ins = dict(zip(self.labels, own, strict=True))
        over = self.over and {
            name: [stand_ins.get(value, value) for value in values]
            for name, values in self.over.items()
        }
        where = tuple(
            {**values, "label": stand_ins[values["label"]]} if "label" in values else values
            for values in self.where
        )
        words = re.split(r"\b", self.setting)
        setting = "".join(stand_ins.get(word, word) for word in words)
        return replace(self, setting=setting, where=where, over=over)

    def fits(self, row: Row) -> bool:
        """Whether a row has what the document measured, wherever that was."""
        return any(_has(row, values) for values in self.where)

    def fits_first(self, row: Row) -> bool:
        """Whether it has what the first map says, which is the document's; others stand in."""
        return _has(row, self.where[0])

    def is_comparable(self, row: Row) -> bool:
        """Whether a row of this machine can be expected to have the value."""
        ranks = row.world_size or 0
        of_ranks = ranks == self.ranks if self.ranks else ranks > 1
        in_place = self.span in (None, fact(row, "span"))
        return self.fits(row) and of_ranks and in_place and getattr(row, self.column) is not None

    def point_of(self, message_bytes: int | None) -> Point | None:
        return next((each for each in self.points if each.holds(message_bytes)), None)


def _is_in(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def _has(row: Row, values: Mapping[str, Any]) -> bool:
    return all(_is_one_of(fact(row, name), allowed) for name, allowed in values.items())


def _is_one_of(value: Any, allowed: Any) -> bool:
    """Whether a value is that, or one of a list; as text, in which a file has numbers and names."""
    choices = allowed if isinstance(allowed, list) else [allowed]
    return value in choices if value is None else str(value) in map(str, choices)


def fact(row: Row, name: str) -> Any:
    """A column of a row, an entry of a map (`env.NAME`), or what follows from other columns.

    span: itself, within a node, between nodes. peer: itself, another rank. direction: there, back.
    nccl_version: as the library's name has it.
    fresh_over_reused: of the rates of a stream's connections, their first second over their end.
    """
    if name in DERIVED_FACTS:
        return DERIVED_FACTS[name](row)
    column, _, key = name.partition(".")
    value = getattr(row, column)
    return dict(value).get(key) if key else value


def _first_pair(row: Row) -> Pair | None:
    return next(iter(parse_pairs(row.pair)), None)


def _span(row: Row) -> str | None:
    return SPANS[link_of(row.layout, row.pair)] if row.layout else None


def _peer(row: Row) -> str | None:
    pair = _first_pair(row)
    if pair is None:
        return None
    return ITSELF if pair[0] == pair[1] else "another rank"


def _direction(row: Row) -> str | None:
    pair = _first_pair(row)
    if pair is None or pair[0] == pair[1]:
        return None
    return "there" if pair[0] < pair[1] else "back"


COLUMNS = tuple(KINDS)


def library_version(row: Row, name: str) -> str | None:
    """The version of that library: `2.29.2` in `torch 2.13 nccl 2.29.2`."""
    found = re.search(
        rf"\b{re.escape(name)}\W{{0,3}}v?({VERSION})", row.library or "", re.IGNORECASE
    )
    return found[1] if found else None


def fresh_over_reused(row: Row) -> float | None:
    """Of a stream, the rate of its first second over that at its end."""
    first = row.first_second_gb_per_s
    return first / row.end_gb_per_s if first is not None and row.end_gb_per_s else None


DERIVED_FACTS: Mapping[str, Callable[[Row], Any]] = {
    "nccl_version": partial(library_version, name="nccl"),
    "span": _span,
    "peer": _peer,
    "direction": _direction,
    "fresh_over_reused": fresh_over_reused,
}


# ---------------------------------------------------------------- files


def references() -> tuple[Reference, ...]:
    """All values of all files, the user's own last. Raises ConfigError for a file of the user that
    is none."""
    folder = own_folder()
    return (*_published(), *(() if folder is None else read_folder(folder)))


@functools.cache
def _published() -> tuple[Reference, ...]:
    folder = files(__package__) / FOLDER
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    return tuple(each for path in paths for each in read_file(path.read_text(encoding="utf-8")))


def read_file(text: str) -> Iterator[Reference]:
    """The values of a file. Raises TypeError for a key that there is not, ValueError for a value
    that does not have one of BOUNDS."""
    kind = yaml.load(text, Loader=LOADER)
    documents = kind.pop("documents")
    for document in documents:
        values = document.pop("values")
        for value in values:
            yield _reference({**kind, **document, **value})


def _reference(keys: dict[str, Any]) -> Reference:
    sizes = keys.pop("sizes", None)
    (bound,) = (name for name in BOUNDS if name in keys)
    points = tuple(_points(bound, keys.pop(bound), sizes))
    where = keys.pop("where")
    patterns = keys.pop("recognised_by") or ()
    over = {name: [*map(str, values)] for name, values in (keys.pop("over", None) or {}).items()}
    labels = tuple(keys.pop("labels", ()))
    return Reference(
        **keys | {"date": str(keys.get("date", ""))},
        over=over or None,
        labels=labels,
        points=points,
        where=tuple(where) if isinstance(where, list) else (where,),
        recognised_by=tuple(patterns) if isinstance(patterns, list | tuple) else (patterns,),
    )


def _points(bound: str, value: Any, sizes: Any) -> Iterator[Point]:
    """`sizes`: 1MiB, `16KiB .. 4MiB`, or `16KiB ..`."""
    if bound == "by_size":
        for text, number in value.items():
            size = parse_bytes(text)
            yield Point(number, number, size, size)
        return
    if bound == "by_time_s":
        for at_s, number in value.items():
            yield Point(number, number, at_s=at_s)
        return
    least, dots, most = map(str.strip, str(0 if sizes is None else sizes).partition(".."))
    first = parse_bytes(least)
    last = parse_bytes(most) if most else math.inf if dots or sizes is None else first
    low, high = value if bound == "range" else (value, value)
    if bound in ("at_least", "floor"):
        high = math.inf
    elif bound in ("at_most", "ceiling"):
        low = -math.inf
    yield Point(low, high, first, last, is_threshold=bound in ("floor", "ceiling"))


# ---------------------------------------------------------------- the user's own


def own_folder() -> Path | None:
    """Where the files of a team are; None where no folder is named. Raises ConfigError."""
    name = os.environ.get(OWN)
    if not name:
        return None
    if not Path(name).is_dir():
        raise ConfigError(f"{OWN}={name} is not a folder; make it, or unset the variable")
    return Path(name)


def read_folder(folder: Path) -> tuple[Reference, ...]:
    """The values of its files; raises ConfigError."""
    paths = sorted(folder.glob("*.yaml"))
    if len(paths) > MOST_FILES:
        raise ConfigError(f"{folder} has {len(paths)} files; {MOST_FILES} are allowed")
    try:
        changed = tuple((path, path.stat().st_mtime_ns) for path in paths)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; check the folder") from error
    return tuple(each for path, when in changed for each in own_values(path, when))


@functools.lru_cache(maxsize=1024)
def own_values(path: Path, changed_ns: int) -> tuple[Reference, ...]:
    """Of a file as it was at that time; raises ConfigError where it is not one of these files."""
    from commbench.config.user_files import bounded_yaml  # loads Hydra

    text = bounded_yaml(path)
    try:
        found = tuple(replace(each, file=str(path)) for each in read_file(text))
        for each in found:
            _check(each)
    except (AttributeError, CommbenchError, KeyError, TypeError, ValueError, re.error) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else one_line(str(error))
        raise ConfigError(
            f"{path} is not a file of reference values: {reason}; docs/reference.md has its keys"
        ) from error
    return found


def _check(reference: Reference) -> None:
    """Raises ValueError for what `judge` could not use, re.error for a pattern that is none."""
    known = {"column": COLUMNS, "unit": UNITS, "span": (None, *SPANS.values()), "sure": SURE}
    for name, allowed in known.items():
        if getattr(reference, name) not in allowed:
            raise ValueError(f"{name} {getattr(reference, name)} is unknown")
    for name in TEXTS:
        if not isinstance(getattr(reference, name), str):
            raise ValueError(f"{name} {getattr(reference, name)} is not a text")
    names = {name for values in (*reference.where, reference.way) for name in values}
    unknown = {name.partition(".")[0] for name in names} - {*COLUMNS, *DERIVED_FACTS}
    if unknown:
        raise ValueError(f"where: there is no column {', '.join(sorted(unknown))}")
    for pattern in filter(None, (*reference.recognised_by, reference.label)):
        if len(pattern) > LONGEST_PATTERN:
            raise ValueError(f"a pattern has more than {LONGEST_PATTERN} characters")
        re.compile(pattern)
    for point in reference.points:
        if not isinstance(point.value, int | float) or not 0 < point.value < math.inf:
            raise ValueError(f"{point.value} is not a number above 0")


# ---------------------------------------------------------------- experiments


def of_experiment(name: str) -> list[Reference]:
    """The values of the document behind an experiment; none for other experiments."""
    return [each for each in references() if each.experiment == name]
