"""What preflight prints of ranks that differ."""

from __future__ import annotations

from commbench.measure.difference import skew_text, table

FACTS = [{"host.hostname": f"node{rank // 2}"} for rank in range(6)]


def test_each_value_has_a_line_with_its_ranks_and_hosts() -> None:
    text = table(
        {"versions.torch": {"2.13.0": [0, 1, 2, 4, 5], "2.11.0": [3]}, "run.digest": {"a": [0], "b": [1]}}, FACTS
    )
    assert [line.split() for line in text.splitlines()] == [
        ["fact", "value", "ranks", "hosts"],
        ["versions.torch", "2.13.0", "0-2,4-5", "node0,", "node1,", "node2"],
        ["2.11.0", "3", "node1"],
        ["configuration", "(digest)", "a", "0", "node0"],
        ["b", "1", "node0"],
    ]
    assert len({line.index(word) for line, word in zip(text.splitlines()[1:3], ("2.13", "2.11"), strict=True)}) == 1


def test_long_values_and_many_hosts_are_cut() -> None:
    facts = [{"host.hostname": f"node{rank}"} for rank in range(9)]
    text = table({"environment.PATH": {"x" * 500: list(range(9)), "missing": []}}, facts)
    assert "x" * 45 + "..." in text and "and 5 more" in text and max(map(len, text.splitlines())) < 160


def test_clocks_are_told_from_a_second_on() -> None:
    assert skew_text([100.0, 100.4, 100.9], FACTS) is None
    assert skew_text([100.0, 99.9, 97.5], FACTS) == (
        "the clock of node0 (rank 0) is 2.5 s ahead of that of node1 (rank 2); set them by NTP"
    )
