"""Bytes, seconds, rates, pairs and lists of numbers as text and back. KiB, MiB, GiB are binary;
GB/s is 10^9 B/s."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Any

from .errors import ConfigError

_BINARY = {"TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}
_DECIMAL = {"TB": 1000**4, "GB": 1000**3, "MB": 1000**2, "kB": 1000}
RATES = {  # GB/s in one of each; bits and bytes are decimal
    "Tb/s": 125.0,
    "Gb/s": 0.125,
    "Mb/s": 0.125e-3,
    "GB/s": 1.0,
    "MB/s": 1e-3,
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"": 1, "B": 1, "KB": 1000, **_BINARY, **_DECIMAL}
NO_NUMBER = "-"
INT_MAX = 2**31 - 1  # of a C int
MOST_NAMED_PAIRS = 3  # of several that run at once
NUMBER_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_UNITS_TEXT = "B, KiB, MiB, GiB, TiB (binary) or kB, MB, GB, TB (decimal)"


@dataclass(frozen=True)
class Unit:
    """`size`: of one of it, in the unit of the column of cases.parquet."""

    name: str
    size: float

    def text(self, value: float | None) -> str:
        return NO_NUMBER if value is None else format_number(value / self.size)


def value_text(value: object) -> str:
    """The value of a variable as text; a map, or its tuple of pairs, becomes A=1 B=2."""
    if isinstance(value, Mapping):
        value = tuple(sorted(value.items()))
    return (
        " ".join(f"{name}={part}" for name, part in value)
        if isinstance(value, tuple)
        else str(value)
    )


def parse_bytes(text: object) -> int:
    """The number of bytes in 64, "64", "1KiB" or "2.5MB"; raises ConfigError if it is not a whole
    number."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = re.fullmatch(r"(\d{1,30})(?:\.(\d{1,30}))?\s*([A-Za-z]*)", str(text).strip())
    if not match or match[3] not in _BYTES:
        raise ConfigError(
            (_other_spelling(match) if match else None)
            or f"{text!r} is not a number of bytes; allowed units are {_UNITS_TEXT}"
        )
    whole = match[1]
    fraction = match[2] or ""
    scale = _BYTES[match[3]]
    value, remainder = divmod(int(whole + fraction) * scale, int(10 ** len(fraction)))
    if remainder:
        raise ConfigError(f"{text!r} is not a whole number of bytes; round it to one")
    return value


def _other_spelling(size: re.Match[str]) -> str | None:
    """What 64k, 64mb or 64mib may mean; K is 1024 to some tools and 1000 to others."""
    unit = re.fullmatch("([KMGT])(I?)B?", size[3].upper())
    if unit is None:
        return None
    number = f"{size[1]}.{size[2]}" if size[2] else size[1]
    binary = f"{number}{unit[1]}iB"
    if unit[2]:
        return f"{size[0]!r} is not a number of bytes; write {binary}"
    decimal = f"{number}{'k' if unit[1] == 'K' else unit[1]}B"
    return f"{size[0]!r} is ambiguous: write {binary} (binary) or {decimal} (decimal)"


def parse_rate(text: str) -> float:
    """GB/s in 100Gb/s or 12.5GB/s; raises ConfigError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([A-Za-z]+/s)", text.strip())
    if not match or match[2] not in RATES or not float(match[1]):
        raise ConfigError(f"{text!r} is not a rate above 0; allowed units are {', '.join(RATES)}")
    return float(match[1]) * RATES[match[2]]


def format_bytes(value: int) -> str:
    """The exact text of a number of bytes in the unit with the smallest number: 64 B, 1 KiB, 40 kB,
    16 MB."""
    units = [("B", 1), *_BINARY.items(), *_DECIMAL.items()]
    exact = [(value // scale, unit) for unit, scale in units if value and value % scale == 0]
    number, unit = min(exact, key=lambda each: each[0], default=(value, "B"))
    return f"{number} {unit}"


def about_bytes(value: float) -> str:
    """A number of bytes in at most four digits: 24 KiB, 1.46 MiB, 1000 MiB."""
    for unit, scale in _BINARY.items():
        if value >= scale:
            return (
                f"{value / scale:.0f} {unit}"
                if value >= 100 * scale
                else f"{value / scale:.3g} {unit}"
            )
    return f"{value:.0f} B"


def format_seconds(value: float | None) -> str:
    """Three significant digits with the unit that fits: 1.23 us, 45.6 ms, 7.89 s."""
    if value is None:
        return NO_NUMBER
    unit = seconds_unit(value)
    return f"{unit.text(value)} {unit.name}"


def seconds_unit(value: float) -> Unit:
    """In which a time in seconds has one to three digits before the point."""
    fitting = (name for name, size in SECONDS.items() if _rounded(abs(value)) >= size)
    name = next(fitting, "ns")
    return Unit(name, SECONDS[name])


def bit_rate_unit(gb_per_s: float) -> Unit:
    """Networks count bits: Mb/s up to 10 Gb/s, so that a link of 1 Gb/s has its digits."""
    name = "Gb/s" if gb_per_s >= 10 * RATES["Gb/s"] else "Mb/s"
    return Unit(name, RATES[name])


def about_duration(seconds: float) -> str:
    """A time that may be long, in two or three digits: 45.6 s, 23 min, 5.5 h, 12 days."""
    for scale, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * scale:
            value = seconds / scale
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return format_seconds(seconds)


def plural(count: int, singular: str, several: str) -> str:
    """1 launch, 2 launches."""
    return f"{count} {singular if count == 1 else several}"


def word_list(words: Sequence[str], last: str) -> str:
    """`a, b and c` of several words, for `and`."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def format_factor(value: float) -> str:
    """A factor in three significant digits: 1.24 x, 2,210 x."""
    return f"{value:.3g} x" if value < 100 else f"{float(f'{value:.3g}'):,.0f} x"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def format_number(value: float | None) -> str:
    """At least three significant digits, without an exponent or a unit."""
    if not value or not isfinite(value):
        return "-" if value is None else f"{value:g}"
    return f"{value:.{max(0, 2 - floor(log10(_rounded(abs(value)))))}f}"


def parse_pairs(text: str | None) -> list[tuple[int, int]]:
    """The pairs in the text of Case.pair."""
    ends = (word.split("-") for word in (text or "").split())
    return [(int(first), int(second)) for first, second in ends]


def short_pairs(text: str) -> str:
    """The text of Case.pair, shortened to the first and the last of many pairs that run at once."""
    pairs = text.split()
    return (
        text
        if len(pairs) <= MOST_NAMED_PAIRS
        else f"{pairs[0]} .. {pairs[-1]} ({len(pairs)} at once)"
    )


def parse_ranges(text: str) -> list[int]:
    """The numbers in a list such as 0-3,8; empty if the text is not such a list."""
    numbers = list[int]()
    for part in text.strip().split(","):
        match = NUMBER_RANGE.fullmatch(part)
        if match is None:
            return []
        numbers.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as a list such as 0-3,8, in ascending order; empty for none."""
    runs = list[list[int]]()
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def natural_key(value: Any) -> tuple[Any, ...]:
    """A sort key with 0-2 before 0-10, and None first."""
    if value is None:
        return ()
    parts = re.split(r"(\d+)", value_text(value))
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))
