"""What `commbench locate` adds to the words of its user."""

from __future__ import annotations

from commbench.cluster.search.command import with_defaults


def test_the_users_words_replace_those_of_a_search() -> None:
    words = with_defaults(["sizes=[8,4MiB]", "timing.case_s=2", "layout=8x1"])
    assert "pairs=search" in words
    assert [word for word in words if word.startswith("sizes=")] == ["sizes=[8,4MiB]"]
    assert [word for word in words if word.startswith("timing")] == [
        "timing=quick",
        "timing.visits=1",
        "timing.case_s=2",
    ]
