"""Published values in a report and its figures, at the end of their experiments, and in a verdict
without a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from commbench.report import plots
from commbench.report.numbers import lines_by_window
from commbench.report.reporting import Check, Checks, Reporting, SectionsOf
from commbench.report.section import Section
from commbench.report.sections import table
from commbench.report.summary import Summary
from commbench.results.row import Row

from .derived import cases_by_hardware, documents_of, hardware_of, judged_of
from .layers import layers_of
from .lines import lines_without, normal_lines
from .normal import FAST, NORMAL, SLOW, Judged, reference_note
from .quiz import QUIZ
from .reference import Reference, of_experiment
from .sections import document_sections, known_curves, quiz_sections
from .waterfall import waterfall

KIND = "known value"
MOST_LAYERS = 6
HEADS = (
    "measured case",
    "measured",
    "known value",
    "verdict",
    "which value",
    "source",
    "how measured",
    "note",
)


def experiments(summary: Summary) -> Iterator[Section]:
    yield from quiz_sections(summary.results.rows, summary.results.records)
    yield from document_sections(documents_of(summary), hardware_of(summary))


def added_by_layers(summary: Summary) -> Iterator[Section]:
    lines = lines_by_window(summary.combined)
    every = (row for line in lines for row in line.every if row.message_bytes)
    for layers in layers_of(every)[:MOST_LAYERS]:
        draw = partial(waterfall, layers.title, layers.times)
        yield Section("What a layer adds", figures=draw, is_on_terminal=False)


def is_normal(summary: Summary) -> Iterator[Section]:
    judged = judged_of(summary)
    note = [reference_note(judged)]
    without = lines_without(judged, cases_by_hardware(summary))
    yield Section(
        "Is this number normal?",
        [*(normal_lines(judged) or note), *without],
        notes=note if judged else [],
    )
    rows = [
        (
            each.case,
            each.measured,
            each.expected,
            each.verdict,
            each.reference.title,
            each.reference.origin,
            _certainty(each.reference),
            "; ".join(filter(None, (each.causes, each.reference.note))),
        )
        for each in judged
    ]
    yield Section(
        "Known values of this kind of machine",
        tables=table(HEADS, rows),
        is_folded=True,
        is_on_terminal=False,
    )


def _certainty(reference: Reference) -> str:
    """How it was measured, how sure it is, and the licence of its source."""
    licence = f"licence {reference.licence}" if reference.licence else ""
    sure = f"{reference.sure} certainty" if reference.sure else ""
    parts = reference.tool, reference.library, reference.how, sure, licence
    return "; ".join(filter(None, parts))


def doubts(summary: Summary) -> Iterator[str]:
    for judged in judged_of(summary):
        if judged.verdict in (SLOW, FAST):
            known = f"{judged.expected} on {judged.reference.title}"
            yield (
                f"{judged.case}: {judged.measured} is {judged.verdict} than the known value"
                f" ({known})."
            )


def curves(summary: Summary, rows: Sequence[Row]) -> list[plots.KnownCurve]:
    return known_curves(documents_of(summary), rows)


def checks(summary: Summary) -> Checks:
    judged = judged_of(summary)
    return Checks([*map(_check, judged)], [reference_note(judged)])


def _check(judged: Judged) -> Check:
    """A guess decides nothing, nor does a value that is in doubt or of another timer."""
    text = (
        f"{judged.case}: {judged.measured} is {judged.verdict} ({judged.expected} on"
        f" {judged.reference.title})."
    )
    finding = "" if judged.verdict == NORMAL else text
    if not judged.decides:
        return Check(KIND, judged.case, None, finding=finding)
    if judged.verdict == SLOW:
        return Check(KIND, judged.case, "FAIL", text.removesuffix("."), finding)
    return Check(KIND, judged.case, "PASS", finding=finding)


def answer_of(experiment: str) -> SectionsOf | None:
    return experiments if experiment == QUIZ or of_experiment(experiment) else None


REPORTING = Reporting(
    sections={"comparisons": experiments, "figures": added_by_layers, "checks": is_normal},
    doubts=doubts,
    curves=curves,
    checks=checks,
    answer_of=answer_of,
)
