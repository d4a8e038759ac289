"""docs/versions.md: which releases are compared, and what is written of two of them."""

from __future__ import annotations

from dataclasses import replace

from environments import LIBRARIES, newest_releases
from judged_cases import compared
from verdicts import chapter, nothing_to_compare, slower

GLOO, OPEN_MPI, MPICH = LIBRARIES
SAME = {"verdict": "SAME", "ratio": (1.0, 0.99, 1.01)}


def test_the_newest_release_of_each_series_is_compared_the_oldest_first() -> None:
    known = ["5.0.11", "5.0.10", "4.1.8", "4.1.7", "0.0.0"]
    assert newest_releases(known, OPEN_MPI) == ["4.1.8", "5.0.11"]
    known = ["5.0.1.post1", "5.0.1", "4.3.2"]
    assert newest_releases(known, MPICH) == ["4.3.2", "5.0.1.post1"]
    known = [f"2.{minor}.{patch}+cpu" for minor in range(14, 6, -1) for patch in (1, 0)]
    assert newest_releases(known, GLOO) == [f"2.{minor}.1+cpu" for minor in range(10, 15)]


def test_a_slower_case_is_written_as_fresh_launches_have_it() -> None:
    cases = compared({}, SAME, {"ratio": (1.5, 1.4, 1.6)})
    assert [case.variables.message_bytes for case in slower(cases)] == [8, 10]
    fresh = compared({"ratio": (1.25, 1.2, 1.3)}, SAME | {"message_bytes": 10})
    text = chapter("Open MPI 4.1.8 and 5.0.11", cases, fresh)
    title, summary, confirmed, *_ = text.split("\n\n")
    assert title == "## Open MPI 4.1.8 and 5.0.11"
    assert summary.startswith("1 of 3 cases SLOWER") and "1.250 x" in summary
    assert confirmed.startswith("2 cases were SLOWER at first") and "1 SLOWER, 1 SAME" in confirmed
    assert "1.5" not in text, "nothing of what was not confirmed"


def test_where_nothing_is_slower_there_is_nothing_to_confirm() -> None:
    text = chapter("MPICH 4.3.2 and 5.0.2", compared(SAME), [])
    assert "fresh launches" not in text and "| SAME |" in text


def test_launches_that_were_lost_are_written_with_their_reason() -> None:
    lost = replace(compared(SAME)[0], reason="lost its ranks 2 times")
    lost = replace(lost, new=replace(lost.new, unmeasured=1))
    text = chapter("MPICH 4.3.2 and 5.0.2", [lost, *compared(SAME)], [])
    assert "launches not used: 1 case\n" in text
    assert "BASE 0, NEW 1: lost its ranks 2 times" in text


def test_what_the_index_lacks_is_said() -> None:
    assert "the index has only 2.13.0+cpu" in nothing_to_compare("gloo", "torch", ["2.13.0+cpu"])
    assert "the index has none" in nothing_to_compare("gloo", "torch", [])
