"""The answers of a gate as text for a terminal, and as JUnit XML, which CI systems read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree

from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.texts import microseconds_text
from commbench.report.svg import clean

from .gate import ORDER, CaseAnswer, GateNumbers, GateResult, loss_text

SUITE = "commbench accept"
ANSWER_COLORS = {"FAIL": "red", "UNDECIDED": "yellow", "PASS": "green"}
GATE_COLUMNS = (
    TableColumn("case"),
    TableColumn("answer"),
    TableColumn("healthy\nus", right=True, priority=2),
    TableColumn("limit\nus", right=True, priority=2),
    TableColumn("measured\nus", right=True, priority=1),
    TableColumn("loss", right=True, priority=1),
    TableColumn("at most", right=True, priority=1),
    TableColumn("launches", right=True, priority=3),
    TableColumn("why", prose=True),
)


def gate_text(result: GateResult, top: int, terminal: Terminal) -> str:
    """The answer, what it rests on, a table of the first `top` cases, failures first, and what must
    be said beside them."""
    rows = gate_rows(result)
    styles = {
        number: ANSWER_COLORS[row[1]] for number, row in enumerate(rows[:top]) if row[1] != "PASS"
    }
    parts = [
        terminal.styled(result.sentence(), ANSWER_COLORS[result.answer]),
        paragraphs(result.basis, terminal),
        table_text(GATE_COLUMNS, rows[:top], terminal, styles) if rows else "",
        f"... and {len(rows) - top} more: --top {len(rows)}" if len(rows) > top else "",
        _titled("Findings", result.findings[:top], terminal),
        _titled("Notes", result.notes, terminal),
    ]
    return "\n".join(filter(None, parts)) + "\n"


def _titled(title: str, lines: Sequence[str], terminal: Terminal) -> str:
    if not lines:
        return ""
    shown = paragraphs((f"  * {line}" for line in lines), terminal)
    return f"{terminal.styled(title, 'bold')}\n{shown}"


def gate_heads() -> list[str]:
    return [column.heading.replace("\n", ", ") for column in GATE_COLUMNS]


def gate_rows(result: GateResult) -> list[list[str]]:
    """The cells below GATE_COLUMNS, failures first."""
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
