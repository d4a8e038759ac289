"""One visit of a case: which check finds what a library did wrong, and what is told of the first
calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from composed import settings_of
from numpy.typing import NDArray

from commbench.core.errors import Unsupported
from commbench.core.variables import Mode
from commbench.features.simulated.backend import SimulatedCommunicator
from commbench.features.simulated.virtual import VirtualRunner
from commbench.features.streams.soak import Timer
from commbench.measure.case import CaseVisit
from commbench.measure.plan import plan
from commbench.measure.plan_facts import PlanFacts
from commbench.measure.samples import Outcome, Refused, Samples
from commbench.measure.visit_setup import VisitSetup
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress

Words = NDArray[Any]
# what rank 1's copies held before a call, and hold now
Action = Callable[[Sequence[Words], Sequence[Words]], None]

# repetitions of 10 ms of virtual time: beside them the meetings after a block, in real time, change
# no block's length
MODEL = (
    "backend=simulated",
    "backend.model.latency_s=5e-3",
    "benchmark=all_reduce",
    "layout=1x2",
    "sizes=[400]",
)
FIXED = (
    "timing=fixed",
    "timing.repetitions=40",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
    "in_place=false",
)
QUICK = ("timing=quick", "timing.warmup_s=0", "in_place=false")
SOAK = ("timing=soak", "timing.duration_s=0.3", "in_place=false")


class Library(Progress):
    """The simulated library, which does something more in some calls: those whose phase and number
    an action is for.

    The visit names the phase of a call in its progress.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []  # phase, number of repetitions
        self.action: Callable[[str, int], Action | None] = lambda phase, number: None
        # of the times of a call
        self.stretch: Callable[[str, int], float] = lambda phase, number: 1.0

    def begin(self, repetitions: int) -> tuple[str, int]:
        """The phase of a call and its number in the phase."""
        current = self.phase.partition(" ")[0]  # "measure of all_reduce ..."
        number = sum(phase == current for phase, _ in self.calls)
        self.calls.append((current, repetitions))
        return current, number

    def visit(self, *words: str, **given: Any) -> Samples:
        outcome = self.outcome(*words, **given)
        assert isinstance(outcome, Samples)
        return outcome

    def outcome(
        self, *words: str, number: int = 1, block_k: int | None = None, cache_bytes: int = 1
    ) -> Outcome:
        settings = settings_of(*MODEL, *words)
        world, control = hosted_world(1, 2)
        (planned,) = plan(settings, world, PlanFacts(2**40, cache_bytes, 8))
        communicator = settings.backend.open(world, control)
        self.calls.clear()
        setup = VisitSetup(
            planned,
            communicator,
            control,
            settings,
            empty_sample_s={},
            sink=lambda _: None,
            progress=self,
            number=number,
            first_block_k=block_k,
        )
        return CaseVisit(setup).measure()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    real = VirtualRunner.__call__

    def call(self: VirtualRunner, n: int) -> NDArray[np.int64]:
        buffers: Any = self._buffers[1]
        buffer = buffers.get("recv") or buffers["data"]
        now = [buffer.words(0, copy) for copy in range(buffer.pool)]
        before = [words.copy() for words in now]
        place = made.begin(n)
        stamps = real(self, n)
        elapsed = (stamps[:, :, 1] - stamps[:, :, 0]) * made.stretch(*place)
        stamps[:, :, 1] = stamps[:, :, 0] + elapsed.astype(np.int64)
        action = made.action(*place)
        if action is not None:
            action(before, now)
        return stamps

    monkeypatch.setattr(VirtualRunner, "__call__", call)
    return made


def nothing_arrives(before: Sequence[Words], now: Sequence[Words]) -> None:
    for words, old in zip(now, before, strict=True):
        words[:] = old


def zeros_arrive(_: Sequence[Words], now: Sequence[Words]) -> None:
    for words in now:
        words[:] = 0


def spoils(copy: int) -> Action:
    def spoil(_: Sequence[Words], now: Sequence[Words]) -> None:
        now[copy][0] += 1

    return spoil


def connecting(phase: str, number: int) -> bool:
    return phase == "connect"


def first_block(phase: str, number: int) -> bool:
    return (phase, number) == ("measure", 0)


def second_block(phase: str, number: int) -> bool:
    return (phase, number) == ("measure", 1)


def later_blocks(phase: str, number: int) -> bool:
    return phase == "measure" and number > 0


def measured(phase: str, number: int) -> bool:
    return phase in ("measure", "check")


def in_calls(
    chosen: Callable[[str, int], bool], action: Action
) -> Callable[[str, int], Action | None]:
    return lambda phase, number: action if chosen(phase, number) else None


# ---------------------------------------------------------------- checks


def test_a_visit_connects_warms_up_and_measures_in_blocks(library: Library) -> None:
    seen = library.visit(*FIXED)
    phases = [phase for phase, _ in library.calls]
    assert (
        list(dict.fromkeys(phases)) == ["connect", "warmup", "measure"]
        and phases.count("measure") > 1
    )
    counts = {name: sum(n for phase, n in library.calls if phase == name) for name in phases}
    assert (counts["connect"], counts["measure"]) == (1, 40) and counts["warmup"] >= 9, (
        "three thirds of three"
    )
    assert (seen.wrong_elements, seen.stop_reason, seen.steady) == (0, "fixed", True)


@pytest.mark.parametrize("chosen", [connecting, first_block, later_blocks])
def test_what_a_call_spoils_is_found_by_the_check_before_the_next_phase_repairs_it(
    library: Library, chosen: Callable[[str, int], bool]
) -> None:
    library.action = in_calls(chosen, spoils(0))
    assert library.visit(*FIXED).wrong_elements == 1


