"""One visit of a case, phase by phase: allocate, agree, connect, check, warm up, measure in blocks,
check again; the result is Samples.

No rank decides alone: after each block of repetitions rank 0 has the stamps of all ranks, and all
ranks receive its decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from commbench.backends.buffers.memory import CheckedBuffers
from commbench.core.annexes import registered
from commbench.core.errors import Unsupported, WorldBroken
from commbench.core.protocols import Runner

from .blocks import Blocks
from .counters import CounterReader
from .measuring import Measuring, strategy_of, with_merge
from .samples import Counts, Failure, Outcome, Refused, Samples
from .time_limits import typical_s
from .visit_setup import VisitSetup

SALTS_OF_VISIT = 16  # more than a visit uses, except in a soak


class _Stopped(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class CaseVisit:
    """One visit of a case, made by the ranks of its layout only."""

    def __init__(self, setup: VisitSetup) -> None:
        self.setup = setup
        self._strategy = strategy_of(setup)
        self._collector = self._strategy.collector
        self._counters = CounterReader(setup)
        self._blocks = Blocks(setup, self._collector, self._counters)
        salt = SALTS_OF_VISIT * setup.number
        self._payload = CheckedBuffers(setup.planned, setup.communicator, salt)
        self._programs = {rank: setup.planned.program(rank) for rank in self._payload.ranks}
        self._connected = False  # the steps have run
        self._block_k = 1
        self._wrong = 0  # elements in all checks; on rank 0 until its next decision
        self._check_s = 0.0  # that the last check of the payload took
        self._warmup_s = 0.0
        self._steady = True  # whether the warm-up ended before its limit; on rank 0
        self._findings: dict[str, Any] = {}  # of features, on rank 0

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
            self._counters.close()
            self._payload.clear()

    def save_interrupted(self) -> None:
        """See TimingStrategy."""
        self._strategy.save_interrupted()

    def _visit(self) -> Outcome:
        case = self.setup.planned.case
        self._allocate()
        runner = self._connect()
        if case.timer == "graph":  # the first call was not captured
            runner = self._prepare(1)
        block_k, n = self._warm_up(runner)
        self._counters.after_phase("warmup")
        if block_k > 1 or self._strategy.begins_fresh:
            runner = self._prepare(block_k, fresh=self._strategy.begins_fresh)
        if block_k > 1:
            self._payload.zero = any(program.reset for program in self._programs.values())
        stop_reason = self._measure(runner, n)
        self._check("end", copies=self._blocks.last.n)
        if self._payload.zero:
            self._check_with_payload()
        # by the kernels it is known whether the library used windows
        if self.setup.number == 1 and (self._profile or case.registration == "symmetric"):
            self._record_profile(self._profile)
        if self.setup.number == 1:
            self._probe()
        self._collector.close()
        return self._samples(stop_reason)

    # ------------------------------------------------------------ before the first call

    def _allocate(self) -> None:
        self.setup.progress.enter(f"the preparation of {self.setup.planned.case}")
        problem = None
        try:
            self._payload.allocate(self._programs)
            if self._profile is not None:
                self._profile.mkdir(parents=True, exist_ok=True)
        except MemoryError as error:
            problem = f"out of memory on rank {self.setup.control.rank} at that moment: {error}"
        except OSError as error:
            problem = f"profile={self.setup.settings.profile} can't be made: {error}"
        self._agree(problem)

    def _prepare(self, block_k: int, barriers: bool = True, fresh: bool = False) -> Runner:
        planned = self.setup.planned
        self._block_k = block_k
        problem = None
        runner = None
        self._collector.operations = planned.shape.operations * block_k
        try:
            programs = {rank: program.repeated(block_k) for rank, program in self._programs.items()}
            mode = replace(
                planned.case.mode,
                sync=planned.case.mode.sync if barriers else None,
                fresh=fresh,
                connected=self._connected,
                samples=block_k,
                groups=self.setup.groups,
                visit=self.setup.visit,
            )
            runner = self._payload.prepare(programs, mode)
        except Unsupported as error:
            problem = str(error)
        self._agree(problem, unsupported=True)
        assert runner is not None
        return runner

    def _agree(self, problem: str | None, unsupported: bool = False) -> None:
        """Skip the case on all ranks if any of them has a problem; `unsupported` is that of
        Refused."""
        meeting = f"preparing {self.setup.planned.case}"
        agreed = self.setup.control.agree(problem, self.setup.deadline_s, meeting)
        if agreed is not None:
            raise _Stopped(Refused(agreed, unsupported))

    # ------------------------------------------------------------ connect

    def _connect(self) -> Runner:
        """Make the first call, in which libraries connect."""
        runner = self._prepare(1)
        self._payload.fill()
        self._blocks.run(runner, 1, "connect")
        self._check("start")
        self._connected = True
        return runner

    # ------------------------------------------------------------ warm up

    def _warm_up(self, runner: Runner) -> tuple[int, int]:
        """Repeat until steady; returns block_k and the number of repetitions of the first measured
        block."""
        n, block_k, first = self._decide(self._first_warm_up, "before the warm-up")
        self._blocks.restart_clock()
        while n > 0:
            n, block_k, first = self._repeat(runner, n, "warmup", partial(self._next_warm_up, n))
        return block_k, first

    def _first_warm_up(self) -> tuple[int, int, int]:
        """The repetitions of the first warm-up block, block_k, and the repetitions of the first
        measured block."""
        first_call_s = float(self._collector.times("connect")[0])
        n = self._strategy.warm_up_rule.first_block(self._blocks.last.total_s, first_call_s)
        if n == 0:
            return 0, 1, self._strategy.first_block(self._blocks, first_call_s)
        return self._blocks.bounded(n), 1, 1

    def _next_warm_up(self, n: int) -> tuple[int, int, int]:
        """The same after a block of n repetitions."""
        blocks = self._blocks
        strategy = self._strategy
        values = self._collector.times("warmup")
        sample_s = typical_s(self.setup.planned, values)
        self._warmup_s = blocks.spent_s
        more, self._steady = strategy.warm_up_rule.next_block(
            values, blocks.spent_s, n, blocks.last.meeting_s
        )
        if more:
            return blocks.bounded(more), 1, 1
        strategy.end_warm_up(sample_s, blocks.spent_s)
        block_k = self.setup.first_block_k or strategy.samples_per_stamp(sample_s)
        return 0, block_k, strategy.first_block(blocks, sample_s * block_k)

    # ------------------------------------------------------------ measure

    def _measure(self, runner: Runner, n: int) -> str:
        """Measure blocks, the first of n repetitions, until rank 0's strategy has enough; returns
        the stop reason."""
        # from here on the checks are of data that timed repetitions have moved
        self._payload.refill()
        self._blocks.restart_clock()
        self._strategy.begin(self._samples, self._counters)
        stop_reason = None
        while stop_reason is None:
            next_n, check, stop_reason = self._repeat(
                runner,
                n,
                "measure",
                lambda: self._strategy.next_block(self._blocks, self._check_s),
            )
            if check and stop_reason is None:
                self._check("middle", copies=n)
                self._payload.refill()
            n = next_n
        return str(stop_reason)

    def _repeat(self, runner: Runner, n: int, phase: str, decision: Callable[[], Any]) -> Any:
        """Run n repetitions on all ranks; returns rank 0's decision on all ranks."""
        self._blocks.run(runner, n, phase)
        return self._decide(decision, f"after {phase}")

    def _decide(self, decision: Callable[[], Any], when: str) -> Any:
        """Rank 0's decision, on all ranks. A failed block or a wrong element since the last
        decision ends the visit."""
        case = self.setup.planned.case
        control = self.setup.control
        deadline_s = self.setup.deadline_s
        last = self._blocks.last
        good = control.rank == 0 and not last.failed_ranks and not self._wrong
        value = [last.failed_ranks, self._wrong, decision() if good else None]
        failed, self._wrong, decided = control.decide(value, deadline_s, f"{when} of {case}")
        if failed:
            reason = control.agree(last.problem, deadline_s, when)
            reason = reason or "fewer repetitions than were agreed"
            # other ranks may have messages in flight: the library is not usable
            if failed < control.size:
                raise WorldBroken(f"{case}: {reason}, on {failed} of {control.size} ranks")
            raise _Stopped(Refused(reason, True) if last.unsupported else Failure(reason))
        if self._wrong:
            self._collector.close()
            raise _Stopped(self._samples("wrong_payload"))
        return decided

    # ------------------------------------------------------------ check

    def _check(self, when: str, copies: int = 1) -> None:
        """Count the wrong elements of all ranks on rank 0, and gather the readings of their
        counters there."""
        setup = self.setup
        begin_s = time.monotonic()
        setup.progress.enter(f"the check at the {when} of {setup.planned.case}")
        if when == "end":
            self._counters.after_phase("measure")
            if not setup.planned.case.has_model_clock:
                self._counters.read_core_wait(self._blocks.waited_s, self._blocks.loop_s)
        several_visits = setup.settings.timing.visits > 1
        if when != "middle" and several_visits and len(setup.communicator.hosted) == 1:
            self._counters.read_interference()
        value = [self._payload.count_wrong(copies), self._counters.take()]
        meeting = f"check at the {when} of {setup.planned.case}"
        gathered = setup.control.gather(value, setup.deadline_s, meeting)
        for rank, (wrong, readings) in enumerate(gathered):
            self._wrong += wrong
            for t_ns, counters in readings:
                self._collector.count(Counts(rank, t_ns, counters))
        self._check_s = time.monotonic() - begin_s

    def _check_with_payload(self) -> None:
        """Run and check one more repetition: in-place sums that were not reset between two stamps
        moved zeros."""
        self._payload.zero = False
        block_k = self._block_k
        runner = self._prepare(1)
        self._payload.refill()
        self._repeat(runner, 1, "check", lambda: None)
        self._check("end")
        self._block_k = block_k

    # ------------------------------------------------------------ profile

    @property
    def _profile(self) -> Path | None:
        """The folder of the case's profiles, where they were asked for."""
        folder = self.setup.settings.profile
        case = self.setup.planned.case
        return Path(folder) / f"{case.benchmark}-{case.case_id}" if folder else None

    def _record_profile(self, folder: Path | None) -> None:
        """Run one more repetition under the library's profiler, without barriers, which would be
        operations there."""
        runner = self._prepare(1, barriers=False)
        self._payload.refill()
        path = folder / f"rank{self.setup.control.rank}.json" if folder else None
        with self.setup.communicator.profiled(path):
            self._agree(None)  # all profilers have started
            self._repeat(runner, 1, "check", lambda: None)
        self._check("end")

    # ------------------------------------------------------------ probes

    def _probe(self) -> None:
        """Find out what features ask, in further calls on buffers of their own."""
        self._payload.clear()
        call = partial(self._repeat, phase="check", decision=lambda: None)
        for feature in registered(Measuring):
            self._findings |= feature.probe(self.setup, call)

    # ------------------------------------------------------------ the result

    def _samples(self, stop_reason: str) -> Samples:
        collector = self._collector
        connect_times = collector.times("connect")
        times = collector.times("measure")
        return Samples(
            ranks=self.setup.planned.active,
            blocks=tuple(collector.blocks),
            block_k=self._block_k,
            stop_reason=stop_reason,
            wrong_elements=self._wrong,
            counts=tuple(collector.counts),
            series=None if collector.complete else times,
            repetitions=collector.repetitions("measure"),
            first_call_s=float(connect_times[0]) if len(connect_times) else None,
            spent_s=self._blocks.spent_s,
            warmup_s=self._warmup_s,
            steady=self._steady,
            operation_s=self._strategy.operation_s,
            findings=with_merge({**self._findings, **self._strategy.findings}),
        )
