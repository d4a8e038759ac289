"""What a turn of `watch` says."""

from dataclasses import replace
from pathlib import Path

from sample_cases import CASE

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.watch.changes import JudgedCase, Outcome
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.state import KnownChange
from commbench.cluster.watch.text import MOST_CHANGED, turn_lines


def changed(message_bytes: int, ratio: float | None) -> JudgedCase:
    change = KnownChange("SLOWER", "20261101T000000.000000-0000", ratio)
    case = replace(CASE, message_bytes=message_bytes)
    outcome = Outcome("unasked", "SLOWER")
    return JudgedCase(case, None, CaseHistory((), (), change), None, None, outcome, change)


def test_of_many_changed_cases_the_farthest_have_a_line() -> None:
    judged = [changed(size, 1 + size / 100) for size in range(1, 21)]
    lines = turn_lines([*judged, changed(99, None)], None, [], FreshLaunch(Path(), {}, {}, 0))
    shown = [line.partition(":")[0] for line in lines[1:] if ": SLOWER " in line]
    assert len(shown) == MOST_CHANGED
    assert shown[0].endswith(" 14 B") and shown[-1].endswith(" 99 B")
    assert "and 13 cases with less" in lines


def test_few_changed_cases_have_a_line_each() -> None:
    lines = turn_lines(
        [changed(8, 1.2), changed(64, 1.1)], None, [], FreshLaunch(Path(), {}, {}, 0)
    )
    assert sum(": SLOWER " in line for line in lines[1:]) == 2
