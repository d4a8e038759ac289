"""Bytes, seconds and rates as text and back. KiB, MiB, GiB are binary; GB/s is 10^9 B/s."""

from __future__ import annotations

import re

from .errors import ConfigError

_BYTES = {"": 1, "B": 1}
_BYTES |= {f"{p}iB": 1024**i for i, p in enumerate("KMGT", start=1)}
_BYTES |= {f"{p}B": 1000**i for i, p in enumerate("KMGT", start=1)} | {"kB": 1000}
_UNITS_TEXT = "B, KiB, MiB, GiB, TiB (binary) or kB, MB, GB, TB (decimal)"


def parse_bytes(text: object) -> int:
    """An exact number of bytes from 64, "64", "1KiB" or "2.5MB"; raises ConfigError."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = re.fullmatch(r"\s*(\d{1,30})(?:\.(\d{1,30}))?\s*([A-Za-z]*)\s*", str(text))
    if not match or match[3] not in _BYTES:
        raise ConfigError(f"{text!r} is not a number of bytes; allowed units are {_UNITS_TEXT}")
    whole, fraction, scale = match[1], match[2] or "", _BYTES[match[3]]
    value, remainder = divmod(int(whole + fraction) * scale, int(10 ** len(fraction)))
    if remainder:
        raise ConfigError(f"{text!r} is not a whole number of bytes; round it to one")
    return value


def format_bytes(value: int) -> str:
    """The shortest exact text of a number of bytes: 64 B, 1 KiB, 40 kB."""
    for exponent, prefix in reversed(list(enumerate("KMGT", start=1))):
        if value and value % 1024**exponent == 0:
            return f"{value // 1024**exponent} {prefix}iB"
    for exponent, prefix in reversed(list(enumerate(("k", "M", "G", "T"), start=1))):
        if value and value % 1000**exponent == 0:
            return f"{value // 1000**exponent} {prefix}B"
    return f"{value} B"


def format_seconds(value: float | None) -> str:
    """Three significant digits with the unit that fits: 1.23 us, 45.6 ms, 7.89 s."""
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if _rounded(value) >= scale:
            return f"{_significant(value / scale)} {unit}"
    return f"{_significant(value / 1e-9)} ns"


def format_rate(gb_per_s: float | None) -> str:
    """A bandwidth in GB/s (10^9 B/s) with three significant digits and no unit, for a column that names it."""
    return "-" if gb_per_s is None else _significant(gb_per_s)


def format_count(value: float | None) -> str:
    """A count or message rate with k, M, G as powers of 1000: 812, 1.25 M."""
    if value is None:
        return "-"
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if _rounded(value) >= scale:
            return f"{_significant(value / scale)}{unit}"
    return str(value) if isinstance(value, int) else _significant(value)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _significant(value: float) -> str:
    if value == 0:
        return "0"
    for least, decimals in ((100, 0), (10, 1), (1, 2)):
        if _rounded(value) >= least:
            return f"{value:.{decimals}f}"
    return f"{value:.3g}"
