"""The control plane in two levels over real stores: order, subsets across nodes, late ranks of both
levels named."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from connected_ranks import client_of, connected, on_ranks, open_store
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_threads import SOON_S, delays, no_error, together

from commbench.core.case import World
from commbench.core.errors import Missing, StoreLost
from commbench.core.protocols import Control
from commbench.runtime.control import NodeControl, StoreControl, by_node, join_nodes
from commbench.runtime.store import packed, unpacked

Nodes = tuple[tuple[int, ...], ...]
TWO: Nodes = ((0, 1), (2, 3))
CYCLIC: Nodes = ((0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11))
UNEVEN: Nodes = ((0,), (1, 2, 3, 4, 5), (6, 7))
FOUR: Nodes = tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4))
SHAPES = [TWO, CYCLIC, UNEVEN, FOUR, ((0, 1, 2),), ((0,), (1,), (2,))]


def join(plain: StoreControl, nodes: Nodes, deadline_s: float = SOON_S) -> Control:
    return join_nodes(World(plain.rank, plain.size, nodes, (plain.rank,)), plain, deadline_s)


@contextmanager
def joined(nodes: Nodes) -> Iterator[list[NodeControl]]:
    """The control planes of all ranks; each has a connection of its own to rank 0's store and to
    its node's."""
    plain = connected(sum(len(node) for node in nodes))
    controls = no_error(together(lambda control: join(control, nodes), plain))
    assert all(isinstance(control, NodeControl) for control in controls)
    yield controls


def partitions(most: int) -> st.SearchStrategy[Nodes]:
    """Ranks 0 ... n-1 on nodes as a launcher may lay them out; nodes in the order of their first
    ranks."""

    def nodes(homes: list[int]) -> Nodes:
        by_home: dict[int, list[int]] = {}
        for rank, home in enumerate(homes):
            by_home.setdefault(home, []).append(rank)
        return tuple(tuple(node) for node in by_home.values())

    return st.lists(st.integers(0, 3), min_size=2, max_size=most).map(nodes)


# ---------------------------------------------------------------- meetings


@pytest.mark.parametrize("nodes", SHAPES)
def test_values_come_in_rank_order_and_decisions_are_equal(nodes: Nodes) -> None:
    def work(control: NodeControl) -> list[Any]:
        pause = delays(control.rank, 0.01)
        seen = []
        rank = control.rank
        for turn in range(5):
            next(pause)
            everyone = [[peer, turn, "é"] for peer in range(control.size)]
            assert control.gather([rank, turn, "é"], SOON_S) == (everyone if rank == 0 else [])
            parts = control.collect(np.full((rank % 2, turn, 2), rank, dtype=np.int64), SOON_S)
            assert [part.shape for part in parts] == [
                (peer % 2, turn, 2) for peer in range(len(parts))
            ]
            assert all((part == peer).all() for peer, part in enumerate(parts))
            next(pause)
            seen.append(control.decide({"turn": turn, "rank": rank, "none": None}, SOON_S))
            seen.append(control.agree(f"rank {rank}" if 0 < turn <= rank else None, SOON_S))
        control.farewell(SOON_S)
        return seen

    with joined(nodes) as controls:
        seen = no_error(together(work, controls))
    assert all(answers == seen[0] for answers in seen)
    assert [decision["rank"] for decision in seen[0][::2]] == [0] * 5
    assert seen[0][1::2] == [
        None,
        *(f"rank {turn}" if turn < len(seen) else None for turn in range(1, 5)),
    ]


