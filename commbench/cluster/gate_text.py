"""The answers of a gate as text for a terminal, and as JUnit XML, which CI systems read."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from commbench.core.texts import microseconds_text
from commbench.report.section import Section, Table, clean

from .gate import ORDER, CaseAnswer, GateNumbers, GateResult, loss_text

SUITE = "commbench accept"
ANSWER_COLORS = {"FAIL": "red", "UNDECIDED": "yellow", "PASS": "green"}
GATE_HEADS = (
    "case", "answer", "healthy\nus", "limit\nus", "measured\nus", "loss", "at most", "launches",
    "why",
)  # fmt: skip
PRIORITIES = {
    "healthy\nus": 2,
    "limit\nus": 2,
    "measured\nus": 1,
    "loss": 1,
    "at most": 1,
    "launches": 3,
}


def gate_section(result: GateResult) -> Section:
    """The answer, what it rests on, a table of the cases, failures first, and what must be said
    beside them."""
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
        [each.name, each.answer, *_number_cells(each.numbers), each.short_reason or each.reason]
        for each in answers
    ]


def _number_cells(numbers: GateNumbers | None) -> list[str]:
    if numbers is None:
        return ["-"] * 6
    limit = microseconds_text(numbers.limit_s) if math.isfinite(numbers.limit_s) else "none"
    return [
        microseconds_text(numbers.healthy_s),
        limit,
        microseconds_text(numbers.measured_s),
        loss_text(numbers.loss),
        loss_text(numbers.most_loss),
        f"{numbers.healthy_launches} / {numbers.new_launches}",
    ]


# ---------------------------------------------------------------- JUnit


def junit_text(result: GateResult) -> str:
    """A test case for each answer. FAIL is a failure; UNDECIDED is skipped, because nothing is
    known to be wrong, with the reason as its message."""
    suite = ElementTree.Element(
        "testsuite",
        name=SUITE,
        tests=str(len(result.answers)),
        failures=str(result.count("FAIL")),
        errors="0",
        skipped=str(result.count("UNDECIDED")),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, texts in (("basis", result.basis), ("note", result.notes)):
        for text in texts:
            ElementTree.SubElement(properties, "property", name=name, value=clean(text))
    for each in result.answers:
        _add_test_case(suite, each)
    ElementTree.SubElement(suite, "system-out").text = clean("\n".join(result.findings))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_test_case(suite: ElementTree.Element, answer: CaseAnswer) -> None:
    measured_s = 0.0 if answer.numbers is None else answer.numbers.measured_s
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"commbench.{answer.kind}",
        name=clean(answer.name),
        time=f"{measured_s:.9f}",
    )
    reason = clean(answer.reason)
    if answer.answer == "FAIL":
        failure = ElementTree.SubElement(case, "failure", message=reason, type="FAIL")
        failure.text = reason
    elif answer.answer == "UNDECIDED":
        ElementTree.SubElement(case, "skipped", message=f"UNDECIDED: {reason}")
    if answer.finding:
        ElementTree.SubElement(case, "system-out").text = clean(answer.finding)
