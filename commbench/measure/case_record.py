"""What rank 0 keeps about a case between its visits, in bounded memory: enough to make its row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commbench.core.case import Planned
from commbench.results.columns import INTERRUPTED
from commbench.world.recovery import EarlierVisits

from .samples import (
    GPU_THROTTLE_REASONS,
    MEASURED_HOST_BOUND,
    RETRANSMITS,
    Block,
    Samples,
    counted_rows,
    repetition_times,
)
from .statistics import Z95, Series
from .time_limits import VisitRule
from .visits import Visit

KEPT_TIMES = 16_000_000  # of all cases of a run together: 128 MB
LEAST_KEPT_TIMES = 3_000  # of a case, however many there are: enough for a p99.9


class CaseRecord:
    """The visits of one row of cases.parquet. It keeps at most `kept` evenly spaced times of each
    visit."""

    def __init__(self, kept: int = KEPT_TIMES, z: float = Z95) -> None:
        self._kept = kept
        self.z = z  # the normal quantile of the wanted level
        self.block_k = 1
        self.wrong_elements = 0  # in the latest visit
        self.visits: list[Visit] = []
        self.times: list[Series] = []  # of each visit, in seconds per operation
        self.stop_reason = INTERRUPTED  # until a rule ends the case
        self.broken: str | None = None  # why the world broke in the visit that followed
        self.first_call_s: float | None = None  # of the first visit
        # of each visit whose stamps were kept: the median difference between the ranks' starts
        self.skews_s: list[float] = []
        self.throttle_masks: set[int] = set()
        # of repetitions before which a GPU waited for its host: worst rank and visit
        self.host_bound_share = 0.0
        self.spent_s = self.warmup_s = 0.0
        self.steady = True
        self.thinned = False
        self.late_repetitions: int | None = None
        self.clock_error_s: float | None = None
        self.unmeasured_s: float | None = None  # of a soak
        # by visit and rank; of earlier starts together at (0, 0)
        self.retransmits_of: dict[tuple[int, int], float] = {}
        # from the start of the first visit to the end of the last, without the time between two
        # starts of the run
        self.visits_s: float | None = None
        self.earlier_visits_s = 0.0  # of earlier starts
        self.last_visit = 0  # its number in samples.parquet
        self.earlier: EarlierVisits | None = None  # of earlier starts of the run, if they count
        self._repetitions: dict[str, int] = {}  # by phase, of the visits so far
        self._blocks = 0

    def continue_after(self, earlier: EarlierVisits, launch: int) -> None:
        """Add the visits of earlier starts. The present launch began with segment `launch`."""
        self.last_visit = earlier.last
        self._blocks = earlier.blocks
        self._repetitions = dict(earlier.repetitions)
        if not earlier.times:
            return
        self.earlier = earlier
        row = earlier.row
        self.block_k = int(row["block_k"])
        for segment, times in zip(map(int, row["visit_segments"]), earlier.times, strict=True):
            self._count(times, segment)
            self.spent_s += (
                float(times.sum()) * row["operations_per_sample"] if segment >= launch else 0.0
            )
        self.first_call_s = row["first_call_s"]
        self.warmup_s = row["warmup_s"]
        self.steady = row["steady"]
        self.late_repetitions = row["late_repetitions"]
        self.clock_error_s = row["clock_error_s"]
        self.visits_s = row.get("visits_s")
        self.earlier_visits_s = self.visits_s or 0.0
        self.skews_s += [] if row.get("skew_s") is None else [row["skew_s"]] * len(self.visits)
        self.retransmits_of = {} if row.get("retransmits") is None else {(0, 0): row["retransmits"]}
        self.thinned |= "thinned" in row["warnings"]

    def add(self, planned: Planned, samples: Samples, segment: int = 0) -> Samples:
        """Count another visit; returns its samples with blocks and repetitions numbered across
        visits."""
        samples = replace(samples, blocks=self._renumbered(samples.blocks))
        self.block_k = samples.block_k
        self.wrong_elements = samples.wrong_elements
        self.unmeasured_s = samples.unmeasured_s
        self.last_visit += 1
        if samples.wrong_elements:  # it may have ended before it measured anything
            return samples
        # of the whole sample: what it takes to connect is not divided among its operations
        if not self.visits:
            connect_s = repetition_times(samples.stamps("connect"), counted_rows(planned), 1)
            self.first_call_s = samples.first_call_s or next(iter(connect_s.tolist()), None)
        times = measured_times(planned, samples)
        self._count(times, segment, samples.repetitions)
        self.thinned |= times.size < (samples.repetitions or 0)
        starts = samples.stamps("measure")[:, :, 0]
        if starts.size:
            self.skews_s.append(float(np.median(np.ptp(starts, axis=0))) * 1e-9)
        self.throttle_masks |= {int(mask) for _, mask in samples.readings(GPU_THROTTLE_REASONS)}
        self.retransmits_of |= {
            (self.last_visit, rank): value for rank, value in samples.readings(RETRANSMITS)
        }
        # the last of each rank
        host_bound = max(dict(samples.readings(MEASURED_HOST_BOUND)).values(), default=0.0)
        self.host_bound_share = max(
            self.host_bound_share, host_bound / max(1, samples.repetitions or 0)
        )
        self.spent_s += samples.spent_s + samples.warmup_s
        self.warmup_s += samples.warmup_s
        self.steady &= samples.steady
        if samples.late_repetitions is not None:
            self.late_repetitions = samples.late_repetitions + (self.late_repetitions or 0)
        if samples.clock_error_s is not None:
            self.clock_error_s = max(samples.clock_error_s, self.clock_error_s or 0.0)
        return samples

    def disturbed(self, passes: frozenset[int]) -> bool:
        """Whether at least half of the visits were made in these passes. Only visits of the latest
        start of the run count; its n-th visit is in its n-th pass."""
        visits = sum(visit.segment == self.visits[-1].segment for visit in self.visits)
        return 0 < visits <= 2 * sum(number <= visits for number in passes)

    def decide(self, rule: VisitRule, launch: int, last: str) -> None:
        """Set the stop reason, which is INTERRUPTED while the case needs another visit in this
        launch; `last` is as in VisitRule.reason, `launch` as in continue_after."""
        earlier = [visit for visit in self.visits if visit.segment < launch]
        present = self.visits[len(earlier) :]
        self.stop_reason = (
            rule.reason(present, self.spent_s, last, earlier) if present else None
        ) or INTERRUPTED

    @property
    def repetitions(self) -> int:
        """Measured repetitions of all visits."""
        return sum(visit.repetitions for visit in self.visits)

    @property
    def retransmits(self) -> int | None:
        """TCP segments that were sent again while measuring; None for a backend that does not count
        them."""
        return round(sum(self.retransmits_of.values())) if self.retransmits_of else None

    def _count(self, times: Series, segment: int, repetitions: int | None = None) -> None:
        """`repetitions` is the number of repetitions where `times` has only some of them."""
        self.visits.append(
            replace(Visit.of(times, segment, self.z), repetitions=repetitions or times.size)
        )
        self.times.append(times[:: max(1, -(-times.size // self._kept))])
        self.thinned |= times.size > self._kept

    def _renumbered(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        before = dict(self._repetitions)
        index = self._blocks
        for block in blocks:
            end = before.get(block.phase, 0) + block.first + block.stamps.shape[1]
            self._repetitions[block.phase] = max(end, self._repetitions.get(block.phase, 0))
        self._blocks += 1 + max((block.index for block in blocks), default=-1)
        return tuple(
            replace(
                block, index=index + block.index, first=before.get(block.phase, 0) + block.first
            )
            for block in blocks
        )


def measured_times(planned: Planned, samples: Samples) -> Series:
    """Seconds per operation of each measured repetition."""
    operations = planned.shape.operations_per_sample * samples.block_k
    if samples.series is not None:
        return samples.series / operations
    return repetition_times(samples.stamps("measure"), counted_rows(planned), operations)
