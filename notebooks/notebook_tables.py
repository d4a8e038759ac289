"""What a report says on the terminal, for the notebooks: the same numbers as `commbench report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from commbench.analysis.case_names import without_shared
from commbench.core.terminal import Terminal
from commbench.features.documents.derived import documents_of, hardware_of
from commbench.features.documents.sections import document_sections, known_curves, quiz_sections
from commbench.features.streams.rates import streams_text
from commbench.features.streams.stored import until_full_speed
from commbench.report.plots import OVER_TIME, KnownCurve
from commbench.report.section import report_text
from commbench.report.summary import Summary, read_results
from commbench.results.row import Row

MOST_ROWS = 60


@cache
def summary_of(results: str, counters: str | None = None) -> Summary:
    """Of a folder with runs, or of a parquet file of cases with one of their counters beside it."""
    read = read_results([results])
    if counters is not None and Path(counters).is_file():
        runs = [str(record["run_id"]) for record in read.records]
        read = replace(read, folders=dict.fromkeys(runs, Path(counters)))
    return Summary(read)


def ours_and_published(experiment: str, results: str, counters: str | None = None) -> str:
    """The numbers of an experiment beside those of its document."""
    summary = summary_of(results, counters)
    chosen = [each for each in documents_of(summary) if each.experiment == experiment]
    if not chosen:
        return f"{results} has no run of experiment={experiment} with a number of its document"
    return report_text([*document_sections(chosen, hardware_of(summary))], MOST_ROWS, Terminal())


def quiz_answer(results: str) -> str:
    summary = summary_of(results)
    sections = [*quiz_sections(summary.results.rows, summary.results.records)]
    return report_text(sections, MOST_ROWS, Terminal())


def published_curves(results: str, rows: Sequence[Row]) -> list[KnownCurve]:
    """The documents' curves over size that belong to some of these rows."""
    every = known_curves(documents_of(summary_of(results)), rows)
    return [each for each in every if each.column != OVER_TIME]


def streams_table(results: str) -> str:
    """A line for each stream with how its rate rose, and a sentence on their first seconds."""
    read = summary_of(results).results
    rows = without_shared(read.rows)
    return streams_text(until_full_speed(rows, read.records), Terminal())
