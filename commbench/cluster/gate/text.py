"""The answers of a gate as text for a terminal, and as JUnit XML, which CI systems read."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from commbench.cluster.gate.decision import ORDER, CaseAnswer, GateResult, loss_text
from commbench.core.texts import microseconds_text
from commbench.report.section import Section, Table, clean
from commbench.stats.verdict import Comparison

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
    cases = Table(GATE_HEADS, rows, priorities=PRIORITIES, colors=colors)
    return Section(
        result.sentence(),
        [f"finding: {text}" for text in result.findings],
        [cases] if rows else [],
        notes=[*result.basis, *result.notes],
    )


def gate_rows(result: GateResult) -> list[list[str]]:
    """The cells below GATE_HEADS, failures first."""
    answers = sorted(result.answers, key=lambda each: ORDER.index(each.answer))
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
    suite = ElementTree.Element(
        "testsuite",
        name=SUITE,
        tests=str(len(result.answers)),
        failures=str(sum(each.answer in failing for each in result.answers)),
        errors="0",
        skipped=str(len(result.of("UNDECIDED"))),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, texts in (("basis", result.basis), ("note", result.notes)):
        for text in texts:
            ElementTree.SubElement(properties, "property", name=name, value=clean(text))
    for each in result.answers:
        _add_test_case(suite, each, each.answer in failing)
    ElementTree.SubElement(suite, "system-out").text = clean("\n".join(result.findings))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_test_case(suite: ElementTree.Element, answer: CaseAnswer, fails: bool) -> None:
    measured_s = 0.0 if answer.comparison is None else answer.comparison.new_s
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"commbench.{answer.kind}",
        name=clean(answer.name),
        time=f"{measured_s:.9f}",
    )
    reason = clean(answer.reason)
    if fails:
        failure = ElementTree.SubElement(case, "failure", message=reason, type=answer.answer)
        failure.text = reason
    elif answer.answer == "UNDECIDED":
        ElementTree.SubElement(case, "skipped", message=f"UNDECIDED: {reason}")
    findings = [answer.finding, f"SUSPECT: {reason}" if answer.answer == "SUSPECT" else ""]
    if any(findings):
        ElementTree.SubElement(case, "system-out").text = clean("\n".join(filter(None, findings)))
