"""The record of a run that goes on: what it keeps of its first start, and what refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.measure.run_record import change_problem, continued_record
from commbench.runtime.recovery import EarlierStarts, Resume

BEFORE: dict[str, Any] = {
    "run_id": "first",
    "started_at": "2026-11-01",
    "status": "broken",
    "reason": "a rank was lost",
    "folder": "/before",
    "launches": {"planned": 3, "began": [0], "spent_s": 12.0},
    "provenance": {"nodes": [{"host.kernel": "6.1", "host.load_1min": 0.1}]},
}
NOW: dict[str, Any] = {
    "started_at": "2026-11-02",
    "status": "running",
    "launches": {"planned": 5, "began": [0], "spent_s": 0.0},
    "provenance": {"nodes": [{"host.kernel": "6.1", "host.load_1min": 9.0}]},
}


def test_a_resumed_run_keeps_its_name_and_lists_its_starts() -> None:
    run = continued_record(EarlierStarts(Resume.REST, BEFORE), NOW)
    assert (run["run_id"], run["started_at"], run["status"]) == ("first", "2026-11-01", "running")
    (start,) = run["starts"]
    assert (start["status"], start["reason"]) == ("broken", "a rank was lost")
    again = continued_record(EarlierStarts(Resume.REST, run), NOW)
    assert [each["status"] for each in again["starts"]] == ["broken", "running"]
    assert "starts" not in BEFORE and NOW["started_at"] == "2026-11-02", "nothing else has changed"


@pytest.mark.parametrize(
    ("resume", "began", "spent_s"),
    [
        (Resume.REST, [0], 12.0),
        (Resume.LAUNCH, [0, 1], 12.0),
        (Resume.RETRY, [0], 0.0),  # the user gives it new time
        (Resume.FORCE, [0], 0.0),
    ],
)
def test_launches_go_on(resume: Resume, began: list[int], spent_s: float) -> None:
    launches = continued_record(EarlierStarts(resume, BEFORE), NOW)["launches"]
    assert launches == {"planned": 5, "began": began, "spent_s": spent_s}


def test_a_machine_that_has_changed_is_refused_where_the_user_does_not_force_it() -> None:
    assert change_problem(EarlierStarts(Resume.RETRY, BEFORE), NOW) is None, "a load may differ"
    other = {"provenance": {"nodes": [{"host.kernel": "6.8"}, {"host.kernel": "6.8"}]}}
    text = change_problem(EarlierStarts(Resume.RETRY, BEFORE), other)
    assert text is not None and text.splitlines() == [
        "this is not as it was when the run began:",
        "  nodes: 1 then, 2 now",
        "  node 0, host.kernel: 6.1 then, 6.8 now",
        "accept it with: commbench resume --force",
    ]
    for resume in (Resume.FORCE, Resume.REST, Resume.LAUNCH):
        assert change_problem(EarlierStarts(resume, BEFORE), other) is None


def test_a_fact_that_could_not_be_read_has_not_changed() -> None:
    unread = {"provenance": {"nodes": [{"host.kernel": None}]}}
    assert change_problem(EarlierStarts(Resume.RETRY, BEFORE), unread) is None
