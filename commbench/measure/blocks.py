"""The blocks of a visit: repetitions that all ranks run without a meeting, and whose stamps rank 0
collects after them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.protocols import Runner
from commbench.hardware.host import core_wait_s

from .collector import SampleCollector
from .counters import CounterReader
from .visit_setup import VisitSetup

BLOCK_STAMPS = 1_000_000  # of all ranks together, which rank 0 receives in one meeting


@dataclass(frozen=True)
class BlockResult:
    """How a block of n repetitions went on this rank; `failed_ranks` is known on rank 0.

    `unsupported`: the problem is an operation that the library does not support, such as a capture.
    """

    n: int = 1
    total_s: float = 0.0  # including its meetings
    meeting_s: float = 0.0
    failed_ranks: int = 0
    problem: str | None = None
    unsupported: bool = False


class Blocks:
    """Runs one block after another. `spent_s` is the time in them, `loop_s` that in their
    repetitions, `waited_s` that of it in which the timed thread was ready but had no core (NaN
    where the kernel does not tell), all since the last restart of the clock."""

    def __init__(
        self, setup: VisitSetup, collector: SampleCollector, counters: CounterReader
    ) -> None:
        self._setup = setup
        self._collector = collector
        self._counters = counters
        self.last = BlockResult()
        self.restart_clock()

    def restart_clock(self) -> None:
        self.spent_s = 0.0
        self.loop_s = 0.0
        self.waited_s = 0.0

    def bounded(self, n: int) -> int:
        """At most n repetitions, as many as rank 0 can receive."""
        return min(n, max(1, BLOCK_STAMPS // len(self._setup.planned.active)))

    def run(self, runner: Runner, n: int, phase: str) -> None:
        """Run n repetitions on all ranks, and collect the stamps on rank 0."""
        setup = self._setup
        meeting = f"{phase} of {setup.planned.case}"
        stamps = np.zeros((0, 0, 2), dtype=np.int64)
        problem = None
        unsupported = False
        begin_s = time.perf_counter()
        setup.progress.enter(meeting, runner, setup.deadline_s)
        waited_before_s = core_wait_s()
        loop_begin_s = time.perf_counter()
        try:
            stamps = runner(n)
        except (CommunicationError, Unsupported) as error:
            problem = str(error)
            unsupported = isinstance(error, Unsupported)
        ran_s = time.perf_counter() - loop_begin_s
        self.waited_s += core_wait_s() - waited_before_s
        setup.progress.enter(f"the meeting after {meeting}" + (f", {problem}" if problem else ""))
        setup.communicator.deliver()
        self._counters.after_block(phase)
        parts = setup.control.collect(stamps, setup.deadline_s, meeting)
        total_s = time.perf_counter() - begin_s
        failed_ranks = sum(part.shape[1] != n for part in parts)
        if parts and not failed_ranks:
            self._collector.add_parts(phase, parts)
        # repetitions on a virtual clock take no time: blocks can't be made to last as long as a
        # meeting
        is_virtual = setup.planned.case.has_model_clock
        meeting_s = 0.0 if is_virtual else total_s - ran_s
        self.last = BlockResult(n, total_s, meeting_s, failed_ranks, problem, unsupported)
        self.spent_s += total_s
        self.loop_s += ran_s
