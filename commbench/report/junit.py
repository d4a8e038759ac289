"""JUnit XML, which CI systems read: of a run (`writer=junit`), and of the commands that judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from commbench.analysis.case_names import case_names
from commbench.core.errors import Unsaved
from commbench.core.states import status_of_run
from commbench.report.section import clean
from commbench.results.durable_files import DurableFiles, retry_s
from commbench.results.row import Row

from .row_writer import RowWriter

JUNIT_XML = "junit.xml"


@dataclass(frozen=True)
class JunitCase:
    """`failure` is its kind, `reason` why it failed or was skipped."""

    group: str
    name: str
    seconds: float | None = None
    failure: str = ""
    is_skipped: bool = False
    reason: str = ""
    output: Sequence[str] = ()


def junit_xml(
    suite: str,
    cases: Sequence[JunitCase],
    properties: Iterable[tuple[str, str]] = (),
    output: Sequence[str] = (),
) -> str:
    """One suite."""
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(
        root,
        "testsuite",
        name=suite,
        tests=str(len(cases)),
        failures=str(sum(bool(case.failure) for case in cases)),
        errors="0",
        skipped=str(sum(case.is_skipped for case in cases)),
    )
    if known := list(properties):
        parent = ElementTree.SubElement(element, "properties")
        for name, value in known:
            ElementTree.SubElement(parent, "property", name=name, value=value)
    for case in cases:
        _add(element, case)
    ElementTree.SubElement(element, "system-out").text = "\n".join(output)
    ElementTree.indent(root)
    return clean(ElementTree.tostring(root, encoding="unicode", xml_declaration=True)) + "\n"


def _add(suite: ElementTree.Element, case: JunitCase) -> None:
    element = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"commbench.{case.group}",
        name=case.name,
        time=f"{case.seconds or 0.0:.9f}",
    )
    if case.failure:
        failure = ElementTree.SubElement(element, "failure", message=case.reason, type=case.failure)
        failure.text = case.reason
    elif case.is_skipped:
        ElementTree.SubElement(element, "skipped", message=case.reason)
    if any(case.output):
        ElementTree.SubElement(element, "system-out").text = "\n".join(filter(None, case.output))


@dataclass
class Junit(RowWriter):
    """A Writer of junit.xml in the run's folder: a test case for each case, and one for the bounds
    of `expect` and a search for slow nodes."""

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        super().begin(run, folder)
        self._files = DurableFiles(Path(folder))

    def finish(self, run: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Raises Unsaved where the file can't be written."""
        text = junit_xml(
            f"commbench {run['backend']['name']}",
            [*junit_cases(rows), *_of_the_run(run)],
            [("run_id", run["run_id"]), ("overrides", " ".join(run.get("overrides", ())))],
        )
        self._files.put(JUNIT_XML, text.encode())
        if not self._files.retry(retry_s(status_of_run(run))):
            raise Unsaved(f"{self._files.folder / JUNIT_XML}: {self._files.error}")


def junit_cases(rows: Sequence[Row]) -> list[JunitCase]:
    """A case that failed or was wrong is a failure; its time is the median."""
    return [
        JunitCase(
            row.benchmark,
            name,
            row.median_s,
            failure=row.status if row.status in ("failed", "invalid") else "",
            is_skipped=row.status == "skipped",
            reason=row.reason or "",
        )
        for name, row in zip(case_names(rows), rows, strict=True)
    ]


def _of_the_run(run: Mapping[str, Any]) -> list[JunitCase]:
    status = status_of_run(run)
    reason = run.get("reason") or ""
    if status != "done":
        return [JunitCase("run", "the run ended", failure=str(status), reason=reason)]
    return [JunitCase("run", "expect", failure="missed", reason=reason)] if reason else []
