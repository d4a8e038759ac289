"""What a gate says: an answer for each case, and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from commbench.core.units import format_factor, format_number, plural
from commbench.results.row import Row
from commbench.stats.verdict import GATES, Comparison, Gate, worst

COUNTED: dict[Gate, tuple[str, str]] = {  # of one case, of several
    "FAIL": ("fails", "fail"),
    "SUSPECT": ("is suspect", "are suspect"),
    "UNDECIDED": ("is undecided", "are undecided"),
    "PASS": ("passes", "pass"),
}
MOST_PERCENT = 1000  # from here on a loss is a factor


@dataclass(frozen=True)
class CaseAnswer:
    """`kind`: what `name` is of: a benchmark, or a check that needs no baseline. `reason` is empty
    for PASS; `finding` is what must be said of a case whatever the answer. `case_id` and
    `comparison`: of a case that was compared with healthy launches."""

    kind: str
    name: str
    answer: Gate
    reason: str = ""
    finding: str = ""
    case_id: str = ""
    comparison: Comparison | None = None

    @property
    def is_slower(self) -> bool:
        """Whether it fails or is suspect."""
        return self.answer in ("FAIL", "SUSPECT")


@dataclass(frozen=True)
class GateResult:
    """The answers in the order of tables. `basis`: what they rest on; `findings`: what must be said
    beside them; `notes`: what weakens them."""

    answers: tuple[CaseAnswer, ...]
    basis: tuple[str, ...]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def answer(self) -> Gate:
        """The worst of all cases; UNDECIDED where there is none."""
        return worst(each.answer for each in self.answers)

    def of(self, answer: Gate) -> list[CaseAnswer]:
        return [each for each in self.answers if each.answer == answer]

    def sentence(self) -> str:
        """`FAIL: all_reduce 1x2 1 MiB takes 30 % longer than 8 healthy launches; of 40 cases 1
        fails, 39 pass`."""
        if not self.answers:
            return "UNDECIDED: no case was judged"
        counts = [
            f"{len(given)} {COUNTED[answer][len(given) > 1]}"
            for answer in GATES
            if (given := self.of(answer))
        ]
        text = f"of {plural(len(self.answers), 'case', 'cases')} {', '.join(counts)}"
        if self.answer == "PASS":
            return f"PASS: {text}{self._seen_text()}"
        slowest = max(self.of(self.answer), key=_ratio)
        return f"{self.answer}: {slowest.name}: {slowest.reason}; {text}"

    def _seen_text(self) -> str:
        """The loss that would have been suspect in each case."""
        compared = [each.comparison for each in self.answers if each.comparison is not None]
        if not compared:
            return ""
        least = max(each.suspect_ratio for each in compared)
        return f"; a measured loss above {loss_text(least)} would have been suspect in each"


def _ratio(answer: CaseAnswer) -> float:
    """The times of a case over the healthy ones; above all where it was not measured."""
    return math.inf if answer.comparison is None else answer.comparison.ratio.value


# ---------------------------------------------------------------- texts


def unmeasured_text(row: Row) -> str:
    return f"{row.status}: {row.reason or 'no reason given'}"


def loss_text(ratio: float) -> str:
    """`3.2 %`, and from MOST_PERCENT on a factor."""
    loss = round(100 * (ratio - 1), 1) + 0.0  # no -0.0
    return f"{loss:.1f} %" if loss < MOST_PERCENT else f"{format_factor(ratio)} the time"


def is_impossible(row: Row) -> bool:
    """Whether the rate is above what the hardware can carry."""
    return "impossible" in row.warnings


def above_limit(row: Row) -> str:
    rate = row.busbw_gb_per_s or row.algbw_gb_per_s or 0.0
    limit = format_number(row.limit_gb_per_s or 0.0)
    return (
        f"{format_number(rate)} GB/s is above the limit of {limit} GB/s ({row.limit_name}): one of"
        " the two is wrong"
    )
