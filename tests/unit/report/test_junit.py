"""junit.xml of a run: what CI counts as failed, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from sample_cases import RUN, measured_row

from commbench.report.junit import Junit
from commbench.results.writer import Entry

DONE = RUN | {"status": "done", "exit_status": 0, "reason": None}


def suite(folder: Path, *rows: dict[str, Any], **run: Any) -> ElementTree.Element:
    writer = Junit()
    writer.begin(DONE, str(folder))
    for row in rows:
        writer.cases([Entry(row)])
    writer.end(DONE | run)
    (found,) = ElementTree.parse(folder / "junit.xml").getroot()
    return found


def test_failed_and_wrong_cases_are_failures_and_skipped_ones_are_skipped(tmp_path: Path) -> None:
    rows = [
        measured_row("all_reduce", case_id=status, status=status, reason=f"why {status}")
        for status in ("ok", "failed", "invalid", "skipped")
    ]
    found = suite(tmp_path, *rows)
    counts = (found.get("tests"), found.get("failures"), found.get("skipped"))
    assert counts == ("4", "2", "1")
    failures = found.findall("testcase/failure")
    assert [each.get("message") for each in failures] == ["why failed", "why invalid"]
    assert found.find("testcase/skipped").get("message") == "why skipped"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("status", "kind"), [("done", "missed"), ("broken", "broken"), ("interrupted", "interrupted")]
)
def test_a_missed_bound_and_a_run_that_did_not_end_are_failures(
    tmp_path: Path, status: str, kind: str
) -> None:
    found = suite(tmp_path, measured_row("barrier"), status=status, reason="rank 1 was lost")
    (failure,) = found.findall("testcase/failure")
    assert (failure.get("type"), failure.get("message")) == (kind, "rank 1 was lost")
