"""What is known of the results of a report, each derived once."""

from __future__ import annotations

import functools

from commbench.analysis.combined import combine_runs
from commbench.report.summary import Summary
from commbench.results.flags import is_bound

from .normal import Judged, judge
from .values import Document, documents


def hardware_of(summary: Summary) -> list[str]:
    """Texts that describe the machines, and the labels of the runs."""
    labels = dict.fromkeys(row.label for row in summary.results.rows if row.label is not None)
    return [*(machine.text for machine in summary.machines), *labels]


@functools.lru_cache(maxsize=1)
def judged_of(summary: Summary) -> list[Judged]:
    """The cases, also of soaks, that have a known value."""
    results = summary.results
    soaks = [row for row in results.of_operations if row.timing == "soak"]
    bound = {str(record.get("run_id")) for record in results.records if is_bound(record)}
    hardware = hardware_of(summary)
    wholes = [summary.combined.whole, combine_runs(soaks).whole]
    return [each for whole in wholes for each in judge(whole, hardware, bound)]


@functools.lru_cache(maxsize=1)
def documents_of(summary: Summary) -> list[Document]:
    """Of the experiments among the runs."""
    results = summary.results
    return documents(results.rows, results.records, results.folders)
