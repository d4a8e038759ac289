"""Published values in a report and its figures, at the end of their experiments, and in a verdict
without a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from commbench.report import plots
from commbench.report.features import Check, Checks, Feature, SectionsOf
from commbench.report.numbers import lines_by_window
from commbench.report.section import Section
from commbench.report.sections import table
from commbench.report.summary import Summary
from commbench.results.row import Row

from .derived import documents_of, hardware_of, judged_of
from .layers import layers_of
from .normal import FAST, NORMAL, SLOW, Judged, reference_note
from .quiz import QUIZ
from .reference import of_experiment
from .sections import document_sections, known_curves, quiz_sections
from .waterfall import waterfall

KIND = "known value"
MOST_LAYERS = 6


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
    heads = ("measured case", "measured", "known value", "verdict", "which value", "source", "note")
    judged = judged_of(summary)
    rows = [
        (
            each.case,
            each.measured,
            each.expected,
            each.verdict,
            each.reference.title,
            each.reference.origin,
            f"usual causes: {each.causes}" if each.causes else each.reference.note,
        )
        for each in judged
    ]
    note = [reference_note(judged)]
    yield Section(
        "Is this number normal?",
        sentences=[] if judged else note,
        tables=table(heads, rows),
        notes=note if judged else [],
    )


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
    """A guess decides nothing."""
    text = (
        f"{judged.case}: {judged.measured} is {judged.verdict} ({judged.expected} on"
        f" {judged.reference.title})."
    )
    finding = "" if judged.verdict == NORMAL else text
    if judged.reference.guess:
        return Check(KIND, judged.case, None, finding=finding)
    if judged.verdict == SLOW:
        return Check(KIND, judged.case, "FAIL", text.removesuffix("."), finding)
    return Check(KIND, judged.case, "PASS", finding=finding)


def answer_of(experiment: str) -> SectionsOf | None:
    return experiments if experiment == QUIZ or of_experiment(experiment) else None


FEATURE = Feature(
    sections={"comparisons": experiments, "figures": added_by_layers, "checks": is_normal},
    doubts=doubts,
    curves=curves,
    checks=checks,
    answer_of=answer_of,
)
