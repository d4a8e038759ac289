"""Operations on groups at once, as a text."""

from __future__ import annotations

import pytest

from commbench.core.errors import ConfigError
from commbench.features.groups.operations import GroupEntry, parse_group_operations

BOTH = "all_reduce@tp2 + all_gather@dp2=1MiB"


def test_the_parts_of_a_text_are_read() -> None:
    operations = parse_group_operations(BOTH)
    assert [entry.operation for entry in operations.entries] == ["all_reduce", "all_gather"]
    assert [entry.size_bytes for entry in operations.entries] == [None, 2**20]
    assert (operations.timed, operations.free, operations.text) == (None, False, BOTH)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("world", [(0, 1, 2, 3, 4)]),
        ("tp2", [(0, 1), (2, 3)]),
        ("dp2", [(0, 2, 4), (1, 3)]),
        ("0-2", [(0, 1, 2)]),
        ("0,4", [(0, 4)]),
        ("tp1", []),
    ],
)
def test_groups_have_at_least_two_ranks(place: str, expected: list[tuple[int, ...]]) -> None:
    assert list(GroupEntry.parse(f"all_reduce@{place}").groups(5)) == expected


def test_a_copy_has_no_other_ranks() -> None:
    for place in ("world", "tp2", "0-2"):
        ranks = GroupEntry.parse(f"copy_d2h@{place}=1MiB").groups(3)
        assert list(ranks) == [(0,), (1,), (2,)]


def test_operations_at_once_are_measured_alone_beside_each_other_and_together() -> None:
    texts = [each.text for each in parse_group_operations(BOTH).variants()]
    assert texts == [
        "all_reduce@tp2",
        "all_gather@dp2=1MiB",
        BOTH,
        "[all_reduce@tp2] + all_gather@dp2=1MiB",
        "all_reduce@tp2 + [all_gather@dp2=1MiB]",
    ]
    for text in texts:
        assert parse_group_operations(text).text == text


def test_a_latency_under_load_is_measured_alone_and_beside_it() -> None:
    texts = [
        each.text
        for each in parse_group_operations("p2p_latency@0-1 beside all_reduce@2-3").variants()
    ]
    assert texts == ["p2p_latency@0-1", "p2p_latency@0-1 beside all_reduce@2-3"]


def test_one_operation_is_only_itself() -> None:
    assert [each.text for each in parse_group_operations("all_reduce@tp2").variants()] == [
        "all_reduce@tp2"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("all_reduce", "write OPERATION@GROUPS"),
        ("sort@tp2", "operations: all_reduce"),
        ("all_reduce@xp2", "write OPERATION@GROUPS"),
        ("all_reduce@tp0", "write OPERATION@GROUPS"),
        ("all_reduce@tp2 + all_reduce@tp2", "names an operation twice"),
        (" + ".join(f"all_reduce@tp{width}" for width in range(2, 7)), "at most 4"),
        ("all_reduce@tp2=many", "many"),
    ],
)
def test_a_wrong_text_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_group_operations(text)
