"""What the first launch of a turn shows of a case, and whether fresh launches are asked."""

from __future__ import annotations

import pytest
from sample_cases import case_row
from watched_cases import (
    AFTER,
    SLOWER,
    STEADY,
    STEP,
    STEPPED,
    launch_of,
    launch_with,
    turn_of,
)

from commbench.cluster.watch.first_look import FirstLook
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.state import KnownChange
from commbench.stats.thresholds import DECIDING_LAUNCHES

FAILED = CaseHistory(STEADY.healthy, change=KnownChange("FAILED", "run008"))


def test_too_few_healthy_launches_give_no_verdict() -> None:
    few = CaseHistory(STEADY.healthy[: DECIDING_LAUNCHES - 1])
    assert turn_of(few, launch_of(1.0)).look == FirstLook("UNDECIDED")


def test_a_case_that_was_not_measured_is_undecided() -> None:
    assert turn_of(STEADY, launch_with(None)).look == FirstLook("UNDECIDED")
    assert turn_of(STEADY, launch_with(case_row(status="skipped"))).look == FirstLook("UNDECIDED")


@pytest.mark.parametrize(
    ("history", "median_s", "launch", "doubt"),
    [
        (STEADY, 1.005e-5, "SAME", ""),
        (STEADY, 1.3e-5, "SLOWER", "SLOWER in this launch alone"),
        (STEADY, 0.8e-5, "FASTER", "FASTER in this launch alone"),
        (STEADY, None, "FAILED", "FAILED in this launch alone"),
        (SLOWER, 1.3e-5, "SLOWER", ""),
        (SLOWER, 1.0e-5, "SAME", "not SLOWER as before in this launch"),
        (SLOWER, 2.2e-5, "SLOWER", "not SLOWER as before in this launch"),
        (SLOWER, None, "FAILED", "not SLOWER as before in this launch"),
        (FAILED, None, "FAILED", ""),
        (FAILED, 1.0e-5, "SAME", "not FAILED as before in this launch"),
    ],
)
def test_what_is_otherwise_than_known_is_in_doubt(
    history: CaseHistory, median_s: float | None, launch: str, doubt: str
) -> None:
    assert turn_of(history, launch_of(median_s)).look == FirstLook(launch, doubt=doubt)


def test_what_many_turns_show_together_is_in_doubt_too() -> None:
    look = turn_of(STEPPED, launch_of(1.04e-5)).look
    assert (look.launch, look.doubt) == ("SAME", "SLOWER in the last launches together")


def test_launches_that_were_kept_aside_count_for_what_many_turns_show() -> None:
    assert turn_of(CaseHistory(STEP, AFTER), launch_of(1.04e-5)).look.doubt
    assert not turn_of(CaseHistory(STEP), launch_of(1.01e-5)).look.doubt
