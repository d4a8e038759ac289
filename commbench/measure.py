"""Case -> samples: allocate, agree, connect, check, warm up, repeat in blocks, check again.

No rank decides alone. Repetitions run in blocks; after each one rank 0 looks at all stamps and everybody reads
what it decided.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from commbench.clock import ClockCost
from commbench.contracts import Buffer, Communicator, Control, Pattern, Planned, Program, Runner, Shape
from commbench.errors import CommunicationError, Unsupported, WorldBroken
from commbench.records import Block, Failure, Refused, Samples
from commbench.settings import Settings
from commbench.stats import StopRule, repetition_times, steady

BLOCK_S = 0.5  # the longest time without a decision
WARMUP_SHARE = 0.2  # of a case's time, but
WARMUP_CAP_S = 5.0  # no longer than this: some series never get steady
LARGEST_N = {"initiator": 10_000, "max_over_ranks": 2_000, "max_over_senders": 2_000}
LARGEST_WINDOWS = 200  # repetitions of a window of messages
TIMER_SHARE = 0.05  # of a sample that two clock reads may take (Hoefler & Belli 2015)
LARGEST_BLOCK_K = 64
MEMORY_S_PER_BYTE = 1 / 0.2e9  # slow enough for a first touch on a busy machine
GRACE_S = 60.0

Outcome = Samples | Refused | Failure


def measure(
    job: Planned, communicator: Communicator, control: Control, settings: Settings, clock: ClockCost
) -> Outcome:
    """Called by the ranks of the layout only. Rank 0 of it gets the samples, the others an empty copy of them."""
    case = _Case(job, communicator, control, settings, clock)
    try:
        return case.run()
    except _Stopped as stop:
        return stop.outcome
    finally:
        case.release()


def deadline_s(job: Planned) -> float:
    """How long a block of this case may take before the ranks that did not come are called missing."""
    return GRACE_S + 20 * BLOCK_S + 10 * job.node_bytes * MEMORY_S_PER_BYTE


def patience_s(job: Planned, settings: Settings) -> float:
    """How long a rank that this case does not need waits for the next one."""
    return 3 * deadline_s(job) + 3 * settings.case_s


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
    buffers: dict[int, dict[str, Buffer]] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    wrong: int = 0
    salt: int = 0
    block_k: int = 1

    def run(self) -> Outcome:
        self._agree(self._allocate())
        runner = self._prepare(1)
        self._fill()
        first_s = self._repeat(runner, 1, "connect")
        self._count("start")
        typical_s = self._warm_up(runner, first_s)
        runner = self._choose_block(runner, typical_s)
        self._refill()  # from here on the checks look at what timed repetitions have moved
        reason = self._measure(runner, typical_s * self.block_k)
        return self._samples(reason, runner.engine)

    def release(self) -> None:
        self.buffers.clear()

    # ------------------------------------------------------------ phases

    def _allocate(self) -> str | None:
        """Buffers of the hosted ranks; the problem in words, if there is one."""
        try:
            for rank, program in self._programs().items():
                self.buffers[rank] = {
                    spec.name: self.communicator.allocate(spec, self.job.pool) for spec in program.buffers
                }
        except MemoryError as error:
            return f"out of memory: {error}"
        return None

    def _prepare(self, block_k: int) -> Runner:
        self.block_k, problem, runner = block_k, None, None
        try:
            programs = {rank: program.repeated(block_k) for rank, program in self._programs().items()}
            runner = self.communicator.prepare(programs, self.buffers, self.job.case.mode)
        except Unsupported as error:
            problem = str(error)
        self._agree(problem)
        assert runner is not None
        return runner

    def _warm_up(self, runner: Runner, first_s: float) -> float:
        """Repeat until steady; the seconds of one sample (method 2.4)."""
        timing = self.settings.timing
        spent_s, values = 0.0, np.zeros(0)
        n = self.control.decide(self._affordable(first_s, timing.warmup_repetitions), self._deadline_s, "warm-up")
        while n > 0:
            begin = time.perf_counter()
            self._repeat(runner, n, "warmup")
            spent_s += time.perf_counter() - begin
            values = self._sample_s("warmup")
            n = self.control.decide(self._more_warm_up(values, spent_s, n), self._deadline_s, "end of warm-up block")
        typical: float = self.control.decide(float(np.median(values)) if len(values) else first_s, self._deadline_s)
        return typical

    def _more_warm_up(self, values: NDArray[np.float64], spent_s: float, n: int) -> int:
        timing = self.settings.timing
        enough = len(values) >= timing.warmup_repetitions and spent_s >= timing.warmup_s
        if (enough and steady(values)) or spent_s >= min(WARMUP_CAP_S, WARMUP_SHARE * self.settings.case_s):
            return 0
        return self._affordable(float(np.median(values)) if len(values) else spent_s, 2 * n)

    def _choose_block(self, runner: Runner, typical_s: float) -> Runner:
        """Several samples between two stamps where the clock would be a visible part of one (method 2.1)."""
        if not self.job.benchmark.self_synchronising or runner.engine == "virtual":
            return runner
        needed = 2 * self.clock.p50_ns * 1e-9 / TIMER_SHARE
        k = min(LARGEST_BLOCK_K, int(np.ceil(needed / typical_s))) if typical_s > 0 else 1
        k = self.control.decide(k, self._deadline_s, "choice of block_k")
        return runner if k == 1 else self._prepare(k)

    def _measure(self, runner: Runner, typical_s: float) -> str:
        """Blocks until the rule is satisfied; why it stopped."""
        rule = self._rule()
        n, spent_s, middle, reason = rule.next_block(np.zeros(0), 0.0, BLOCK_S, typical_s), 0.0, False, None
        n = self.control.decide(n, self._deadline_s, "first block")
        while reason is None:
            begin = time.perf_counter()
            self._repeat(runner, n, "measure")
            spent_s += time.perf_counter() - begin
            values = self._sample_s("measure")
            reason = rule.reason(values, spent_s) if self.control.rank == 0 else None
            following = rule.next_block(values, spent_s, BLOCK_S, typical_s) if self.control.rank == 0 else 0
            reason, following = self.control.decide([reason, following], self._deadline_s, "end of block")
            if not middle or reason is not None:
                self._count("middle" if reason is None else "end", copies=n)
                middle = True
                if reason is None:
                    self._refill()
            n = following
        assert reason is not None
        return reason

    # ------------------------------------------------------------ repetitions

    def _repeat(self, runner: Runner, n: int, phase: str) -> float:
        """Run n repetitions everywhere and gather the stamps; this process's seconds a repetition."""
        problem, stamps = None, np.zeros((0, 0, 2), dtype=np.int64)
        begin = time.perf_counter()
        try:
            stamps = runner(n)
        except CommunicationError as error:
            problem = str(error)
        spent_s = time.perf_counter() - begin
        parts = self.control.collect(stamps, self._deadline_s, f"{phase} of {self.job.case}")
        failed = self.control.decide(sum(part.shape[1] != n for part in parts), self._deadline_s, phase)
        if failed:
            reason = self.control.agree(problem, self._deadline_s, phase) or "fewer repetitions than were agreed"
            if failed < self.control.size:  # the others may have messages under way: nothing can follow here
                raise WorldBroken(f"{self.job.case}: {reason}, on {failed} of {self.control.size} ranks")
            raise _Stopped(Failure(reason))
        if parts:
            self.blocks.append(Block(phase, len(self.blocks), np.concatenate(parts, axis=0)[list(self.job.active)]))
        return spent_s / n

    def _sample_s(self, phase: str) -> NDArray[np.float64]:
        """Seconds of each sample of a phase by the headline rule; empty where the stamps are not."""
        stamps = [block.stamps for block in self.blocks if block.phase == phase]
        if not stamps:
            return np.zeros(0)
        shape = Shape(1, 0, self.job.shape.headline)
        return repetition_times(np.concatenate(stamps, axis=1), shape, self.job.senders, self.job.senders[0])

    def _affordable(self, sample_s: float, n: int) -> int:
        share = min(BLOCK_S, WARMUP_SHARE * self.settings.case_s)
        return max(1, min(n, int(share / max(sample_s, 1e-9))))

    def _rule(self) -> StopRule:
        timing, windowed = self.settings.timing, (self.job.case.window or 1) > 1
        largest = LARGEST_WINDOWS if windowed else LARGEST_N[self.job.shape.headline]
        return StopRule(
            target=timing.target,
            z=timing.z,
            min_repetitions=None,
            max_repetitions=largest if timing.repetitions is None else timing.repetitions,
            budget_s=self.settings.case_s,
            fixed=timing.repetitions,
        )

    # ------------------------------------------------------------ payload

    def _fill(self) -> None:
        for rank, name, buffer in self._held():
            buffer.write(self._pattern("fill", rank, name))

    def _count(self, when: str, copies: int = 1) -> None:
        """Count the elements that are not what they must be, everywhere; stop at the first wrong one."""
        wrong = 0
        for rank, name, buffer in self._held():
            pattern = self._pattern("expected", rank, name)
            wrong += 0 if pattern is None else buffer.count_wrong(pattern, copies)
        counts = self.control.gather(wrong, self._deadline_s, f"check at the {when}")
        self.wrong = self.control.decide(sum(counts), self._deadline_s, f"check at the {when}")
        if self.wrong:
            raise _Stopped(self._samples("wrong_payload", self.job.case.engine))

    def _refill(self) -> None:
        """New values to send, and the sentinel where they must arrive: nothing old can pass for new."""
        self.salt += 1
        self._fill()

    def _pattern(self, which: str, rank: int, name: str) -> Pattern | None:
        rule = getattr(self.job.benchmark, which)
        pattern: Pattern | None = rule(self.job.case, rank, self.job.size, name, self.salt)
        return pattern

    # ------------------------------------------------------------ small things

    def _programs(self) -> dict[int, Program]:
        """Of the ranks that live in this process."""
        size, case = self.job.size, self.job.case
        return {rank: self.job.benchmark.program(case, rank, size) for rank in self.communicator.hosted}

    def _held(self) -> list[tuple[int, str, Buffer]]:
        return [(rank, name, buffer) for rank, held in self.buffers.items() for name, buffer in held.items()]

    @property
    def _deadline_s(self) -> float:
        return deadline_s(self.job)

    def _agree(self, problem: str | None) -> None:
        verdict = self.control.agree(problem, self._deadline_s, f"preparing {self.job.case}")
        if verdict is not None:
            raise _Stopped(Refused(verdict))

    def _samples(self, reason: str, engine: str) -> Samples:
        return Samples(self.job.active, tuple(self.blocks), self.block_k, reason, self.wrong, engine)
