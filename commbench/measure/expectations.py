"""What the user expects of a run (`expect=`): which cases meet it, miss it or were not measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from operator import add
from typing import Literal

from commbench.config.expectations import Expectation
from commbench.core.texts import some_of
from commbench.results.columns import case_text
from commbench.results.intervals import interval_of
from commbench.results.row import Row

MOST_MISSED = 3  # cases that are named in the line of a bound
COMPARE = {">=": float.__ge__, "<=": float.__le__, ">": float.__gt__, "<": float.__lt__}


@dataclass(frozen=True)
class ExpectationResult:
    """How many cases meet and miss expectations; a line for each bound that is missed, and for each
    case that was not measured."""

    met: int = 0
    cases_missed: int = 0
    missed: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()

    def __add__(self, other: ExpectationResult) -> ExpectationResult:
        return ExpectationResult(*map(add, astuple(self), astuple(other)))

    def passes(self, unmeasured: str) -> bool:
        """Whether nothing was missed; what was not measured is missed, unless it is allowed."""
        return not self.missed and (unmeasured == "allow" or not self.not_measured)

    def summary(self) -> str:
        """`expect: 5 of 7 met, 1 missed, 1 not measured`."""
        counts = {"missed": self.cases_missed, "not measured": len(self.not_measured)}
        total = self.met + sum(counts.values())
        texts = [f"{count} {name}" for name, count in counts.items() if count]
        return f"expect: {', '.join([f'{self.met} of {total} met', *texts])}"


def verdict_on(
    expected: Expectation,
    rows: Iterable[Row],
    decided_by: Literal["median", "interval"] = "median",
) -> ExpectationResult:
    """Compare every case that the expectation applies to. A measured case without that column (a
    barrier has no bandwidth) counts only where no case has it.

    By the interval, a case meets a bound if both ends of its interval do.
    """
    chosen = [row for row in rows if _is_meant(expected, row)]
    begin = f"expect {expected.text}:"
    meets = COMPARE[expected.comparison]
    met = 0
    missed = []
    not_measured = []
    for row in chosen:
        value = getattr(row, expected.column)
        if row.status != "ok":
            not_measured.append(f"{begin} {case_text(row)} is {row.status}: {row.reason}")
            continue
        if not isinstance(value, int | float):
            continue
        number = interval_of(row, expected.column) if decided_by == "interval" else None
        if number is not None and not number.is_known:
            not_measured.append(f"{begin} {case_text(row)} has no interval")
            continue
        ends = (value, value) if number is None else (number.low, number.high)
        if all(meets(float(end), expected.bound) for end in ends):
            met += 1
        else:
            interval = f" ({ends[0]:g} .. {ends[1]:g})" if decided_by == "interval" else ""
            missed.append(f"{case_text(row)} has {value:g}{interval}")
    if not met and not missed and not not_measured:
        not_measured.append(f"{begin} no measured case has {expected.column}")
    line = f"{begin} {', '.join(some_of(missed, MOST_MISSED))}"
    return ExpectationResult(met, len(missed), (line,) if missed else (), tuple(not_measured))


def _is_meant(expected: Expectation, row: Row) -> bool:
    if expected.benchmark not in (None, row.benchmark):
        return False
    if expected.layout not in (None, row.layout):
        return False
    if expected.sizes_bytes is None:
        return True
    first, last = expected.sizes_bytes
    return first <= row.message_bytes <= last
