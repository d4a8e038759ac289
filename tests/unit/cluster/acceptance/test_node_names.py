"""Many nodes in one line: ranges of what differs, and nothing that can't be one."""

from __future__ import annotations

import pytest

from commbench.cluster.acceptance.node_names import names_text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([f"node{n}" for n in range(32) if n != 10], "node0-9,11-31"),
        (["n007", "n008", "n012"], "n007-8,n012"),
        (["a1.site", "a2.site", "b1.site"], "a1-2.site,b1.site"),
        (["r1n1", "r1n2", "r2n1"], "r1n1-2,r2n1"),
        (["login"], "login"),
        ([], ""),
    ],
)
def test_names_that_differ_in_their_last_number_are_ranges(names: list[str], text: str) -> None:
    assert names_text(names) == text
