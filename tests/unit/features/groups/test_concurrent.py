"""Operations of several groups at once: who takes part, what is timed, and the payload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmark_trials import BenchmarkTrial, case_of

from commbench.backends.torch.gloo import Gloo
from commbench.backends.torch.nccl import Nccl
from commbench.core.program import DEVICE, PINNED, In, Start, WaitAll, operation_of
from commbench.core.protocols import Backend
from commbench.core.variables import Case
from commbench.features.cupy.backend import CupyNccl
from commbench.features.groups.concurrent import Concurrent
from commbench.features.groups.measuring import around
from commbench.features.simulated.backend import Simulated

CONCURRENT = Concurrent()
GRID = "all_reduce@tp2 + all_gather@dp2=32"


def grid_case(text: str, **changes: Any) -> Case:
    return replace(case_of(CONCURRENT, 4, 12, groups=text), groups=text, **changes)


@pytest.mark.parametrize(
    "text",
    [
        "all_reduce@tp2",
        GRID,
        f"[{GRID.partition(' ')[0]}] + all_gather@dp2=32",
        "all_reduce@tp2 + [all_gather@dp2=32]",
        "p2p_latency@0-1 beside all_to_all@2-3=64",
        "p2p_bandwidth@tp2 + reduce_scatter@dp2",
        "broadcast@world + all_reduce@world",
        "all_gather@world + copy_d2h@world=64",
        "[all_reduce@tp2] + copy_h2d@0,3 + copy_d2h@world",
        "all_reduce@0-1 beside copy_d2h@2-3=64",
    ],
)
def test_every_rank_of_every_group_ends_with_what_is_expected(text: str) -> None:
    trial = BenchmarkTrial(CONCURRENT, grid_case(text), 4)
    trial.run(2)
    wrong = trial.wrong()
    assert wrong and set(wrong.values()) == {0}


def test_a_rank_in_two_groups_begins_both_and_waits_for_the_timed_one_in_the_sample() -> None:
    program = CONCURRENT.program(grid_case("all_reduce@tp2 + [all_gather@dp2=32]"), 1, 4)
    kinds = [type(step) for step in program.steps]
    assert kinds == [Start, Start, WaitAll]
    groups = [step.step.group for step in program.steps[:2] if isinstance(step, Start)]  # type: ignore[union-attr]
    assert groups == [(0, 1), (1, 3)]
    (begun_first, begun_second) = program.steps[:2]
    assert isinstance(begun_first, Start) and isinstance(begun_second, Start)
    assert program.steps[2] == WaitAll((begun_second.request,))
    assert program.after == (WaitAll((begun_first.request,)),)


def test_all_at_once_wait_for_all_of_them() -> None:
    program = CONCURRENT.program(grid_case(GRID), 1, 4)
    assert program.after == ()
    assert [type(step) for step in program.steps] == [Start, Start, WaitAll, WaitAll]


def test_a_group_of_all_ranks_needs_no_communicator_of_its_own() -> None:
    case = grid_case("all_reduce@world + all_gather@tp4")
    assert CONCURRENT.groups(case, 4) == []
    steps = CONCURRENT.program(case, 0, 4).steps
    assert not any(isinstance(operation_of(step), In) for step in steps)
    assert CONCURRENT.groups(grid_case(GRID), 4) == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_only_the_ranks_of_the_timed_operation_count() -> None:
    case = grid_case("p2p_latency@2-3 beside all_reduce@0-1")
    shape = CONCURRENT.shape(case, 4)
    assert shape.ranks == (2,), "the one that begins the message"
    assert (shape.operations, shape.single) == (2, True)
    assert CONCURRENT.shape(grid_case("all_reduce@tp2"), 4).ranks == (0, 1, 2, 3)
    assert CONCURRENT.shape(grid_case(GRID), 4).ranks is None


def test_under_a_load_ranks_do_not_meet_between_repetitions() -> None:
    case = grid_case("p2p_latency@0-1 beside all_reduce@2-3", sync="barrier")
    assert {each.sync for each in CONCURRENT.variants(case, 4)} == {"none"}
    assert {each.sync for each in CONCURRENT.variants(grid_case(GRID, sync="barrier"), 4)} == {
        "barrier"
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("all_reduce@0-7", "names rank 7, the layout has ranks 0 to 3"),
        ("all_reduce@tp1", "has no group with two ranks"),
        ("p2p_latency@tp4", "needs groups of two ranks"),
        ("all_gather@tp2=4", "can't be divided"),
        ("p2p_latency@0-1 + all_reduce@world", "give them different ranks"),
        ("all_reduce@0-1 beside all_gather@world", "give them different ranks"),
    ],
)
def test_what_does_not_fit_the_layout_is_refused_with_a_reason(text: str, said: str) -> None:
    reason = CONCURRENT.refusal(grid_case(text), 4)
    assert reason is not None and said in reason


def test_what_fits_is_not_refused() -> None:
    for text in (GRID, "p2p_bandwidth@tp2 + all_reduce@dp2", "p2p_latency@0-1 + all_reduce@2-3"):
        assert CONCURRENT.refusal(grid_case(text), 4) is None


def test_a_copy_is_of_pinned_memory_and_of_each_rank_by_itself() -> None:
    case = grid_case("all_gather@world + copy_d2h@0-1=64")
    assert CONCURRENT.groups(case, 4) == []
    specs = {spec.name: spec for spec in CONCURRENT.program(case, 1, 4).buffers}
    assert (specs["1.send"].memory, specs["1.recv"].memory) == (DEVICE, PINNED)
    assert specs["1.recv"].count == 16 and specs["0.data"].memory == DEVICE
    assert not any(spec.name.startswith("1.") for spec in CONCURRENT.program(case, 2, 4).buffers)
    assert CONCURRENT.shape(grid_case("[copy_d2h@0-1=64] + all_gather@world"), 4).ranks == (0, 1)


WITH_COPY = "all_gather@world + copy_d2h@world"


@pytest.mark.parametrize(
    ("backend", "text", "said"),
    [
        (Gloo(), WITH_COPY, "gloo can't copy to or from a GPU beside its operations"),
        (Gloo(), "all_gather@0-1 + copy_h2d@2", "use backend=nccl"),
        (CupyNccl(), WITH_COPY, "cupy_nccl can't copy to or from a GPU"),
        (Nccl(), "p2p_bandwidth@tp2 + copy_d2h@world", "nccl sends messages in the wait for them"),
        (Nccl(), "all_reduce@dp2 + p2p_bandwidth@tp2", "nccl sends messages in the wait for them"),
        (Gloo(), "p2p_bandwidth@tp2 + all_reduce@dp2", None),
        (Nccl(), WITH_COPY, None),
        (Nccl(), "p2p_bandwidth@0-1 + copy_d2h@2-3", None),
        (Simulated(), WITH_COPY, None),
    ],
)
def test_what_a_backend_can_not_do_at_once_is_refused_by_all_ranks(
    backend: Backend, text: str, said: str | None
) -> None:
    case = grid_case(text)
    reason = around(CONCURRENT, case, backend).refusal(case, 4)
    assert reason is None if said is None else said in str(reason)


def test_a_graph_has_no_time_of_one_operation_beside_another() -> None:
    """What it begins ends in it: NCCL's stream could not leave the capture."""
    beside = grid_case("[all_gather@world] + copy_d2h@world", timer="graph")
    assert "use timer=device_event" in str(CONCURRENT.refusal(beside, 4))
    for case in (
        replace(beside, timer="device_event"),
        replace(beside, groups=WITH_COPY),
        replace(beside, groups="[all_reduce@0-1] + copy_d2h@2-3"),
    ):
        assert CONCURRENT.refusal(case, 4) is None