@pytest.mark.parametrize("chosen", [first_block, later_blocks])
def test_every_copy_that_a_block_used_is_checked(
    library: Library, chosen: Callable[[str, int], bool]
) -> None:
    library.action = in_calls(chosen, spoils(1))
    assert library.visit(*FIXED, "cache=rotate", cache_bytes=2**12).wrong_elements == 1


def test_a_visit_that_receives_nothing_while_it_measures_is_found(library: Library) -> None:
    """What the warm-up left in the buffers must not pass for it. With several visits none has a
    check in its middle."""
    library.action = in_calls(measured, nothing_arrives)
    assert library.visit(*QUICK).wrong_elements == 100


def test_a_second_half_that_receives_nothing_is_found(library: Library) -> None:
    """What the first half received must not pass for it."""
    library.action = in_calls(later_blocks, nothing_arrives)
    assert library.visit(*FIXED).wrong_elements == 100


@pytest.mark.parametrize("action", [spoils(0), nothing_arrives])
def test_a_soak_is_checked_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, library: Library, action: Action
) -> None:
    """One block goes wrong: the following ones would repair it, and the one before had received
    everything."""
    monkeypatch.setattr(Timer, "due", lambda self, now_s, every_s: True)
    library.action = in_calls(second_block, action)
    assert library.visit(*SOAK).wrong_elements > 0


def test_what_was_received_before_does_not_pass_for_what_is_sent_now(library: Library) -> None:
    """Each check has new values: a block, and another visit, may not deliver an earlier one's."""
    received: list[Words] = []

    def record(_: Sequence[Words], now: Sequence[Words]) -> None:
        received[:] = [words.copy() for words in now]

    def replay(_: Sequence[Words], now: Sequence[Words]) -> None:
        nothing_arrives(received, now)

    def of_first_call(phase: str, number: int) -> Action | None:
        return record if phase == "connect" else replay if phase == "measure" else None

    library.action = of_first_call
    assert library.visit(*FIXED).wrong_elements > 50, "most of 100 elements differ"
    library.action = in_calls(later_blocks, record)
    assert library.visit(*FIXED, number=1).wrong_elements == 0
    library.action = in_calls(later_blocks, replay)
    assert library.visit(*FIXED, number=2).wrong_elements > 50


def test_zeros_between_two_stamps_are_followed_by_a_call_with_values(library: Library) -> None:
    """Four sums in place between two stamps: nothing resets them, so zeros are sent, and here never
    anything else."""
    library.action = in_calls(measured, zeros_arrive)
    assert library.visit(*FIXED, "in_place=true", block_k=4).wrong_elements == 100
    assert library.calls[-1] == ("check", 1)


# ---------------------------------------------------------------- the first calls


def test_the_first_call_is_told_whole(library: Library) -> None:
    library.stretch = lambda phase, number: 300.0 if phase == "connect" else 1.0
    assert library.visit(*FIXED).first_call_s == pytest.approx(300 * 0.01, rel=0.01)


def test_a_warm_up_at_its_limit_was_not_steady(library: Library) -> None:
    """The times of each call, of one repetition, are a tenth longer than those before."""
    library.stretch = lambda phase, number: 1.1**number if phase == "warmup" else 1.0
    assert not library.visit(*QUICK, "timing.case_s=0.05", "timing.warmup_repetitions=1").steady


def test_calls_that_have_run_once_are_prepared_again_for_graphs(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the warm-up: a graph is captured when its runner is made."""
    prepared: list[tuple[int, bool]] = []
    real = SimulatedCommunicator.prepare

    def prepare(self: Any, programs: Any, buffers: Any, mode: Mode) -> Any:
        prepared.append((len(library.calls), mode.connected))
        return real(self, programs, buffers, mode)

    monkeypatch.setattr(SimulatedCommunicator, "prepare", prepare)
    library.visit(*FIXED, "device=cuda", "timer=graph")
    assert prepared[:2] == [(0, False), (1, True)]


@pytest.mark.parametrize(("words", "begins_fresh"), [(SOAK, True), (FIXED, False)])
def test_a_soak_measures_over_connections_that_nothing_has_used(
    words: tuple[str, ...], begins_fresh: bool, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[tuple[str, bool]] = []
    real = SimulatedCommunicator.prepare

    def prepare(self: Any, programs: Any, buffers: Any, mode: Mode) -> Any:
        prepared.append((library.calls[-1][0] if library.calls else "", mode.fresh))
        return real(self, programs, buffers, mode)

    monkeypatch.setattr(SimulatedCommunicator, "prepare", prepare)
    library.visit(*words)
    assert prepared[0] == ("", False)
    assert [phase != "measure" for phase, fresh in prepared if fresh] == [True] * begins_fresh
    assert "measure" in {phase for phase, _ in library.calls}


@pytest.mark.parametrize(
    ("call", "error", "unsupported"),
    [("allocate", MemoryError("full"), False), ("prepare", Unsupported("no capture"), True)],
)
def test_a_refusal_says_whether_it_is_the_librarys(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: Exception,
    unsupported: bool,
) -> None:
    """Only that of a capture is printed: too little memory for one case refuses no other."""

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(SimulatedCommunicator, call, refuse)
    outcome = library.outcome(*FIXED)
    assert isinstance(outcome, Refused)
    assert str(error) in outcome.reason
    assert outcome.unsupported is unsupported
