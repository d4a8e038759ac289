"""What can be said of a cluster without a baseline: what was not measured, guidelines, limits and
known values."""

from __future__ import annotations

from commbench.cluster.gate.answers import (
    CaseAnswer,
    GateResult,
    above_limit,
    is_impossible,
    unmeasured_text,
)
from commbench.cluster.gate.checks import checks_of
from commbench.report.summary import Summary
from commbench.results.columns import case_text, row_order

NO_BASELINE = (
    "No baseline was given: guidelines, limits of the hardware and known values decide alone. They"
    " do not tell whether a healthy machine of this kind is faster."
)


def judge_without_baseline(summary: Summary) -> GateResult:
    """A FAIL for each case that was not measured, each violated guideline, and each known value
    that is missed; undecided where nothing of that applies."""
    rows = summary.results.rows
    unmeasured = sorted((row for row in rows if row.status != "ok"), key=row_order)
    answers = [
        CaseAnswer(row.benchmark, case_text(row), "FAIL", unmeasured_text(row))
        for row in unmeasured
    ]
    checks = checks_of(summary)
    answers += [
        CaseAnswer(each.kind, each.name, each.answer, each.reason)
        for each in checks.checks
        if each.answer is not None
    ]
    measured = [row for row in rows if row.status == "ok"]
    findings = [f"{case_text(row)}: {above_limit(row)}." for row in measured if is_impossible(row)]
    findings += [each.finding for each in checks.checks if each.answer == "PASS" and each.finding]
    return GateResult(
        tuple(answers),
        (NO_BASELINE, *checks.basis),
        tuple(findings),
        tuple(summary.unfinished),
    )
