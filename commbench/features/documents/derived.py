"""What is known of the results of a report, each derived once."""

from __future__ import annotations

import functools

from commbench.analysis.combined import combine_runs
from commbench.analysis.machines import machines_of
from commbench.report.summary import Summary
from commbench.results.columns import grouped
from commbench.results.flags import is_bound
from commbench.results.row import Row

from .normal import NORMAL, Judged, judge
from .values import Document, documents


def hardware_of(summary: Summary) -> list[str]:
    """Texts that describe the machines, and the labels of the runs."""
    labels = dict.fromkeys(row.label for row in summary.results.rows if row.label is not None)
    return [*(machine.text for machine in summary.machines), *labels]


@functools.lru_cache(maxsize=1)
def judged_of(summary: Summary) -> list[Judged]:
    """The cases, also of soaks, that have a known value of the machine that measured them."""
    bound = {str(record.get("run_id")) for record in summary.results.records if is_bound(record)}
    judged = [
        each
        for hardware, rows in cases_by_hardware(summary).items()
        for each in judge(rows, hardware, bound)
    ]
    return sorted(judged, key=lambda case: case.verdict == NORMAL)


@functools.lru_cache(maxsize=1)
def cases_by_hardware(summary: Summary) -> dict[tuple[str, ...], list[Row]]:
    """Texts that describe machines, with the label -> the cases that were measured there.

    A case of several runs names none: then the machines are those of all runs of its hosts.
    """
    results = summary.results
    soaks = [row for row in results.of_operations if row.is_soak]
    texts = {
        str(record.get("run_id")): [machine.text for machine in machines_of([record])]
        for record in results.records
    }
    of_hosts: dict[str | None, dict[str, None]] = {}
    for run, hosts in dict.fromkeys((row.run_id, row.hosts) for row in results.rows):
        of_hosts.setdefault(hosts, {}).update(dict.fromkeys(texts.get(run, ())))
    cases = [*summary.combined.whole, *combine_runs(soaks).whole]

    def hardware(row: Row) -> tuple[str, ...]:
        own = texts.get(row.run_id, of_hosts.get(row.hosts, ()))
        return (*own, *([row.label] if row.label else []))

    return grouped(cases, hardware)


@functools.lru_cache(maxsize=1)
def documents_of(summary: Summary) -> list[Document]:
    """Of the experiments among the runs."""
    results = summary.results
    return documents(results.rows, results.records, results.folders)
