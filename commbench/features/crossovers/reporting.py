"""Every two backends in a report: which is faster, and where they cross."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from commbench.report.reporting import Reporting
from commbench.report.section import Section
from commbench.report.summary import MOST_SENTENCES, Summary
from commbench.results.columns import grouped

from .crossover import Comparison, comparisons, sentences


def choices(summary: Summary) -> list[str]:
    """Those that cross."""
    crossed = [f"{text}." for pair, text in _told(summary) if pair.crossings()]
    return crossed[:MOST_SENTENCES]


def all_backends(summary: Summary) -> Iterator[Section]:
    texts = [text for _, text in _told(summary)]
    yield Section("Backend against backend", texts, is_folded=True, is_on_terminal=False)


@functools.lru_cache(maxsize=1)
def _told(summary: Summary) -> list[tuple[Comparison, str]]:
    """Each with its sentence: those that cross first, then those that are decided."""
    by_benchmark = grouped(summary.combined.rows, lambda row: row.benchmark)
    told: list[tuple[Comparison, str]] = []
    for _, rows in sorted(by_benchmark.items()):
        pairs = comparisons(rows)
        told += zip(pairs, sentences(pairs), strict=True)
    return sorted(told, key=lambda each: (not each[0].crossings(), not each[0].is_decided))


REPORTING = Reporting(sections={"figures": all_backends}, choices=choices)
