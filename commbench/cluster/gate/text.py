"""The answers of a gate as text for a terminal, and as JUnit XML, which CI systems read."""

from __future__ import annotations

import math

from commbench.cluster.gate.answers import CaseAnswer, GateResult, loss_text
from commbench.core.texts import microseconds_text
from commbench.report.junit import JunitCase, junit_xml
from commbench.report.section import Section
from commbench.report.table import Table
from commbench.stats.verdict import GATES, Comparison

SUITE = "commbench accept"
ANSWER_COLORS = {"FAIL": "red", "SUSPECT": "red", "UNDECIDED": "yellow", "PASS": "green"}
GATE_HEADS = (
    "case", "answer", "healthy\nus", "measured\nus", "loss", "±", "seen\nfrom", "launches", "why",
)  # fmt: skip
PRIORITIES = {"healthy\nus": 2, "measured\nus": 1, "±": 2, "seen\nfrom": 1, "launches": 3}


def gate_section(result: GateResult) -> Section:
    """The answer, a table of the cases, failures first, what must be said beside them, and what the
    answer rests on."""
    rows = gate_rows(result)
    colors = {number: ANSWER_COLORS[row[1]] for number, row in enumerate(rows) if row[1] != "PASS"}
    cases = Table.of(GATE_HEADS, rows, priorities=PRIORITIES, colors=colors)
    return Section(
        result.sentence(),
        [f"finding: {text}" for text in result.findings],
        [cases] if rows else [],
        notes=[*result.basis, *result.notes],
    )


def gate_rows(result: GateResult) -> list[list[str]]:
    """The cells below GATE_HEADS, failures first."""
    answers = sorted(result.answers, key=lambda each: GATES.index(each.answer))
    return [
        [each.name, each.answer, *_number_cells(each.comparison), each.reason] for each in answers
    ]


def _number_cells(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["-"] * 6
    base, new = comparison.launches
    is_seen = math.isfinite(comparison.suspect_ratio)
    return [
        microseconds_text(comparison.base_s),
        microseconds_text(comparison.new_s),
        loss_text(comparison.ratio.value),
        comparison.ratio.width_text(),
        loss_text(comparison.suspect_ratio) if is_seen else "-",
        f"{base} / {new}",
    ]


# ---------------------------------------------------------------- JUnit


def junit_text(result: GateResult, allow_suspect: bool = False) -> str:
    """A test case for each answer. FAIL is a failure, SUSPECT too unless it is allowed; UNDECIDED
    is skipped, because nothing is known to be wrong, with the reason as its message."""
    failing = {"FAIL", *(() if allow_suspect else ("SUSPECT",))}
    properties = [("basis", text) for text in result.basis]
    properties += [("note", text) for text in result.notes]
    cases = [_test_case(each, each.answer in failing) for each in result.answers]
    return junit_xml(SUITE, cases, properties, result.findings)


def _test_case(answer: CaseAnswer, fails: bool) -> JunitCase:
    is_skipped = answer.answer == "UNDECIDED" and not fails
    suspect = f"SUSPECT: {answer.reason}" if answer.answer == "SUSPECT" else ""
    return JunitCase(
        answer.kind,
        answer.name,
        None if answer.comparison is None else answer.comparison.new_s,
        failure=answer.answer if fails else "",
        is_skipped=is_skipped,
        reason=f"UNDECIDED: {answer.reason}" if is_skipped else answer.reason,
        output=(answer.finding, suspect),
    )
