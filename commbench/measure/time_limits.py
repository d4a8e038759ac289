"""Time limits: the rules that end a visit and a case, the samples between two stamps, and when a
rank is late."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.states import INTERRUPTED
from commbench.core.variables import BATCH_TIMED
from commbench.stats.series import SMALLEST_INTERVAL, Series, half_width, steady

from .visits import CaseRecord, Visit, estimate

MEETING_S = 120.0  # for preparations that every rank does at its own pace
BLOCK_S = 0.5  # the longest time without a decision
MEMORY_S_PER_BYTE = 1 / 0.2e9  # slow enough for a first touch on a busy machine
MAX_REPETITIONS = {
    "initiator": 10_000,
    "receiver": 2_000,
    "max_over_ranks": 2_000,
    "max_over_senders": 2_000,
}
MAX_WINDOW_REPETITIONS = 200  # where a repetition is a window of messages
TIMER_SHARE = 0.05  # of a sample that reading the clock may take (Hoefler & Belli 2015)
WARMUP_SHARE = 0.2
WARMUP_CAP_S = 5.0  # of a visit's time, with a maximum: some series never become steady
# repetitions: on a virtual clock they take no time, but their samples take memory
MAX_WARMUP_BLOCK = 10_000
SLOW_START_S = 1.0  # of a warm-up over TCP
SHORT_CALLS = 20
SHORT_CALL_S = 0.01  # of a trial
MAX_BLOCK_K = 64
STREAM_STAMP_S = 0.01  # of writes between two stamps, also in a soak
MAX_STREAM_BLOCK_K = 4096
LEAST_VISITS = 3  # of a case with several, whatever they take: two visits tell little
BATCH_K = 20  # timers with several samples per stamp; as in nccl-tests

LONG_S = 1.0
SHORT_S = 0.1  # seconds per sample at which the least number of repetitions changes
LONGEST_MEETING_S = 0.005  # a block lasts at least as long as the meeting after it, up to this
GROWTH = 1.25  # the interval is checked each time n has grown by this factor
STABLE_SPREAD = 0.05
STABLE_WINDOW = 65  # nvbench's stdrel: noise within 5 % over more than 64 samples
HOPELESS_SHARE = 0.25  # of the affordable repetitions: the rest could at best halve the interval
HOPELESS_MISS = 1.5  # ratio to the target of what all of them would reach


@dataclass(frozen=True)
class StopRule:
    """Decides on rank 0, between two blocks, whether a visit has been measured enough.

    `target` is the wanted relative half-width of the interval with quantile `z`; `fixed` is a
    number of repetitions to make instead. `share` is a visit's part of the least number of
    repetitions of a case. `values` are seconds per sample (of block_k operations); `spent_s` counts
    from the first measured repetition.
    """

    target: float
    z: float
    max_repetitions: int
    budget_s: float
    fixed: int | None = None
    share: float = 1.0

    def reason(self, values: Series, spent_s: float) -> str | None:
        """The stop reason, or None to continue."""
        n = values.size
        if self.fixed is not None:
            over = n >= 1 and spent_s > self.budget_s
            return "fixed" if n >= self.fixed else "budget" if over else None
        width = half_width(values, self.z)
        if width <= self.target and n >= self._least(float(np.median(values))):
            return "ci"
        if n >= self.max_repetitions:
            return "max_repetitions"
        # waiting for an interval may take twice the budget
        enough = math.ceil(SMALLEST_INTERVAL * self.share) if spent_s <= 2 * self.budget_s else 1
        if n >= enough and spent_s * (n + 1) / n > self.budget_s:  # another repetition has no time
            return "budget"
        return "noise_stable" if self._hopeless(values, spent_s, width) else None

    def next_block(
        self, values: Series, spent_s: float, hint_s: float = 0.0, meeting_s: float = 0.0
    ) -> int:
        """Repetitions of the next block, at least 1: half the least number, the rest of it, then
        growth by 1.25.

        By the times so far, it lasts at most half a second and the rest of the budget, and at least
        `meeting_s`, which the meeting of the ranks after a block takes. For the first block
        `hint_s` is a sample's time in the warm-up.
        """
        n = values.size
        sample_s = float(np.median(values)) if n else hint_s
        least = self._least(sample_s)
        wanted = max(least - n, math.ceil(n * (GROWTH - 1))) if n else math.ceil(least / 2)
        # stragglers and what lies between the samples (barriers, decisions) spend time too
        cost_s = max(sample_s, spent_s / n if n else 0.0)
        if cost_s > 0:
            wanted = max(wanted, round(min(meeting_s, LONGEST_MEETING_S) / max(sample_s, 1e-9)))
            wanted = math.floor(min(wanted, BLOCK_S / cost_s, (self.budget_s - spent_s) / cost_s))
        return max(1, min(wanted, (self.fixed or self.max_repetitions) - n))

    def after_warm_up(self, warmup_s: float) -> StopRule:
        """The rule for the rest of a visit whose budget includes its warm-up; at least half is left
        for measuring."""
        return replace(self, budget_s=max(self.budget_s / 2, self.budget_s - warmup_s))

    def _least(self, sample_s: float) -> int:
        by_time = 6 if sample_s > LONG_S else 10 if sample_s > SHORT_S else 30
        return self.fixed or math.ceil(by_time * self.share)

    def _hopeless(self, values: Series, spent_s: float, width: float) -> bool:
        """nvbench's criterion: the noise is stable, and more repetitions would not reach the
        target.

        A quarter of the affordable repetitions are made, all of them would clearly miss the target
        at 1/sqrt(n), and the relative interquartile range changed by less than 5 % over the last
        third (at least 65 samples).
        """
        n = values.size
        window = max(STABLE_WINDOW, values.size // 3)
        affordable = min(
            self.max_repetitions, self.budget_s * n / spent_s if spent_s > 0 else math.inf
        )
        if n < max(3 * STABLE_WINDOW, HOPELESS_SHARE * affordable):
            return False
        cuts = [
            np.percentile(values[: n - back], [25, 50, 75]) for back in (0, window // 2, window)
        ]
        spreads = [(third - first) / median if median else 0.0 for first, median, third in cuts]
        misses = width * math.sqrt(n / affordable) > HOPELESS_MISS * self.target
        return bool(misses and max(spreads) - min(spreads) <= STABLE_SPREAD * max(spreads))


@dataclass(frozen=True)
class WarmUpRule:
    """How long a visit warms up: at least `repetitions` and `seconds`, then until steady, but no
    longer than `limit_s`.

    A `trial` is for a soak without a warm-up: a few short calls show how long they take.
    """

    repetitions: int
    seconds: float
    limit_s: float
    trial: bool = False

    def first_block(self, sample_s: float, first_call_s: float) -> int:
        """Repetitions of the first block, 0 for no warm-up; `sample_s` is the first call's time
        with its meeting."""
        if self.trial:
            return SHORT_CALLS if first_call_s < SHORT_CALL_S else 0
        return (
            self._affordable(sample_s, self.repetitions) if self.repetitions or self.seconds else 0
        )

    def next_block(
        self, values: Series, spent_s: float, last: int, meeting_s: float = 0.0
    ) -> tuple[int, bool]:
        """Repetitions of the block after one of `last`, 0 for none, and whether the times are
        steady; `meeting_s` is as in StopRule.
        """
        is_steady = self.trial or steady(values)
        enough = len(values) >= self.repetitions and spent_s >= self.seconds
        if (enough and is_steady) or spent_s >= self.limit_s:
            return 0, is_steady
        sample_s = float(np.median(values))
        least = round(min(meeting_s, LONGEST_MEETING_S) / max(sample_s, 1e-9))
        return self._affordable(sample_s, max(2 * last, least)), is_steady

    def _affordable(self, sample_s: float, n: int) -> int:
        """At most n repetitions, and no more than fit into one block."""
        block_s = min(BLOCK_S, self.limit_s)
        return max(1, min(n, MAX_WARMUP_BLOCK, int(block_s / max(sample_s, 1e-9))))


@dataclass(frozen=True)
class VisitRule:
    """Decides on rank 0, after each visit, whether a case has been visited often enough.

    `target` is the wanted relative half-width of the interval over visits, `least` the configured
    number of visits in which no rank waited for a core; `budget_s` and `max_repetitions` are limits
    for all visits of a launch together.
    """

    target: float
    z: float
    least: int
    max_repetitions: int
    budget_s: float

    def reason(
        self, visits: Sequence[Visit], spent_s: float, last: str, earlier: Sequence[Visit] = ()
    ) -> str | None:
        """The stop reason; None for another visit. `visits` are those of this launch, at least one.
        `last` is the stop reason of the last visit, which counts if the case has only one. The
        interval includes `earlier` launches.
        """
        n = len(visits)
        if self.least == 1:
            return last
        if n < self.least:  # beyond LEAST_VISITS they may take twice the budget
            return "budget" if n >= LEAST_VISITS and spent_s > 2 * self.budget_s else None
        calm = [visit for visit in visits if not visit.has_waited]
        repetitions = sum(visit.repetitions for visit in calm)
        is_enough = len(calm) >= self.least
        width = estimate([*earlier, *visits], self.z).half_width
        if is_enough and width <= self.target:
            return "ci"
        if is_enough and repetitions >= self.max_repetitions:
            return "max_repetitions"
        if spent_s * (n + 1) / n > self.budget_s:  # another visit has no time
            return "budget"
        if not is_enough:
            return None
        affordable = min(
            self.budget_s / spent_s if spent_s > 0 else math.inf, self.max_repetitions / repetitions
        )
        return (
            "noise_stable" if width / math.sqrt(affordable) > HOPELESS_MISS * self.target else None
        )

    def stop_reason(self, record: CaseRecord, since: int, last: str) -> str:
        """That of a case whose visits count from launch `since`; INTERRUPTED while it needs
        another visit. `last` is as in `reason`."""
        earlier = [visit for visit in record.visits if visit.launch < since]
        present = record.visits[len(earlier) :]
        reason = self.reason(present, record.spent_s(since), last, earlier) if present else None
        return reason or INTERRUPTED


@dataclass(frozen=True)
class TotalBudget:
    """The time of a whole run. `begun_s` is its start by time.monotonic(), moved back by the time
    that its earlier launches took."""

    total_s: float | None
    begun_s: float

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.begun_s

    def end_reason(self, later_s: float = 0.0) -> str | None:
        """Why no further case is measured `later_s` from now; None while there is time."""
        if self.total_s is None or self.spent_s + later_s <= self.total_s:
            return None
        return f"budget.total_s={self.total_s:g} is spent"


# ---------------------------------------------------------------- the rules of a case, by settings


def stop_rule(planned: Planned, settings: Settings) -> StopRule:
    """The rule that ends one visit, with its share of the time and of the repetitions of its case.

    The target is for all visits together, so that of one of n visits is sqrt(n) times as wide.
    """
    timing = settings.timing
    visits = timing.visits * timing.launches
    return StopRule(
        target=timing.target * math.sqrt(visits),
        z=timing.z,
        max_repetitions=math.ceil(max_repetitions(planned, settings) / visits),
        budget_s=settings.case_s / visits,
        fixed=timing.repetitions,
        share=1 / visits,
    )


def warm_up_rule(
    planned: Planned, settings: Settings, budget_s: float, visit: int, slow_start: bool
) -> WarmUpRule:
    """The rule for a visit with this budget. Later visits, whose library is connected, divide the
    configured warm-up.

    With `slow_start` the first visit warms up for a second, or for the time of the case if that is
    less. On a virtual clock only repetitions count: real seconds say nothing about it.
    """
    timing = settings.timing
    share = 1 if visit == 1 else settings.timing.visits
    seconds = 0.0 if planned.case.has_model_clock else timing.warmup_s / share
    if visit == 1 and slow_start and seconds > 0:
        seconds = max(seconds, min(SLOW_START_S, settings.case_s))
    limit_s = max(seconds, min(WARMUP_CAP_S, WARMUP_SHARE * budget_s))
    repetitions = math.ceil(timing.warmup_repetitions / share)
    return WarmUpRule(repetitions, seconds, limit_s)


def visit_rule(planned: Planned, settings: Settings, extra_s: float = 0.0) -> VisitRule:
    """The rule that ends the visits of a case in one launch; `extra_s` is time that other cases
    have not used."""
    timing = settings.timing
    most = math.ceil(max_repetitions(planned, settings) / timing.launches)
    own_s = settings.case_s / timing.launches
    return VisitRule(timing.target, timing.z, timing.visits, most, own_s + min(extra_s, own_s))


def spacing_s(settings: Settings) -> float:
    """The least time between the starts of two passes, so that all visits of a case still fit into
    its time."""
    timing = settings.timing
    return min(timing.pass_s, settings.case_s / (timing.visits * timing.launches))


def max_repetitions(planned: Planned, settings: Settings) -> int:
    """The limit for all visits of a case: as configured, else by what one repetition of the case
    is."""
    windowed = (planned.case.window or 1) > 1
    most = MAX_WINDOW_REPETITIONS if windowed else MAX_REPETITIONS[planned.shape.headline]
    return most if settings.timing.repetitions is None else settings.timing.repetitions


def samples_per_stamp(
    planned: Planned, sample_s: float, least_s: float, most: int = MAX_BLOCK_K
) -> int:
    """block_k: several samples between two stamps if there would be less than `least_s` between
    them, at most `most`. In BATCH_TIMED there are always several.

    Of a stream the bounds are its own, whatever a strategy asks, since a receiver gets several
    writes at once.
    """
    if planned.case.timer in BATCH_TIMED:
        return max(1, min(BATCH_K, int(BLOCK_S / sample_s))) if sample_s > 0 else BATCH_K
    if planned.shape.is_stream:
        least_s, most = STREAM_STAMP_S, MAX_STREAM_BLOCK_K
    if not planned.benchmark.self_synchronising or planned.case.sync != "none" or sample_s <= 0:
        return 1
    return max(1, min(most, math.ceil(least_s / sample_s)))


def typical_s(planned: Planned, values: Series) -> float:
    """Seconds of a sample in a warm-up: the median; the mean of a stream, of which a receiver gets
    several writes at once."""
    return float(np.mean(values) if planned.shape.is_stream else np.median(values))


def block_deadline_s(planned: Planned, settings: Settings) -> float:
    """How long a block of this case may take before absent ranks are reported as missing."""
    return settings.budget.late_s + 20 * BLOCK_S + 10 * planned.node_bytes * MEMORY_S_PER_BYTE


def case_deadline_s(planned: Planned, settings: Settings) -> float:
    """How long a rank that does not take part in this case waits for the next one."""
    return 3 * block_deadline_s(planned, settings) + 3 * settings.case_s
