"""Numbers as other tools print them: what their digits leave open, and whether a time and a rate
that stand beside each other can both be true."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from commbench.core.units import format_bytes, format_number, format_seconds

NUMBER = re.compile(r"[0-9]{1,25}(?:\.([0-9]{0,25}))?(?:[eE]([+-]?[0-9]{1,3}))?")
TOLERANCE = 0.01  # beyond the digits: a rate is computed before the time is rounded
NEAR = 0.03  # of a factor that names a cause
CAUSES = (  # how often the rate of a file is the one that its time gives
    (1e9 / 2**30, "as if the rate were in GiB/s"),
    (2**30 / 1e9, "as if 1 GB/s were 2^30 B/s"),
    (8.0, "as if the rate were in Gbit/s, or the size in units of 8 bytes"),
    (2.0, "as if the size were counted in elements of 2 bytes"),
    (4.0, "as if the size were counted in elements of 4 bytes"),
    (1 / 8, "as if the size were in bits"),
    (1 / 2, "as if the size were twice what it says"),
    (1e3, "as if the time were in ms, or the rate in MB/s"),
    (1e-3, "as if the time were in ns, or the rate in TB/s"),
    (1e6, "as if the time were in s"),
)


@dataclass(frozen=True)
class Printed:
    """A number above or at 0, with how far its digits leave it open on either side."""

    value: float
    slack: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Printed:
        """Raises ValueError for what is no plain number."""
        match = NUMBER.fullmatch(text)
        value = float(text) if match else math.inf
        if match is None or not math.isfinite(value):
            raise ValueError(f"{text!r:.40} is not a number")
        decimals = len(match[1] or "") - int(match[2] or 0)
        return cls(value, 0.5 * 10.0 ** min(-decimals, 300))

    def times(self, factor: float) -> Printed:
        """In another unit."""
        return Printed(self.value * factor, self.slack * factor)

    @property
    def low(self) -> float:
        return max(0.0, self.value - self.slack)

    @property
    def high(self) -> float:
        return self.value + self.slack


def plain_number(value: object, slack: float = 0.0) -> Printed:
    """A number of JSON, with what the digits of its program leave open; raises ValueError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(float(str(value))) or float(str(value)) < 0:
        raise ValueError(f"{value!r:.40} is not a number")
    return Printed(float(str(value)), slack)


def contradiction(moved_bytes: int, time_s: Printed, rate: Printed, name: str) -> str | None:
    """Why a time and a rate (B/s) of so many bytes can't both be true; None where they can."""
    if not moved_bytes or not time_s.value:
        return None
    least = moved_bytes / time_s.high * (1 - TOLERANCE)
    most = moved_bytes / time_s.low * (1 + TOLERANCE) if time_s.low else math.inf
    if rate.high >= least and rate.low <= most:
        return None
    given = moved_bytes / time_s.value
    factor = rate.value / given
    cause = next((text for known, text in CAUSES if abs(factor / known - 1) < NEAR), "")
    return (
        f"{format_bytes(moved_bytes)} in {format_seconds(time_s.value)} are"
        f" {format_number(given / 1e9)} GB/s, but {name} is {format_number(rate.value / 1e9)} GB/s"
        f"{', ' if cause else ''}{cause}"
    )
