"""One visit of a case: allocate, agree, connect, check, warm up, repeat in blocks, check again; the
result is Samples.

No rank decides alone: after each block of repetitions rank 0 has the stamps of all ranks, and all
ranks receive its decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.buffers.memory import CheckedBuffers
from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.errors import CommunicationError, Unsupported, WorldBroken
from commbench.core.layout import Layout
from commbench.core.protocols import Communicator, Control, Runner
from commbench.engines.lowered import now_ns
from commbench.hardware.host import interference_counters
from commbench.hardware.network import byte_counters
from commbench.results.columns import INTERRUPTED
from commbench.world.heartbeat import Progress

from .samples import (
    Counts,
    Failure,
    MeasuredCounters,
    Outcome,
    Refused,
    Samples,
    SoakTimeline,
    Timeline,
    Timer,
)
from .time_limits import block_deadline_s, samples_per_stamp, stop_rule, warm_up_rule
from .window import GlobalClocks, Window

BLOCK_STAMPS = 1_000_000  # of all ranks together, which rank 0 receives in one meeting
# some drivers take tens of ms for a GPU's counters, a fifth of a short block
SLOW_COUNTERS_NS = 1_000_000
SALTS_OF_VISIT = 16  # more than a visit uses, except in a soak
SOAK_BLOCK_S = 1.0  # the longest time of a soak without a decision
FLUSH_S = 5.0  # between two saves of a soak
CHECK_SHARE = 0.003  # of a soak that the checks of its payload may take
RUNNING_TIMES = 10_000  # evenly spaced, from which the row of an unfinished soak is made

Sink = Callable[[Samples], None]  # receives the samples of a running soak, on rank 0


class _Stopped(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


@dataclass
class CaseVisit:
    """One visit of a case, made by the ranks of its layout only.

    `empty_sample_s` is used on rank 0 (see Conditions); `clocks` are needed for sync=window. With
    `slow_start`, known on rank 0, the first visit warms up for a second: TCP takes that long to
    reach its rate.
    """

    planned: Planned
    communicator: Communicator
    control: Control
    settings: Settings
    empty_sample_s: Mapping[str, float]
    sink: Sink
    progress: Progress
    clocks: GlobalClocks | None = None
    number: int = 1  # of the visits of its case
    first_block_k: int | None = None  # of the first visit, which later ones keep
    slow_start: bool = False
    window: Window | None = None  # with sync=window
    # of this rank's counters
    readings: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    measured: MeasuredCounters = field(default_factory=MeasuredCounters)
    slow_counters: bool = False  # read only at the first call, after the warm-up and at the end
    wrong: int = 0  # elements in all checks; on rank 0 until its next decision
    failed: int = 0  # ranks that did not complete the last block, on rank 0
    problem: str | None = None
    # the problem is an operation that the library does not support, such as a capture
    unsupported: bool = False
    last_n: int = 1
    block_k: int = 1
    connected: bool = False  # the steps have run
    block_s: float = 0.0  # of the last block, including its meeting
    meeting_s: float = 0.0  # of that meeting
    spent_s: float = 0.0  # in the blocks of this phase
    check_s: float = 0.0  # that the last check of the payload took
    loop_s: float = 0.0  # of a soak, inside its repetitions
    unmeasured_s: float | None = None  # of a soak, outside its repetitions; on rank 0
    typical_s: float = 0.0  # per sample in the warm-up, on rank 0
    warmup_s: float = 0.0
    steady: bool = True  # whether the warm-up ended before its limit; on rank 0

    def __post_init__(self) -> None:
        planned = self.planned
        timing = self.settings.timing
        self.timeline = (
            SoakTimeline(planned, timing.interval_s) if timing.is_soak else Timeline(planned)
        )
        self.rule = stop_rule(planned, self.settings)
        self.warm_up = warm_up_rule(self.settings, self.rule.budget_s, self.number, self.slow_start)
        self.payload = CheckedBuffers(planned, SALTS_OF_VISIT * self.number)
        self.programs = {rank: planned.program(rank) for rank in self.communicator.hosted}
        self.deadline_s = block_deadline_s(planned, self.settings)
        # with several visits, the checks at their ends are enough
        self.check_next = timing.visits == 1

    def measure(self) -> Outcome:
        """Measure; returns the samples on rank 0, and ones without blocks on the other ranks."""
        try:
            return self._visit()
        except _Stopped as stop:
            return stop.outcome
        except BaseException:
            self.save_interrupted()
            raise
        finally:
            self.payload.buffers.clear()

    def _visit(self) -> Outcome:
        self.progress.enter(f"the preparation of {self.planned.case}")
        problem = None
        try:
            self.payload.allocate(self.communicator, self.programs)
        except MemoryError as error:
            problem = f"out of memory on rank {self.control.rank} at that moment: {error}"
        self._agree(problem)
        if self.planned.case.sync == "window":
            self._open_window()
        runner = self._prepare(1)
        self.payload.fill()
        self._run(runner, 1, "connect")
        self._check("start")
        self.connected = True
        if self.planned.case.timing_mode == "graph":  # the first call was not captured
            runner = self._prepare(1)
        block_k, n = self._warm_up(runner)
        if self.slow_counters:  # the reading before the measured repetitions
            self._read_counters("warmup")
        if block_k > 1:
            runner = self._prepare(block_k)
            self.payload.zero = any(program.reset for program in self.programs.values())
        # from here on the checks are of data that timed repetitions have moved
        self.payload.refill()
        self.spent_s = self.loop_s = 0.0
        self.begun_s = time.monotonic()
        self.saves = Timer(self.begun_s)
        self.checks = Timer(self.begun_s)
        stop_reason = self._measure(runner, n)
        self._check("end", copies=self.last_n)
        if self.payload.zero:
            self._check_with_payload()
        self.timeline.close()
        return self._samples(stop_reason)

    def save_interrupted(self) -> None:
        """Pass the samples of an interrupted soak to the sink. Called from another thread only
        while the main thread is in a C call."""
        if self.settings.timing.is_soak and self.control.rank == 0:
            self.timeline.close()
            if self.timeline.repetitions("measure"):
                self.sink(self._samples(INTERRUPTED))

    # ------------------------------------------------------------ phases

    def _open_window(self) -> None:
        assert self.clocks is not None
        try:
            clock = self.clocks.of(self.planned.members, self.control, self.deadline_s)
        except Unsupported as error:  # raised on all ranks
            raise _Stopped(Refused(str(error))) from error
        self.window = Window(clock, self.control, self.planned.active, self.timeline)

    def _prepare(self, block_k: int) -> Runner:
        self.block_k = block_k
        problem = None
        runner = None
        self.timeline.operations = self.planned.shape.operations_per_sample * block_k
        try:
            programs = {rank: program.repeated(block_k) for rank, program in self.programs.items()}
            mode = replace(self.planned.case.mode, connected=self.connected)
            runner = self.communicator.prepare(programs, self.payload.buffers, mode)
        except Unsupported as error:
            problem = str(error)
        self._agree(problem, unsupported=True)
        assert runner is not None
        return runner

    def _agree(self, problem: str | None, unsupported: bool = False) -> None:
        """Skip the case on all ranks if any of them has a problem; `unsupported` is that of
        Refused."""
        agreed = self.control.agree(problem, self.deadline_s, f"preparing {self.planned.case}")
        if agreed is not None:
            raise _Stopped(Refused(agreed, unsupported))

    def _warm_up(self, runner: Runner) -> tuple[int, int]:
        """Repeat until steady; returns block_k and the number of repetitions of the first measured
        block."""
        n, block_k, first = self._decide(self._first_warm_up, "before the warm-up")
        self.spent_s = 0.0
        while n > 0:
            n, block_k, first = self._repeat(runner, n, "warmup", partial(self._next_warm_up, n))
        return block_k, first

    def _first_warm_up(self) -> tuple[int, int, int]:
        """The repetitions of the first warm-up block, block_k, and the repetitions of the first
        measured block."""
        first_call_s = float(self.timeline.times("connect")[0])
        n = self._bounded(self.warm_up.first_block(self.block_s, first_call_s))
        return (n, 1, 1) if n else (0, 1, self._next_block(np.zeros(0), 0.0, first_call_s))

    def _next_warm_up(self, n: int) -> tuple[int, int, int]:
        values = self.timeline.times("warmup")
        self.typical_s = float(np.median(values))
        self.warmup_s = self.spent_s
        more, self.steady = self.warm_up.next_block(values, self.spent_s, n, self.meeting_s)
        if more:
            return self._bounded(more), 1, 1
        if self.settings.timing.visits > 1:  # each visit warms up anew
            self.rule = self.rule.after_warm_up(self.warmup_s)
        empty_s = self.empty_sample_s.get(self.planned.case.engine, 0.0)
        fitting_k = samples_per_stamp(
            self.planned, empty_s, self.typical_s, self.settings.timing.is_soak
        )
        block_k = self.first_block_k or fitting_k
        return 0, block_k, self._next_block(np.zeros(0), 0.0, self.typical_s * block_k)

    def _measure(self, runner: Runner, n: int) -> str:
        """Measure blocks until the rule is satisfied or the soak's duration is over; returns the
        stop reason."""
        stop_reason = None
        while stop_reason is None:
            decision = self._next_soak if self.settings.timing.is_soak else self._next_or_stop
            next_n, check, stop_reason = self._repeat(runner, n, "measure", decision)
            if check and stop_reason is None:
                self._check("middle", copies=n)
                self.payload.refill()
            n = next_n
        return str(stop_reason)

    def _next_or_stop(self) -> tuple[int, bool, str | None]:
        """The next block's repetitions, whether to check now (once per visit), and the stop reason;
        on rank 0."""
        values = self.timeline.times("measure")
        check = self.check_next
        self.check_next = False
        # a window includes the time between repetitions
        between_s = self.spent_s if self.window is None else 0.0
        return (
            self._next_block(values, between_s, self.typical_s),
            check,
            self.rule.reason(values, self.spent_s),
        )

    def _next_soak(self) -> tuple[int, bool, str | None]:
        """The same for a soak, which is checked and saved from time to time."""
        now_s = time.monotonic()
        each_s = self.block_s / self.last_n
        left_s = self.settings.case_s - (now_s - self.begun_s)
        self.unmeasured_s = max(0.0, now_s - self.begun_s - self.loop_s)
        if (
            isinstance(self.timeline, SoakTimeline)
            and left_s > 0
            and self.saves.due(now_s, FLUSH_S)
        ):
            self.timeline.later(self._save_running)
        # the last block must not take much longer
        block_s = min(SOAK_BLOCK_S, max(left_s / 2, SOAK_BLOCK_S / 10))
        n = self._bounded(max(1, int(block_s / max(each_s, 1e-9))))
        # filling the buffers again takes about as long as the check
        check = self.checks.due(now_s, max(FLUSH_S, 2 * self.check_s / CHECK_SHARE))
        return n, check, "duration" if left_s <= 0 else None

    def _save_running(self) -> None:
        """Pass a soak's new blocks to the sink, and drop them. Called in the timeline's thread."""
        # empty while all repetitions of a window began late
        if len(times := self.timeline.times("measure")):
            self.sink(
                replace(self._samples("running"), series=times[:: -(-len(times) // RUNNING_TIMES)])
            )
            self.timeline.forget()

    def _repeat(self, runner: Runner, n: int, phase: str, decision: Callable[[], Any]) -> Any:
        """Run n repetitions on all ranks; returns rank 0's decision on all ranks."""
        self._run(runner, n, phase)
        return self._decide(decision, f"after {phase}")

    def _run(self, runner: Runner, n: int, phase: str) -> None:
        """Run n repetitions on all ranks, and collect the stamps on rank 0."""
        stamps = np.zeros((0, 0, 2), dtype=np.int64)
        starts = None
        begin_s = time.perf_counter()
        meeting = f"{phase} of {self.planned.case}"
        if self.window is not None:
            self.progress.enter(f"the meeting before {meeting}")
            starts = self.window.starts(n, phase == "measure", self.deadline_s)
        self.progress.enter(meeting, runner, self.deadline_s)
        loop_begin_s = time.perf_counter()
        try:
            stamps = runner(n) if starts is None else runner(n, starts)
        except (CommunicationError, Unsupported) as error:
            self.problem = str(error)
            self.unsupported = isinstance(error, Unsupported)
        ran_s = time.perf_counter() - loop_begin_s
        self.loop_s += ran_s
        self.progress.enter(
            f"the meeting after {meeting}" + (f", {self.problem}" if self.problem else "")
        )
        if not self.slow_counters:
            self._read_counters(phase)
        parts = self.control.collect(stamps, self.deadline_s, meeting)
        self.block_s = time.perf_counter() - begin_s
        # repetitions on a virtual clock take no time: blocks can't be made to last as long as a
        # meeting
        self.meeting_s = 0.0 if self.planned.case.engine == "virtual" else self.block_s - ran_s
        self.spent_s += self.block_s
        self.last_n = n
        self.failed = sum(part.shape[1] != n for part in parts)
        if parts and not self.failed:
            (self.window or self.timeline).add_parts(phase, parts)
        if self.window is not None and self.window.problem:
            self.problem = self.window.problem
            self.failed = self.control.size

    def _read_counters(self, phase: str) -> None:
        begin_ns = now_ns()
        several_nodes = Layout.parse(self.planned.case.layout).nodes > 1
        counters = self.communicator.counters() | (byte_counters() if several_nodes else {})
        counters |= self.measured.reading(counters, phase)
        self.readings += [(now_ns(), counters)] if counters else []
        self.slow_counters |= not self.connected and now_ns() - begin_ns > SLOW_COUNTERS_NS

    def _decide(self, decision: Callable[[], Any], when: str) -> Any:
        """Rank 0's decision, on all ranks. A failed block or a wrong element since the last
        decision ends the visit."""
        good = self.control.rank == 0 and not self.failed and not self.wrong
        value = [self.failed, self.wrong, decision() if good else None]
        failed, self.wrong, decided = self.control.decide(
            value, self.deadline_s, f"{when} of {self.planned.case}"
        )
        if failed:
            reason = (
                self.control.agree(self.problem, self.deadline_s, when)
                or "fewer repetitions than were agreed"
            )
            # other ranks may have messages in flight: the library is not usable
            if failed < self.control.size:
                raise WorldBroken(
                    f"{self.planned.case}: {reason}, on {failed} of {self.control.size} ranks"
                )
            raise _Stopped(Refused(reason, True) if self.unsupported else Failure(reason))
        if self.wrong:
            self.timeline.close()
            raise _Stopped(self._samples("wrong_payload"))
        return decided

    def _next_block(self, values: NDArray[np.float64], spent_s: float, hint_s: float) -> int:
        return self._bounded(self.rule.next_block(values, spent_s, hint_s, self.meeting_s))

    def _bounded(self, n: int) -> int:
        most = n if self.window is None else self.window.most(n)
        return min(n, max(1, min(most, BLOCK_STAMPS // len(self.planned.active))))

    # ------------------------------------------------------------ checks and the result

    def _check(self, when: str, copies: int = 1) -> None:
        """Count the wrong elements of all ranks on rank 0, and gather the readings of their
        counters there."""
        begin_s = time.monotonic()
        self.progress.enter(f"the check at the {when} of {self.planned.case}")
        if when == "end" and self.slow_counters:
            self._read_counters("measure")
        if (
            when != "middle"
            and self.settings.timing.visits > 1
            and len(self.communicator.hosted) == 1
        ):
            first_of_node = (
                self.control.rank % Layout.parse(self.planned.case.layout).ranks_per_node == 0
            )
            self.readings.append((now_ns(), interference_counters(first_of_node)))
        value = [self.payload.count_wrong(copies), self.readings]
        gathered = self.control.gather(
            value, self.deadline_s, f"check at the {when} of {self.planned.case}"
        )
        self.readings = []
        for rank, (wrong, readings) in enumerate(gathered):
            self.wrong += wrong
            for t_ns, counters in readings:
                self.timeline.count(Counts(rank, t_ns, counters))
        self.check_s = time.monotonic() - begin_s

    def _check_with_payload(self) -> None:
        """Run and check one more repetition: in-place sums that were not reset between two stamps
        moved zeros."""
        self.payload.zero = False
        block_k = self.block_k
        runner = self._prepare(1)
        self.payload.refill()
        self._repeat(runner, 1, "check", lambda: None)
        self._check("end")
        self.block_k = block_k

    def _samples(self, stop_reason: str) -> Samples:
        timeline = self.timeline
        window = self.window
        connect_times = timeline.times("connect")
        return Samples(
            ranks=self.planned.active,
            blocks=tuple(timeline.blocks),
            block_k=self.block_k,
            stop_reason=stop_reason,
            wrong_elements=self.wrong,
            counts=tuple(timeline.counts),
            series=(
                timeline.times("measure") if window is not None or not timeline.complete else None
            ),
            repetitions=timeline.repetitions("measure"),
            first_call_s=float(connect_times[0]) if len(connect_times) else None,
            late_repetitions=None if window is None else window.late,
            clock_error_s=None if window is None else window.error_ns * 1e-9,
            spent_s=self.spent_s,
            warmup_s=self.warmup_s,
            steady=self.steady,
            unmeasured_s=self.unmeasured_s,
        )
