"""Case -> samples: allocate, agree, connect, check, warm up, repeat in blocks, check again.

No rank decides alone. Repetitions run in blocks; after each one rank 0 looks at all stamps and everybody reads
what it decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.clock import ClockCost, now_ns
from commbench.core.errors import CommunicationError, Unsupported, WorldBroken
from commbench.core.layout import Layout
from commbench.core.program import Program
from commbench.core.protocols import Communicator, Control, Runner
from commbench.hardware.network import byte_counters
from commbench.world.progress import Progress

from .clock_sync import GlobalClocks
from .deadlines import BLOCK_S, deadline_s
from .payload_check import Contents
from .samples import Counts, Failure, Refused, Samples
from .statistics import steady
from .stopping import samples_a_stamp, stop_rule
from .timeline import Timeline
from .window import Window

BLOCK_STAMPS = 1_000_000  # of all ranks together: what rank 0 takes in at one meeting
WARMUP_SHARE = 0.2  # of a case's time, but
WARMUP_CAP_S = 5.0  # no longer than this: some series never get steady
LARGEST_WARMUP = 10_000  # repetitions of a block: a virtual clock costs nothing, its samples do
FLUSH_S = 5.0  # of a soak: what an interruption could lose

Outcome = Samples | Refused | Failure
Sink = Callable[[Samples], None]  # takes what a soak has so far, on rank 0


def measure(
    job: Planned,
    communicator: Communicator,
    control: Control,
    settings: Settings,
    clock: ClockCost,
    sink: Sink,
    progress: Progress,
    clocks: GlobalClocks | None = None,
) -> Outcome:
    """Called by the ranks of the layout only. Rank 0 of it gets the samples, the others an empty copy of them.

    `clocks` are needed for sync=window.
    """
    case = _Case(job, communicator, control, settings, clock, sink, progress, clocks)
    try:
        return case.run()
    except _Stopped as stop:
        return stop.outcome
    except BaseException:
        case.save()
        raise
    finally:
        case.release()


class _Stopped(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


@dataclass
class _Case:
    job: Planned
    communicator: Communicator
    control: Control
    settings: Settings
    clock: ClockCost
    sink: Sink
    progress: Progress
    clocks: GlobalClocks | None = None
    window: Window | None = None  # where repetitions begin at agreed instants
    readings: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # of this rank's counters
    wrong: int = 0  # elements, in all checks; on rank 0 until it is decided
    failed: int = 0  # ranks whose last block did not end, on rank 0
    problem: str | None = None
    unsupported: bool = False  # the problem is what the library can't do, such as a capture
    last_n: int = 1
    block_k: int = 1
    connected: bool = False  # the steps have run
    block_s: float = 0.0  # of the last block, with its gathering
    spent_s: float = 0.0  # in blocks of the phase
    begun_s: float = 0.0  # when measuring began, and when a soak was last saved
    saved_s: float = 0.0
    typical_s: float = 0.0  # a sample in the warm-up, on rank 0

    def __post_init__(self) -> None:
        job, timing = self.job, self.settings.timing
        one = job.shape.headline == "initiator" and len(job.case.pairs) < 2
        senders = job.senders[:1] if one else job.senders
        interval_s = None if timing.duration_s is None else timing.interval_s
        self.timeline = Timeline(job.shape.headline, job.active, senders, interval_s)
        self.rule = stop_rule(job, self.settings)
        self.contents = Contents(job)

    def run(self) -> Outcome:
        self._agree(self._allocate())
        if self.job.case.sync == "window":
            self._open_window()
        runner = self._prepare(1)
        self.contents.fill()
        self._run(runner, 1, "connect")
        self._check("start")
        self.connected = True
        block_k, n = self._warm_up(runner)
        if block_k > 1:
            runner = self._prepare(block_k)
            self.contents.zero = any(program.reset for program in self._programs().values())
        self._refill()  # from here on the checks look at what timed repetitions have moved
        self.spent_s, self.begun_s = 0.0, time.monotonic()
        self.saved_s = self.begun_s
        reason = self._measure(runner, n) if self.settings.timing.duration_s is None else self._soak(runner, n)
        self._check("end", copies=self.last_n)
        if self.contents.zero:
            self._look_again()
        self.timeline.close()
        return self._samples(reason, runner.engine)

    def save(self) -> None:
        """What is lost otherwise, when the run is interrupted in a soak: this rank's part of it."""
        if self.settings.timing.duration_s is not None and self.control.rank == 0 and len(self._measured()):
            self.timeline.close()
            self.sink(self._samples("interrupted", self.job.case.engine))

    def release(self) -> None:
        self.contents.buffers.clear()

    # ------------------------------------------------------------ phases

    def _allocate(self) -> str | None:
        """Buffers of the hosted ranks; the problem in words, if there is one."""
        self.progress.enter(f"preparing {self.job.case}")
        try:
            self.contents.allocate(self.communicator, self._programs())
        except MemoryError as error:
            return f"out of memory on rank {self.control.rank}: {error}"
        return None

    def _open_window(self) -> None:
        assert self.clocks is not None
        try:
            clock = self.clocks.of(self.job.members, self.control, self._deadline_s)
        except Unsupported as error:  # all ranks know it
            raise _Stopped(Refused(str(error))) from error
        self.window = Window(clock, self.control, self.job.active, self.timeline)

    def _prepare(self, block_k: int) -> Runner:
        self.block_k, problem, runner = block_k, None, None
        self.timeline.operations = self.job.shape.operations_per_sample * block_k
        try:
            programs = {rank: program.repeated(block_k) for rank, program in self._programs().items()}
            mode = replace(self.job.case.mode, connected=self.connected)
            runner = self.communicator.prepare(programs, self.contents.buffers, mode)
        except Unsupported as error:
            problem = str(error)
        self._agree(problem)
        assert runner is not None
        return runner

    def _warm_up(self, runner: Runner) -> tuple[int, int]:
        """Repeat until steady (method 2.4); block_k and the repetitions of the first measured block."""
        n, block_k, first = self._verdict(self._first_warm_up, "before the warm-up")
        self.spent_s = 0.0
        while n > 0:
            n, block_k, first = self._repeat(runner, n, "warmup", partial(self._more_warm_up, runner.engine, n))
        return block_k, first

    def _first_warm_up(self) -> tuple[int, int, int]:
        timing, first = self.settings.timing, self.timeline.times("connect")
        if len(first) and not timing.warmup_repetitions and not timing.warmup_s:  # the ramp is to be measured
            return 0, 1, self._next(np.zeros(0), 0.0, float(first[0]))
        return self._affordable(self.block_s, self.settings.timing.warmup_repetitions), 1, 1

    def _more_warm_up(self, engine: str, n: int) -> tuple[int, int, int]:
        timing, values = self.settings.timing, self.timeline.times("warmup")
        self.typical_s = float(np.median(values))
        enough = len(values) >= timing.warmup_repetitions and self.spent_s >= timing.warmup_s
        if (enough and steady(values)) or self.spent_s >= min(WARMUP_CAP_S, WARMUP_SHARE * self.settings.case_s):
            block_k = samples_a_stamp(self.job, engine, self.clock, self.typical_s)
            return 0, block_k, self._next(np.zeros(0), 0.0, self.typical_s * block_k)
        return self._affordable(self.typical_s, 2 * n), 1, 1

    def _measure(self, runner: Runner, n: int) -> str:
        """Blocks until the rule is satisfied; why it stopped."""
        middle, reason = False, None
        while reason is None:
            following, reason = self._repeat(runner, n, "measure", self._judge)
            if not middle and reason is None:
                self._check("middle", copies=n)
                self._refill()
                middle = True
            n = following
        return str(reason)

    def _judge(self) -> tuple[int, str | None]:
        """The next block's repetitions, and why to stop, by what rank 0 has seen."""
        values = self._measured()
        between_s = self.spent_s if self.window is None else 0.0  # a window knows what a repetition costs
        return self._next(values, between_s, self.typical_s), self.rule.reason(values, self.spent_s)

    def _next(self, values: NDArray[np.float64], spent_s: float, hint_s: float | None) -> int:
        return self._bounded(self.rule.next_block(values, spent_s, BLOCK_S, hint_s))

    def _soak(self, runner: Runner, n: int) -> str:
        """Blocks for a duration. What was gathered goes to the sink and is forgotten, every few seconds."""
        reason = None
        while reason is None:
            following, save, reason = self._repeat(runner, n, "measure", partial(self._judge_soak, n))
            if save and reason is None:
                self._check("middle", copies=n)
                if self.control.rank == 0:
                    self.sink(self._samples("running", runner.engine))
                    self.timeline.forget()
                self._refill()
            n = following
        return str(reason)

    def _judge_soak(self, n: int) -> tuple[int, bool, str | None]:
        now, each_s = time.monotonic(), self.block_s / n
        left_s = self.settings.case_s - (now - self.begun_s)
        save = now - self.saved_s >= FLUSH_S
        self.saved_s = now if save else self.saved_s
        wanted = self._bounded(max(1, int(min(BLOCK_S, left_s) / max(each_s, 1e-9))))
        return wanted, save, "duration" if left_s <= 0 else None

    # ------------------------------------------------------------ repetitions

    def _repeat(self, runner: Runner, n: int, phase: str, judge: Callable[[], Any]) -> Any:
        """Run n repetitions everywhere; what rank 0 makes of all stamps, everywhere."""
        self._run(runner, n, phase)
        return self._verdict(judge, f"after {phase}")

    def _run(self, runner: Runner, n: int, phase: str) -> None:
        """Run n repetitions everywhere and gather the stamps on rank 0."""
        stamps, starts = np.zeros((0, 0, 2), dtype=np.int64), None
        begin, what = time.perf_counter(), f"{phase} of {self.job.case}"
        if self.window is not None:
            self.progress.enter(f"the meeting before {what}")
            starts = self.window.starts(n, phase == "measure", self._deadline_s)
        self.progress.enter(what, runner, self._deadline_s)
        try:
            stamps = runner(n) if starts is None else runner(n, starts)
        except (CommunicationError, Unsupported) as error:
            self.problem, self.unsupported = str(error), isinstance(error, Unsupported)
        self.progress.enter(f"the meeting after {what}" + (f", {self.problem}" if self.problem else ""))
        away = Layout.parse(self.job.case.layout).nodes > 1
        readings = self.communicator.counters() | (byte_counters() if away else {})
        if readings:
            self.readings.append((now_ns(), readings))
        parts = self.control.collect(stamps, self._deadline_s, what)
        self.block_s = time.perf_counter() - begin
        self.spent_s += self.block_s
        self.last_n = n
        self.failed = sum(part.shape[1] != n for part in parts)
        if parts and not self.failed:
            (self.window or self.timeline).add(phase, np.concatenate(parts, axis=0)[list(self.job.active)])
        if self.window is not None and self.window.problem:
            self.problem, self.failed = self.window.problem, self.control.size

    def _verdict(self, judge: Callable[[], Any], when: str) -> Any:
        """One decision about all that rank 0 has seen since the last; a failure or a wrong element ends the case."""
        good = self.control.rank == 0 and not self.failed and not self.wrong
        told = [self.failed, self.wrong, judge() if good else None]
        failed, self.wrong, verdict = self.control.decide(told, self._deadline_s, f"{when} of {self.job.case}")
        if failed:
            self._fail(self.problem, failed, when)
        if self.wrong:
            raise _Stopped(self._samples("wrong_payload", self.job.case.engine))
        return verdict

    def _fail(self, problem: str | None, failed: int, phase: str) -> None:
        reason = self.control.agree(problem, self._deadline_s, phase) or "fewer repetitions than were agreed"
        if failed < self.control.size:  # the others may have messages under way: nothing can follow here
            raise WorldBroken(f"{self.job.case}: {reason}, on {failed} of {self.control.size} ranks")
        raise _Stopped(Refused(reason) if self.unsupported else Failure(reason))

    def _measured(self) -> NDArray[np.float64]:
        return self.timeline.times("measure")

    def _affordable(self, sample_s: float, n: int) -> int:
        share = min(BLOCK_S, WARMUP_SHARE * self.settings.case_s)
        return self._bounded(min(n, LARGEST_WARMUP, int(share / max(sample_s, 1e-9))))

    def _bounded(self, n: int) -> int:
        most = n if self.window is None else self.window.most(n)
        return max(1, min(most, BLOCK_STAMPS // len(self.job.active)))

    # ------------------------------------------------------------ payload

    def _look_again(self) -> None:
        """Sums in place that nothing reset between two stamps moved zeros: one more of them, with a payload."""
        self.contents.zero, block_k = False, self.block_k
        runner = self._prepare(1)
        self._refill()
        self._repeat(runner, 1, "check", lambda: None)
        self._check("end")
        self.block_k = block_k

    def _check(self, when: str, copies: int = 1) -> None:
        """Count the elements that are not what they must be, on all ranks, and take in the counters with them."""
        self.progress.enter(f"the check at the {when} of {self.job.case}")
        wrong = self.contents.count_wrong(copies)
        told = self.control.gather([wrong, self.readings], self._deadline_s, f"check at the {when} of {self.job.case}")
        self.readings = []
        for rank, (amount, readings) in enumerate(told):
            self.wrong += amount
            for t_ns, values in readings:
                self.timeline.count(Counts.of(rank, t_ns, values))

    def _refill(self) -> None:
        """New values: nothing old can pass for new."""
        self.contents.salt += 1
        self.contents.fill()

    # ------------------------------------------------------------ small things

    def _programs(self) -> dict[int, Program]:
        """Of the ranks that live in this process."""
        return {rank: self.job.program(rank) for rank in self.communicator.hosted}

    @property
    def _deadline_s(self) -> float:
        return deadline_s(self.job, self.settings)

    def _agree(self, problem: str | None) -> None:
        verdict = self.control.agree(problem, self._deadline_s, f"preparing {self.job.case}")
        if verdict is not None:
            raise _Stopped(Refused(verdict))

    def _samples(self, reason: str, engine: str) -> Samples:
        timeline, window = self.timeline, self.window
        first = timeline.times("connect")
        return Samples(
            ranks=self.job.active,
            blocks=timeline.blocks(),
            block_k=self.block_k,
            stop_reason=reason,
            wrong_elements=self.wrong,
            engine=engine,
            counts=timeline.counts(),
            series=self._measured() if window is not None or not timeline.complete else None,
            repetitions=timeline.repetitions("measure"),
            first_call_s=float(first[0]) if len(first) else None,
            late_repetitions=None if window is None else window.late,
            clock_error_s=None if window is None else window.error_ns * 1e-9,
        )
