"""Folders of `commbench ab` in a report: an answer and a section of each."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.core.units import plural
from commbench.report.compare_text import caption, comparison_summary, comparison_table, unjoined
from commbench.report.section import Section
from commbench.report.showing import Comparison
from commbench.results.load import Paths

from .ab_results import AbResult, read_ab_results


def comparisons(
    paths: Sequence[Paths], benchmark: str | None
) -> tuple[list[Comparison], list[str]]:
    """Those at or below the paths, or directly above a side, and why others were left out."""
    results, problems = read_ab_results(paths, benchmark)
    return [_comparison(result) for result in results], problems


def _comparison(result: AbResult) -> Comparison:
    sentence = ab_sentence(result)
    section = Section(
        f"Comparison {result.folder.name}",
        [sentence],
        [comparison_table(result.cases)],
        notes=[*caption(result.cases, result.rules), *unjoined(result.cases)],
    )
    answer = f"{sentence} {comparison_summary(result.cases)}."
    return Comparison(result.folder, answer, section)


def ab_sentence(result: AbResult) -> str:
    """What was compared."""
    instead = f" instead of {' '.join(result.replaced)}" if result.replaced else ""
    launches = plural(max(case.launches[1] for case in result.cases), "launch", "launches")
    return (
        f"{result.folder.name}: NEW is BASE with {' '.join(result.added)}{instead}; {launches} of"
        " each side in turn."
    )
