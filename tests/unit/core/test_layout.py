"""NxM: read strictly, fitted into worlds of any form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout, alike_pairs, all_pairs, pairs_text, rounds

layouts = st.builds(Layout, st.integers(1, 4), st.integers(1, 4))


def world_of(widths: list[int]) -> World:
    """Nodes with so many ranks each, numbered through."""
    firsts = [sum(widths[:node]) for node in range(len(widths))]
    nodes = tuple(
        tuple(range(first, first + wide)) for first, wide in zip(firsts, widths, strict=True)
    )
    return World(0, sum(widths), nodes, (0,))


worlds = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(world_of)


@given(st.integers(1, 362), st.integers(1, 362))  # their product is within the bound on ranks
def test_a_layout_survives_the_round_trip(nodes: int, ranks: int) -> None:
    layout = Layout.parse(f"{nodes}x{ranks}")
    assert (layout.nodes, layout.ranks_per_node, layout.size) == (nodes, ranks, nodes * ranks)
    assert Layout.parse(str(layout)) == layout


@given(st.one_of(st.text(max_size=8), st.text("0123456789x-+ ", max_size=8)))
def test_any_other_text_is_refused(text: str) -> None:
    if re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        return
    with pytest.raises(ConfigError, match="is not a layout"):
        Layout.parse(text)


@pytest.mark.parametrize(
    "text",
    ["0x2", "2x0", "02x2", "2X4", "2*4", "2x4\n", "x4", "1x2x3", "-1x2", 12, 1.2, True, None],
)
def test_texts_that_resemble_a_layout_are_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="is not a layout"):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("text", "widths", "members"),
    [
        ("1x2", [4], (0, 1)),
        ("2x2", [4, 4], (0, 1, 4, 5)),
        ("3x1", [2, 2, 2], (0, 2, 4)),
        ("2x2", [2, 1, 2], (0, 1, 3, 4)),  # the narrow node is left out
    ],
)
def test_members_come_node_after_node(
    text: str, widths: list[int], members: tuple[int, ...]
) -> None:
    layout = Layout.parse(text)
    world = world_of(widths)
    assert layout.misfit(world) is None
    assert layout.members(world) == members


@pytest.mark.parametrize(
    ("text", "widths"), [("1x4", [2]), ("2x1", [8]), ("2x2", [2, 1]), ("1x2", [1, 2])]
)
def test_a_misfit_says_what_there_is(text: str, widths: list[int]) -> None:
    reason = Layout.parse(text).misfit(world_of(widths))
    assert reason is not None
    assert text in reason and " + ".join(map(str, widths)) in reason


@given(layouts, worlds)
def test_what_fits_has_rank_zero_and_equal_nodes(layout: Layout, world: World) -> None:
    if layout.misfit(world) is None:
        members = layout.members(world)
        assert members[0] == 0
        assert len(set(members)) == len(members) == layout.size
        shares = [len(set(node) & set(members)) for node in world.nodes]
        assert (
            sorted(shares, reverse=True)[: layout.nodes] == [layout.ranks_per_node] * layout.nodes
        )


@given(layouts, worlds)
def test_a_layout_fits_if_rank_zeros_node_and_enough_others_are_wide(
    layout: Layout, world: World
) -> None:
    wide = [len(node) >= layout.ranks_per_node for node in world.nodes]
    assert (layout.misfit(world) is None) == (wide[0] and sum(wide) >= layout.nodes)


pairs = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=60)


@pytest.mark.parametrize(
    ("widths", "text"),
    [
        ([2, 2], None),
        (
            [3, 1],
            "layout 2x1 uses 2 of 4 ranks, ranks 1-2 are idle: a layout has as many ranks on each"
            " node, here are 3 + 1",
        ),
        (
            [1, 2],
            "layout 2x1 uses 2 of 3 ranks, rank 2 is idle: a layout has as many ranks on each node,"
            " here are 1 + 2",
        ),
    ],
)
def test_ranks_without_a_place_in_the_layout_of_a_world_are_named(
    widths: list[int], text: str | None
) -> None:
    world = world_of(widths)
    assert Layout.of_all(world).idle_text(world) == text


@pytest.mark.parametrize(
    ("text", "nodes", "numbers"),
    [
        ("2x2", ((0, 1), (2, 3)), None),
        ("1x2", ((0, 1), (2, 3)), None),
        ("2x1", ((0, 1), (2, 3)), "0, 2"),
        ("2x2", ((0, 2), (1, 3)), "0, 2, 1, 3"),  # dealt out node by node
        ("2x1", ((0, 1, 2), (3,)), "0, 3"),
        ("1x8", ((0, 1), (2, 3)), None),  # does not fit
    ],
)
def test_pairs_say_which_ranks_of_the_world_they_are(
    text: str, nodes: tuple[tuple[int, ...], ...], numbers: str | None
) -> None:
    numbering = Layout.parse(text).numbering_text(nodes)
    ends = f"of its pairs are ranks {numbers} of the world"
    assert numbering is None if numbers is None else str(numbering).endswith(ends)


@pytest.mark.parametrize("size", range(1, 18))
def test_the_full_matrix_has_as_few_rounds_as_there_can_be(size: int) -> None:
    matrix = all_pairs(size)
    assert sorted(matrix) == [(a, b) for a in range(size) for b in range(size)]
    packed = rounds(matrix)
    one_way = 0 if size == 1 else size - 1 if size % 2 == 0 else size
    assert len(packed) == 1 + 2 * one_way, (
        "each with itself at once, then n-1 rounds there and n-1 back"
    )
    assert all(len(step) == size // 2 for step in packed[1:])


@pytest.mark.parametrize("nodes", range(1, 5))
@pytest.mark.parametrize("ranks_per_node", range(1, 5))
def test_the_full_matrix_is_counted_without_making_it(nodes: int, ranks_per_node: int) -> None:
    layout = Layout(nodes, ranks_per_node)
    matrix = all_pairs(layout.size)
    own = [pair for pair in matrix if pair[0] == pair[1]]
    within = [
        pair
        for pair in matrix
        if pair[0] != pair[1] and len({rank // ranks_per_node for rank in pair}) == 1
    ]
    counts = [len(own), len(within), len(matrix) - len(own) - len(within)]
    serial = alike_pairs(layout, at_once=False)
    assert [alike.cases for alike in serial] == [count for count in counts if count]
    at_once = alike_pairs(layout, at_once=True)
    packed = rounds(matrix)
    assert sum(alike.cases for alike in at_once) == len(packed)
    assert [list(at_once[0].first), list(at_once[-1].last)] == [packed[0], packed[-1]]
    assert all(list(alike.first) in packed for alike in at_once)
    assert {pair for alike in serial for pair in (*alike.first, *alike.last)} <= set(matrix)


@given(pairs)
def test_rounds_share_no_rank_and_lose_no_pair(chosen: list[tuple[int, int]]) -> None:
    packed = rounds(chosen)
    assert sorted(pair for step in packed for pair in step) == sorted(chosen)
    for step in packed:
        ranks = [rank for pair in step for rank in set(pair)]
        assert len(ranks) == len(set(ranks))


def test_neighbours_need_two_rounds() -> None:
    assert rounds([(rank, rank + 1) for rank in range(7)]) == [
        [(0, 1), (2, 3), (4, 5), (6, 7)],
        [(1, 2), (3, 4), (5, 6)],
    ]


def test_the_text_of_pairs() -> None:
    assert pairs_text([(0, 2), (1, 3)]) == "0-2 1-3"
    assert pairs_text([]) == ""
