"""The control plane over a real TCPStore: 1 to 64 clients with delays, late ranks named, nothing
left behind."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composed import FACTS, settings_of
from connected_ranks import client_of, connected, on_ranks
from numpy.typing import NDArray
from rank_threads import SOON_S, delays

from commbench.core.case import World
from commbench.core.errors import Missing, StoreLost
from commbench.core.program import BufferSpec, Pattern, Program
from commbench.core.protocols import Buffer
from commbench.core.variables import Mode
from commbench.measure.case import CaseVisit
from commbench.measure.plan import plan
from commbench.measure.samples import Samples
from commbench.measure.visit_setup import VisitSetup
from commbench.runtime.control import StoreControl
from commbench.runtime.heartbeat import Progress

SIZES = [1, 2, 8, 64]


# ---------------------------------------------------------------- meetings


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_see_the_same_values_in_the_same_order(size: int) -> None:
    def work(control: StoreControl) -> list[Any]:
        pause = delays(control.rank, 0.01)
        seen = []
        for turn in range(5):
            next(pause)
            gathered = control.gather([control.rank, turn, "é"], SOON_S)
            assert gathered == (
                [[rank, turn, "é"] for rank in range(size)] if control.rank == 0 else []
            )
            next(pause)
            seen.append(control.decide({"turn": turn, "rank": control.rank, "none": None}, SOON_S))
            next(pause)
            problem = f"rank {control.rank}" if 0 < turn <= control.rank else None
            seen.append(control.agree(problem, SOON_S))
        return seen

    seen = on_ranks(size, work)
    assert all(values == seen[0] for values in seen)
    assert [decision["rank"] for decision in seen[0][::2]] == [0] * 5
    assert seen[0][1::2] == [
        None,
        *(f"rank {turn}" if turn < size else None for turn in range(1, 5)),
    ]


@pytest.mark.parametrize("size", [1, 2, 8])
def test_arrays_of_every_shape_come_back_as_they_were(size: int) -> None:
    rng = np.random.default_rng(7)
    shapes = [(0,), (1,), (3, 5, 2), (0, 0, 2), (1, 0, 2), (2, 1000, 2), ()]

    def of(rank: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        return (
            np.full(shape, rank, dtype=np.int64)
            if rank
            else np.arange(np.prod(shape, dtype=int)).reshape(shape)
        )

    def work(control: StoreControl) -> list[list[NDArray[np.int64]]]:
        return [control.collect(of(control.rank, shape), SOON_S) for shape in shapes]

    collected = on_ranks(size, work)
    for shape, parts in zip(shapes, collected[0], strict=True):
        assert [part.shape for part in parts] == [shape] * size
        assert all(
            np.array_equal(part, of(rank, shape)) and part.dtype == np.int64
            for rank, part in enumerate(parts)
        )
    assert all(parts == [] for rank_parts in collected[1:] for parts in rank_parts)
    extremes = rng.integers(-(2**63), 2**63 - 1, size=(4, 2), dtype=np.int64)
    returned = on_ranks(2, lambda control: control.collect(extremes[:: 1 + control.rank], SOON_S))
    assert np.array_equal(returned[0][0], extremes) and np.array_equal(
        returned[0][1], extremes[::2]
    )


def test_ranks_may_send_arrays_of_different_shapes() -> None:
    sent = [np.zeros((1, rank, 2), dtype=np.int64) for rank in range(3)]
    collected = on_ranks(3, lambda control: control.collect(sent[control.rank], SOON_S))
    assert [part.shape for part in collected[0]] == [(1, 0, 2), (1, 1, 2), (1, 2, 2)]


def test_agree_gives_the_problem_of_the_first_rank() -> None:
    problems = [None, None, "no memory", "no memory either"]
    verdicts = on_ranks(4, lambda control: control.agree(problems[control.rank], SOON_S))
    assert verdicts == ["no memory"] * 4


# ---------------------------------------------------------------- who is late


@pytest.mark.parametrize(("size", "absent"), [(2, {1}), (8, {3}), (8, {1, 7}), (64, {13, 40, 63})])
def test_a_missing_rank_is_named_within_its_deadline(size: int, absent: set[int]) -> None:
    come = threading.Barrier(size - len(absent))

    def work(control: StoreControl) -> float:
        if control.rank in absent:
            return 0.0
        if control.rank == 0:
            come.wait(SOON_S)  # the others' words are in the store by now
        begin = time.monotonic()
        try:
            control.gather(None, 0.5, "the check")
            if control.rank != 0:
                come.wait(SOON_S)
            control.decide(None, 0.5, "the check")
        except Missing as missing:
            assert missing.ranks == (tuple(sorted(absent)) if control.rank == 0 else (0,))
            assert "'the check'" in str(missing) and all(
                str(rank) in str(missing) for rank in missing.ranks
            )
            return time.monotonic() - begin
        raise AssertionError("nobody was missed")

    waited = on_ranks(size, work)
    assert 0.45 <= waited[0] < SOON_S / 4
    assert all(0.7 <= waited[rank] < SOON_S / 2 for rank in range(1, size) if rank not in absent)


def test_waiting_costs_no_processor_time() -> None:
    control, _ = connected(2)
    begin = time.process_time()
    with pytest.raises(Missing):
        control.gather(None, 1.0)
    assert time.process_time() - begin < 0.2


def test_a_late_rank_is_only_missed_after_the_deadline() -> None:
    def work(control: StoreControl) -> Any:
        time.sleep(0.5 * control.rank)
        return control.gather(control.rank, 5.0)

    assert on_ranks(2, work)[0] == [0, 1]


OWNER = """
import time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(100)
"""


def test_a_store_that_is_gone_took_rank_0_with_it(tmp_path: Path, warm_executable: Path) -> None:
    (tmp_path / "owner.py").write_text(OWNER)
    command = [str(warm_executable), str(tmp_path / "owner.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        control = StoreControl(client_of(int(owner.stdout.readline())), 1, 2)
        control.gather("alive", SOON_S)
        owner.kill()
        owner.wait(10)
    begin = time.monotonic()
    lost = r"the store on rank 0 was lost at 'the end' after \d\.\d s: "
    with pytest.raises(StoreLost, match=lost):
        control.decide(None, SOON_S, "the end")
    for call in (control.gather, control.decide, control.agree):
        with pytest.raises(Missing, match="rank 0"):
            call(None, SOON_S)
    with pytest.raises(Missing, match="rank 0"):
        control.collect(np.zeros(2, dtype=np.int64), SOON_S)
    assert time.monotonic() - begin < 5


# ---------------------------------------------------------------- what stays behind


def test_keys_are_cleaned_up() -> None:
    size = 4
    counts: list[int] = []

    def work(control: StoreControl) -> None:
        for turn in range(60):
            control.collect(np.zeros((1, 3, 2), dtype=np.int64), SOON_S)
            control.decide([turn, None], SOON_S)
            if control.rank == 0:
                counts.append(control.store.num_keys())

    on_ranks(size, work)
    assert len(counts) == 60
    assert max(counts) <= counts[0] + 2 * size  # ranks may be one turn ahead


def test_keys_of_subsets_are_cleaned_up_too() -> None:
    def work(control: StoreControl) -> int:
        for _ in range(50):
            if control.rank in (1, 3):
                control.subset((1, 3)).agree(None, SOON_S)
            control.agree(None, SOON_S)
        return int(control.store.num_keys())

    assert max(on_ranks(4, work)) <= 20


# ---------------------------------------------------------------- some of the ranks


def test_a_subset_meets_on_its_own() -> None:
    """Two groups run different numbers of rounds at the same time, others wait; then all meet
    again."""
    groups = {
        0: ((0, 2, 5), 20),
        2: ((0, 2, 5), 20),
        5: ((0, 2, 5), 20),
        7: ((7, 3), 5),
        3: ((7, 3), 5),
    }

    def work(control: StoreControl) -> list[Any]:
        pause = delays(control.rank, 0.002)
        seen = []
        if control.rank in groups:
            ranks, rounds = groups[control.rank]
            part = control.subset(ranks)
            assert (part.rank, part.size) == (ranks.index(control.rank), len(ranks))
            assert control.subset(ranks) is part
            for turn in range(rounds):
                next(pause)
                gathered = part.gather(control.rank, SOON_S)
                assert gathered == (list(ranks) if part.rank == 0 else [])
                seen.append(part.decide([control.rank, turn], SOON_S))
        return [seen, control.decide(f"by {control.rank}", SOON_S)]

    ends = on_ranks(8, work)
    assert [end[1] for end in ends] == ["by 0"] * 8
    for rank, (ranks, rounds) in groups.items():
        assert ends[rank][0] == [[ranks[0], turn] for turn in range(rounds)]


def test_subsets_of_subsets_do_not_meet_their_parents() -> None:
    def work(control: StoreControl) -> list[Any]:
        inner = (
            control.subset((0, 1, 2)).subset((0, 1))
            if control.rank < 2
            else control.subset((0, 1, 2))
        )
        mine = inner.decide(["inner", control.rank], SOON_S) if control.rank < 2 else None
        return [
            mine,
            control.subset((0, 1, 2)).decide("middle", SOON_S),
            control.decide("outer", SOON_S),
        ]

    ends = on_ranks(3, work)
    assert ends == [[["inner", 0], "middle", "outer"]] * 2 + [[None, "middle", "outer"]]


@pytest.mark.parametrize("size", [1, 2, 8])
def test_rank_0_leaves_last(size: int) -> None:
    left: list[int] = []

    def work(control: StoreControl) -> None:
        time.sleep(0.05 * control.rank)
        left.append(control.rank)
        control.farewell(SOON_S)
        if control.rank == 0:
            assert sorted(left) == list(range(size))

    on_ranks(size, work)


def test_a_farewell_that_a_rank_does_not_come_to_ends_at_its_deadline() -> None:
    controls = connected(3)
    controls[1].farewell(0.5)
    with pytest.raises(Missing, match=r"rank 2 did not arrive at 'farewell' within 0\.5 s"):
        controls[0].farewell(0.5)


def test_alone_there_is_nobody_to_wait_for() -> None:
    control = StoreControl(None, 0, 1)
    array = np.arange(6).reshape(1, 3, 2)
    assert control.gather(3, 0.0) == [3]
    assert control.decide("x", 0.0) == control.agree("x", 0.0) == "x"
    assert control.agree(None, 0.0) is None
    assert control.subset((0, 1)) is control
    assert np.array_equal(control.collect(array, 0.0)[0], array)
    control.farewell(0.0)


# ---------------------------------------------------------------- stop decisions


class Unchecked:
    """A buffer without memory; always right."""

    def __init__(self, spec: BufferSpec, pool: int) -> None:
        self.spec = spec
        self.pool = pool

    def write(self, pattern: Pattern | None) -> None:
        pass

    def count_wrong(self, pattern: Pattern, copies: int) -> int:
        return 0


@dataclass
class Noise:
    """A communicator whose operations take a random time that nobody waits for, and come late to
    every meeting."""

    rank: int
    size: int
    counts: list[int] = field(default_factory=list)
    progress: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))

    def __post_init__(self) -> None:
        self.hosted = (self.rank,)
        self._rng = np.random.default_rng(self.rank)
        self._pause = delays(self.rank, 0.02)

    def deliver(self) -> None:
        pass

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return Unchecked(spec, pool)

    def counters(self) -> dict[str, float]:
        return {}

    def prepare(self, programs: Any, buffers: Any, mode: Mode) -> Noise:
        next(self._pause)
        assert isinstance(programs[self.rank], Program)
        return self

    def __call__(self, n: int) -> NDArray[np.int64]:
        self.counts.append(n)
        next(self._pause)
        start = np.arange(n, dtype=np.int64) * 10**7
        return np.stack(
            [start, start + (1e6 * self._rng.lognormal(0, 0.1, n)).astype(np.int64)], axis=-1
        )[None]


@pytest.mark.parametrize("size", [2, 8])
def test_all_ranks_run_the_same_counts_and_stop_together(size: int) -> None:
    words = (
        "benchmark=[all_reduce]",
        "sizes=[8]",
        f"layout=1x{size}",
        "engine=python",
        "timing.target=0.02",
    )
    settings = settings_of(*words, "timing.case_s=60")
    world = World(0, size, (tuple(range(size)),), (0,))
    planned = plan(settings, world, FACTS)[0]
    assert planned.skip is None

    def work(control: StoreControl) -> tuple[list[int], Any]:
        noise = Noise(control.rank, size)
        setup = VisitSetup(planned, noise, control, settings, {}, lambda _: None, Progress())  # type: ignore[arg-type]
        return noise.counts, CaseVisit(setup).measure()

    ends = on_ranks(size, work)
    counts = [ran for ran, _ in ends]
    assert all(ran == counts[0] for ran in counts)
    assert len(counts[0]) > 4
    outcome = ends[0][1]
    assert isinstance(outcome, Samples) and outcome.stop_reason == "ci"
    assert sum(block.stamps.shape[1] for block in outcome.blocks) <= sum(counts[0])
    assert all(block.stamps.shape[0] == size for block in outcome.blocks)
