"""`commbench report PATH --over NAME`: the steps of all series over a variable that is ordered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from commbench.core.texts import size_text
from commbench.core.units import format_factor, format_seconds, natural_key, plural
from commbench.report.features import Feature, ReportOption
from commbench.report.section import Section
from commbench.report.summary import Summary
from commbench.report.table import Table
from commbench.stats.thresholds import FALSE_ALARMS, LARGEST_UNSTEADY

from .series import AllSeries, all_series
from .steps import Finding, Step, find_steps, without_steps

HEADS = ("step of", "at", "between", "takes", "certainty", "series")
SERIES_HEADS = ("series", "between", "takes", "before", "after", "measured")
NAMED = ("benchmark", "backend", "layout", "dtype", "in_place", "device", "timer", "label")
CERTAIN = "certain"
TOGETHER = 1 + LARGEST_UNSTEADY  # a factor that is worth a sentence
FAR = "differs by more than the spread of the others"


def over(summary: Summary, name: str) -> Iterator[Section]:
    """The findings, then each series of theirs."""
    series = all_series(summary.results, name)
    found = find_steps(series.measurements, series.neighbours)
    rows = [_finding_cells(series, finding) for finding in found]
    yield Section(
        f"Steps over {name}",
        [_summary(series, found), *_together(series)],
        headline=[Table.of(HEADS, rows)] if rows else [],
        notes=[*_notes(series, found)],
    )
    names = series.names()
    steps = sorted(
        (step for finding in found for step in finding.steps),
        key=lambda step: -abs(np.log(step.ratio)),
    )
    cells = [_step_cells(series, names[step.series], step) for step in steps]
    yield Section("Each series of these", tables=[Table.of(SERIES_HEADS, cells)] if cells else [])


def _between(series: AllSeries, step: Step) -> str:
    return f"{series.values[step.before]} and {series.values[step.after]}"


def _finding_cells(series: AllSeries, finding: Finding) -> tuple[str, ...]:
    """`all_gather 1x8`, `16 MiB .. 32 MiB`, `2.28.9 and 2.29.2`, `1.43 x to 1.99 x`, `certain`."""
    rows = [series.rows[step.series] for step in finding.steps]
    varied = {name for name in NAMED if len({getattr(row, name) for row in series.rows}) > 1}
    parts = []
    for name in NAMED:
        values = sorted({str(getattr(row, name)) for row in rows}, key=natural_key)
        if name == "benchmark" or name in varied:
            parts.append(", ".join(values))
    sizes = sorted({row.message_bytes for row in rows})
    ratios = sorted(step.ratio for step in finding.steps)
    ends = [f"{size_text(size)}" for size in (sizes[0], sizes[-1])]
    return (
        " ".join(parts),
        " .. ".join(dict.fromkeys(ends)),
        _between(series, finding.steps[0]),
        " to ".join(dict.fromkeys(map(format_factor, (ratios[0], ratios[-1])))),
        _certainty(finding),
        str(len(finding.steps)),
    )


def _certainty(finding: Finding) -> str:
    if finding.p is None:
        return FAR
    return f"{CERTAIN} (p = {finding.p:.2g})" if finding.is_certain else f"{FAR} (one measurement)"


def _step_cells(series: AllSeries, name: str, step: Step) -> tuple[str, ...]:
    measured = series.measurements[step.series]
    before, after = (
        float(np.median(measured.seconds[side]))
        for side in (measured.places <= step.before, measured.places >= step.after)
    )
    return (
        name,
        _between(series, step),
        format_factor(step.ratio),
        format_seconds(before),
        format_seconds(after),
        f"{step.counts[0]} and {step.counts[1]}",
    )


def _summary(series: AllSeries, found: Sequence[Finding]) -> str:
    """How many steps there are, and what the series without one do."""
    counts = {
        "certain": sum(finding.is_certain for finding in found),
        "larger than the spread of the others": sum(not finding.is_certain for finding in found),
    }
    texts = [f"{count} {name}" for name, count in counts.items() if count]
    values = plural(len(series.values), "value", "values")
    steps = plural(len(found), "step", "steps") if found else "No step"
    text = f"{steps} in {len(series.rows)} series of {values} of {series.over}"
    if texts:
        text += f": {', '.join(texts)}"
    ratios = [*without_steps(series.measurements, found).values()]
    if not ratios:
        return f"{text}."
    low, middle, high = (float(each) for each in np.quantile(ratios, (0.05, 0.5, 0.95)))
    return (
        f"{text}. Without a step, the last value takes {format_factor(middle)} as long as the first"
        f" in the median, {format_factor(low)} to {format_factor(high)} in nine of ten series."
    )


def _together(series: AllSeries) -> Iterator[str]:
    """Where all series step at once, which a busy machine does as well."""
    for number, (before, after) in enumerate(pairwise(series.common), start=1):
        ratio = after / before
        if not 1 / TOGETHER < ratio < TOGETHER:
            yield (
                f"All series together take {format_factor(ratio)} as long at"
                f" {series.values[number]} as at {series.values[number - 1]}: the value itself, or"
                " another day, host or driver of its runs. Steps are looked for without it."
            )


def _notes(series: AllSeries, found: Sequence[Finding]) -> Iterator[str]:
    yield "takes: the median time after the step over that before it."
    if any(finding.p is not None for finding in found):
        yield (
            f"{CERTAIN}: in at most {100 * FALSE_ALARMS:g} % of data whose values were permuted"
            " within each series, anything like it is found: one correction for all series."
        )
    if any(not each.is_repeated for each in series.measurements):
        yield "Series with one measurement a value do not show their noise: measure more launches."
    yield (
        "Values that were measured in other runs may also differ in day, host and driver:"
        " commbench ab measures two in turn."
    )
    if series.left:
        yield f"{plural(series.left, 'case has', 'cases have')} no {series.over}, and are left out."


FEATURE = Feature(
    options=(
        ReportOption(
            "over",
            "steps over library_version, or another variable that is ordered",
            over,
        ),
    )
)
