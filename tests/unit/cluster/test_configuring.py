"""A run that a search can't be in is refused."""

from __future__ import annotations

import pytest
from composed import settings_of

from commbench.core.errors import ConfigError

SEARCHING = ("pairs=search", "schedule=rounds", "benchmark=[p2p_bandwidth,p2p_latency]")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("benchmark=all_reduce", "pairs of ranks, which all_reduce has none of"),
        ("schedule=serial", "it needs schedule=rounds"),
        ("overlap=sleep", "use overlap=none"),
        ("layout=[8x1,5x1]", "takes one layout"),
        ("search.slowdown=0", "search.slowdown=0.0 must be at least 0.01"),
        ("search.switches=[a]", "search.switches"),
        ("search.size=3", "search.size"),
    ],
)
def test_a_search_that_can_not_be_is_refused_in_one_line(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        settings_of("backend=simulated", "layout=8x1", "sizes=[8]", *SEARCHING, word)
    assert "\n" not in str(refused.value)
