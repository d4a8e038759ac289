"""What the user expects of a run (`expect=`): which cases meet it, miss it or were not measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commbench.config.settings import Expectation
from commbench.core.states import case_status
from commbench.results.columns import Row, case_text

COMPARE = {">=": float.__ge__, "<=": float.__le__, ">": float.__gt__, "<": float.__lt__}


@dataclass(frozen=True)
class Verdict:
    """How often expectations were met, and a line for each that was missed or was not measured."""

    met: int = 0
    missed: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.met + other.met,
            self.missed + other.missed,
            self.not_measured + other.not_measured,
        )

    def passes(self, missing: str) -> bool:
        """Whether nothing was missed; what was not measured is missed, unless it is allowed."""
        return not self.missed and (missing == "allow" or not self.not_measured)

    def summary(self) -> str:
        """`expect: 5 of 7 met, 1 missed, 1 not measured`."""
        counts = {"missed": len(self.missed), "not measured": len(self.not_measured)}
        total = self.met + sum(counts.values())
        texts = [f"{count} {name}" for name, count in counts.items() if count]
        return f"expect: {', '.join([f'{self.met} of {total} met', *texts])}"


def verdict_on(expected: Expectation, rows: Iterable[Row]) -> Verdict:
    """Compare every case of the expectation's benchmark. A measured case without that column (a
    barrier has no bandwidth) counts only where no case has it."""
    chosen = [row for row in rows if expected.benchmark in (None, row["benchmark"])]
    begin = f"expect {expected.text}:"
    met = 0
    missed = []
    not_measured = []
    for row in chosen:
        value = row[expected.column]
        if case_status(row) != "ok":
            not_measured.append(f"{begin} {case_text(row)} is {row['status']}: {row['reason']}")
        elif not isinstance(value, int | float):
            continue
        elif COMPARE[expected.comparison](float(value), expected.bound):
            met += 1
        else:
            missed.append(f"{begin} {case_text(row)} has {value:g}")
    if not met and not missed and not not_measured:
        not_measured.append(f"{begin} no measured case has {expected.column}")
    return Verdict(met, tuple(missed), tuple(not_measured))