@settings(max_examples=15)
@given(nodes=partitions(8), data=st.data())
def test_any_subset_of_any_partition_meets(nodes: Nodes, data: st.DataObject) -> None:
    size = sum(len(node) for node in nodes)
    some = st.lists(st.sampled_from(range(size)), min_size=1, unique=True)
    outer = data.draw(some, label="subset")
    inner = data.draw(
        st.lists(st.sampled_from(range(len(outer))), min_size=1, unique=True), label="of the subset"
    )

    def work(control: NodeControl) -> list[Any]:
        seen: list[Any] = []
        for part in chosen(control, outer, inner):
            expected = [outer, [outer[index] for index in inner]][len(seen) // 2]
            seen += [part.gather(control.rank, SOON_S), part.decide(control.rank, SOON_S)]
            assert seen[-2:] == [expected if part.rank == 0 else [], expected[0]]
        return [control.gather(control.rank, SOON_S), control.decide(control.rank, SOON_S)]

    with joined(nodes) as controls:
        ends = no_error(together(work, controls))
    assert ends == [[list(range(size)), 0], *([[[], 0]] * (size - 1))]


def chosen(
    control: NodeControl, outer: Sequence[int], inner: Sequence[int]
) -> Iterator[NodeControl]:
    """The control planes of the subset, and of the subset of it, that this rank belongs to."""
    if control.rank in outer:
        part = control.subset(outer)
        assert part is control.subset(outer) and (part.rank, part.size) == (
            outer.index(control.rank),
            len(outer),
        )
        yield part
        if part.rank in inner:
            yield part.subset(inner)


def test_two_subsets_meet_at_the_same_time() -> None:
    groups = {
        0: (0, 5, 6),
        5: (0, 5, 6),
        6: (0, 5, 6),
        7: (7, 3, 2, 4),
        3: (7, 3, 2, 4),
        2: (7, 3, 2, 4),
        4: (7, 3, 2, 4),
    }

    def work(control: NodeControl) -> list[Any]:
        seen: list[Any] = []
        if control.rank in groups:
            ranks = groups[control.rank]
            pause = delays(control.rank, 0.002)
            for turn in range(20):
                next(pause)
                assert control.subset(ranks).gather(control.rank, SOON_S) in ([], list(ranks))
                seen.append(control.subset(ranks).decide([control.rank, turn], SOON_S))
        return [seen, control.decide(control.rank, SOON_S)]

    with joined(UNEVEN) as controls:
        ends = no_error(together(work, controls))
    for rank, end in enumerate(ends):
        assert end == [[[groups[rank][0], turn] for turn in range(20)] if rank in groups else [], 0]


@given(st.lists(st.binary(max_size=20), max_size=9))
def test_packages_are_unpacked_as_they_were(parts: list[bytes]) -> None:
    assert unpacked(packed(parts)) == parts


# ---------------------------------------------------------------- who is late


@pytest.mark.parametrize(
    ("nodes", "absent"),
    [
        (TWO, {1}),  # beside rank 0
        (TWO, {3}),  # led by 2
        (TWO, {2}),  # leads 3
        (TWO, {2, 3}),
        (FOUR, {3, 5, 7, 8, 15}),
        (CYCLIC, {6, 1, 11}),
    ],
)
def test_late_ranks_of_both_levels_are_named_within_the_deadline(
    nodes: Nodes, absent: set[int]
) -> None:
    leaders = {node[0] for node in nodes}
    named = {
        rank
        for rank in absent
        if rank in leaders or next(n[0] for n in nodes if rank in n) not in absent
    }

    def work(control: NodeControl) -> float:
        if control.rank in absent:
            return 0.0
        begin = time.monotonic()
        with pytest.raises(Missing, match="the check") as caught:
            control.agree(None, 0.6, "the check")
        late = set(caught.value.ranks)
        assert late == named if control.rank == 0 else late <= named | {0}, (
            f"rank {control.rank} blames {late}"
        )
        return time.monotonic() - begin

    with joined(nodes) as controls:
        waited = no_error(together(work, controls))
    assert 0.5 <= waited[0] < SOON_S / 4
    assert all(
        0.8 <= waited[rank] < SOON_S / 2 for rank in range(1, len(waited)) if rank not in absent
    )


def test_a_rank_whose_leader_waits_for_rank_0_names_rank_0() -> None:
    def work(control: NodeControl) -> tuple[int, ...]:
        if control.rank == 0:
            return ()
        with pytest.raises(Missing) as caught:
            control.decide(None, 0.5)
        return caught.value.ranks

    with joined(UNEVEN) as controls:
        assert no_error(together(work, controls)) == [(), *([(0,)] * 7)]


def test_a_rank_names_its_leader_that_does_not_pass_the_decision_on() -> None:
    with joined(TWO) as controls:
        controls[0].decide("stop", SOON_S)
        with pytest.raises(
            Missing, match=r"rank 2 did not arrive at 'after the block' within 0\.6 s"
        ):
            controls[3].decide(None, 0.4, "after the block")


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_late_rank_is_only_missed_after_the_deadline(late: int) -> None:
    """The others report it while they wait, and take that back."""

    def work(control: NodeControl) -> list[Any]:
        if control.rank == late:
            time.sleep(0.6)
        return [
            control.gather(control.rank, 2.0),
            control.decide("on", 2.0),
            control.gather(None, SOON_S),
        ]

    with joined(TWO) as controls:
        assert no_error(together(work, controls))[0] == [[0, 1, 2, 3], "on", [None] * 4]
        assert not any(controls[0].store.check([f"waits/{rank}"]) for rank in range(4))


LEADER = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
from commbench.core.case import World
from commbench.runtime.control import StoreControl, join_nodes
client = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=20))
control = join_nodes(World(2, 4, ((0, 1), (2, 3)), (2,)), StoreControl(client, 2, 4), 60)
control.agree(None, 20)
time.sleep(100)
"""


def test_a_leader_that_is_gone_is_named_by_rank_0_and_by_those_it_led(
    tmp_path: Path, warm_executable: Path
) -> None:
    server = open_store()
    (tmp_path / "leader.py").write_text(LEADER)
    with subprocess.Popen(
        [str(warm_executable), str(tmp_path / "leader.py"), str(server.port)]
    ) as leader:

        def enter(rank: int) -> Control:
            # its imports
            return join(StoreControl(client_of(server.port), rank, 4), TWO, deadline_s=30.0)

        controls = no_error(together(enter, [0, 1, 3]))
        no_error(together(lambda control: control.agree(None, SOON_S), controls))
        leader.kill()
        leader.wait(10)
    begin = time.monotonic()
    with pytest.raises(StoreLost, match="the store on rank 2 was lost at 'the end'"):
        controls[2].decide(None, SOON_S, "the end")
    assert time.monotonic() - begin < SOON_S / 4
    controls[1].gather(None, 1.0)
    with pytest.raises(Missing) as caught:
        controls[0].gather(None, 0.5)
    assert caught.value.ranks == (2,)


# ---------------------------------------------------------------- what stays behind


def test_keys_are_cleaned_up_in_both_stores() -> None:
    counts: list[tuple[int, int]] = []

    def work(control: NodeControl) -> None:
        for turn in range(40):
            for part in (
                (control, control.subset((0, 1, 4, 8)))
                if control.rank in (0, 1, 4, 8)
                else (control,)
            ):
                part.collect(np.zeros((1, 3, 2), dtype=np.int64), SOON_S)
                part.decide([turn, None], SOON_S)
            if control.rank == 0:
                counts.append((control.store.num_keys(), control._local.store.num_keys()))

    with joined(FOUR) as controls:
        no_error(together(work, controls))
    wide, local = zip(*counts, strict=True)
    # two turns of both, and the first meeting's
    assert max(wide) <= 2 * 2 * (3 + 1) + 2 * 2 * (2 + 1) + 2
    assert max(local) <= 2 * 2 * (3 + 1) + 2 * 2 * (1 + 1) + 2


def test_alone_on_its_node_a_rank_needs_no_key_there() -> None:
    with joined(((0,), (1,), (2,))) as controls:
        no_error(together(lambda control: control.agree(None, SOON_S), controls))
        assert [control._local.store.num_keys() for control in controls] == [
            controls[0]._local.store.num_keys()
        ] * 3


# ---------------------------------------------------------------- where it is used


@pytest.mark.parametrize(
    ("nodes", "flat_ranks", "levels"),
    [(TWO, 3, 2), (TWO, 4, 1), (((0, 1),), 1, 1), (((0,), (1,)), 1, 1)],
)
def test_only_large_worlds_of_shared_nodes_have_two_levels(
    nodes: Nodes, flat_ranks: int, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commbench.runtime.control.FLAT_RANKS", flat_ranks)
    size = sum(len(node) for node in nodes)

    def work(plain: StoreControl) -> int:
        control = by_node(World(plain.rank, size, nodes, (plain.rank,)), plain)
        assert control.decide(plain.rank, SOON_S) == 0
        control.farewell(SOON_S)  # a leader takes its node's store along
        assert control.store is plain.store  # type: ignore[attr-defined]
        return 1 if control is plain else 2

    assert on_ranks(size, work) == [levels] * size


def test_a_node_that_can_host_no_store_leaves_all_with_the_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commbench.runtime.control.LOOPBACK", "192.0.2.1")  # nobody's address

    def work(plain: StoreControl) -> Any:
        control = join(plain, TWO)
        assert isinstance(control, StoreControl)
        return control.decide(plain.rank, SOON_S)

    assert on_ranks(4, work) == [0] * 4
