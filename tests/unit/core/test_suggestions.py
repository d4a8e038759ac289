"""What a mistyped word may mean."""

from __future__ import annotations

import pytest

from commbench.core.suggestions import did_you_mean, nearest

OPERATIONS = ("all_gather", "all_reduce", "broadcast", "p2p_latency", "p2p_bandwidth", "reduce")
TIMINGS = ("default", "fixed", "quick", "rigorous", "soak")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("allreduce", "all_reduce"),
        ("All-Reduce", "all_reduce"),
        ("bcast", "broadcast"),
        ("latency", "p2p_latency"),
        ("all_reduec", "all_reduce"),
        ("bandwith", "p2p_bandwidth"),
        ("fast", "quick"),
        ("accurate", "rigorous"),
    ],
)
def test_the_first_suggestion_is_what_was_meant(word: str, meant: str) -> None:
    assert nearest(word, (*OPERATIONS, *TIMINGS))[0] == meant


def test_there_are_at_most_three_and_none_for_a_word_like_no_other() -> None:
    assert len(nearest("p2p", [f"p2p_{number}" for number in range(9)])) == 3
    assert did_you_mean("xyzzy", OPERATIONS) == ""
