"""Timing strategies: rank 0's decisions between two blocks of a visit, how many repetitions come
next and when there have been enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .blocks import Blocks
from .collector import SampleCollector
from .counters import CounterReader
from .samples import Samples
from .time_limits import TIMER_SHARE, samples_per_stamp, stop_rule, warm_up_rule
from .visit_setup import VisitSetup

# its repetitions, whether to check the payload before it, and the stop reason if there is none
NextBlock = tuple[int, bool, str | None]


class TimingStrategy:
    """What all strategies decide alike. The first measured block follows from the warm-up."""

    def __init__(self, setup: VisitSetup, collector: SampleCollector) -> None:
        self.setup = setup
        self.collector = collector
        self.stop_rule = stop_rule(setup.planned, setup.settings)
        self.warm_up_rule = warm_up_rule(
            setup.planned,
            setup.settings,
            self.stop_rule.budget_s,
            setup.number,
            setup.slow_start,
        )
        self.typical_s = 0.0  # per sample in the warm-up

    @property
    def findings(self) -> Mapping[str, Any]:
        """Values of columns, on rank 0."""
        return {}

    @property
    def operation_s(self) -> float | None:
        """The time of an operation, where another one than the median of the repetitions counts."""
        return None

    @property
    def begins_fresh(self) -> bool:
        """Whether what is measured begins over connections that nothing has used: of a soak whose
        ramp belongs to it."""
        return self.warm_up_rule.trial

    def samples_per_stamp(self, sample_s: float) -> int:
        """block_k, for samples that take `sample_s`."""
        empty_s = self.setup.empty_sample_s.get(self.setup.planned.case.engine, 0.0)
        return samples_per_stamp(self.setup.planned, sample_s, empty_s / TIMER_SHARE)

    def end_warm_up(self, sample_s: float, spent_s: float) -> None:
        """The warm-up has taken `spent_s`, and a sample in it `sample_s`."""
        self.typical_s = sample_s
        if self.setup.settings.timing.visits > 1:  # each visit warms up anew
            self.stop_rule = self.stop_rule.after_warm_up(spent_s)

    def first_block(self, blocks: Blocks, stamp_s: float) -> int:
        """The repetitions of the first measured block, if `stamp_s` is the time between two
        stamps."""
        n = self.stop_rule.next_block(np.zeros(0), 0.0, stamp_s, blocks.last.meeting_s)
        return blocks.bounded(n)

    def begin(self, samples: Callable[[str], Samples], counters: CounterReader) -> None:
        """The measured phase begins; `samples` are those so far, with a stop reason."""

    def next_block(self, blocks: Blocks, check_s: float) -> NextBlock:
        """Decide after a measured block; `check_s` is the time of the last check."""
        raise NotImplementedError

    def save_interrupted(self) -> None:
        """Save what has been measured of a visit that is interrupted. Called from another thread
        only while the main thread is in a C call."""


class ByStopRule(TimingStrategy):
    """A visit goes on until it is precise enough, has the wanted repetitions or no more time."""

    def __init__(self, setup: VisitSetup) -> None:
        super().__init__(setup, SampleCollector(setup.planned))
        # once; with several visits, the checks at their ends are enough
        self._check_next = setup.settings.timing.visits == 1

    def next_block(self, blocks: Blocks, check_s: float) -> NextBlock:
        values = self.collector.times("measure")
        check = self._check_next
        self._check_next = False
        n = self.stop_rule.next_block(values, blocks.spent_s, self.typical_s, blocks.last.meeting_s)
        return blocks.bounded(n), check, self.stop_rule.reason(values, blocks.spent_s)
