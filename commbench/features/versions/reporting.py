"""`commbench report PATH --over NAME`: the steps of all series over a variable that is ordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from commbench.core.errors import ConfigError
from commbench.core.texts import size_text
from commbench.core.units import format_factor, format_seconds, natural_key, plural
from commbench.report.reporting import Reporting, ReportOption
from commbench.report.section import Section
from commbench.report.summary import Summary
from commbench.report.table import Table
from commbench.stats.thresholds import FALSE_ALARMS

from .series import VERSION, AllSeries, all_series
from .steps import LARGEST_P, Finding, Step, TooFew, find_steps, too_few, without_steps

HEADS = ("step of", "at", "between", "takes", "certainty", "series")
SERIES_HEADS = ("series", "between", "takes", "before", "after", "measured")
NAMED = ("benchmark", "backend", "layout", "dtype", "in_place", "device", "timer", "label")
CERTAIN = "certain"
LIKELY = "likely"
FAR = "differs by more than the spread of the others"
FEW = "too few runs to tell"
MOST_UNASKED = 2_000  # series, for which it takes seconds
MOST_DOUBTS = 3


def over(name: str, summary: Summary) -> Iterator[Section]:
    """The findings, then each series of theirs. Raises ConfigError where there are no series."""
    series = all_series(summary.results, name)
    if not series.rows:
        raise ConfigError(
            f"--over {name}: no case was measured with two values of it; name the folders of all"
            " runs"
        )
    found = find_steps(series.measurements, series.neighbours)
    rows = [_finding_cells(series, finding) for finding in found]
    yield Section(
        f"Steps over {name}",
        [*_together(series, found), _summary(series, found)],
        headline=[Table.of(HEADS, rows)] if rows else [],
        notes=[*_notes(series, found)],
    )
    if not found:
        return
    names = series.names()
    steps = sorted(
        (step for finding in found for step in finding.steps),
        key=lambda step: -abs(np.log(step.ratio)),
    )
    cells = [_step_cells(series, names[step.series], step) for step in steps]
    yield Section("Each series of these", tables=[Table.of(SERIES_HEADS, cells)])


def doubts(summary: Summary) -> Iterator[str]:
    """Where times step from version to version, without being asked."""
    results = summary.results
    versions = {row.library_version for row in results.rows}
    if len(versions) < 2 or results.are_all_compared:  # whose verdicts say more
        return
    series = all_series(results, VERSION)
    if len(series.rows) > MOST_UNASKED:
        return
    every = find_steps(series.measurements, series.neighbours)
    found = [finding for finding in every if finding.too_few is None]
    together = [*_together(series, found)]
    if found or together:
        steps = plural(len(found), "step", "steps") if found else "A step of all series"
        yield f"{steps} from version to version: commbench report PATH --over {VERSION}"
    yield from together
    for finding in found[:MOST_DOUBTS]:
        what, at, _, takes, certainty, _ = _finding_cells(series, finding)
        step = finding.steps[0]
        before = series.values[step.before]
        after = series.values[step.after]
        yield f"{what}, {at}: {takes} as long with {after} as with {before}, {certainty}."


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
    ends = [size_text(size) for size in (sizes[0], sizes[-1])]
    return (
        " ".join(parts),
        " .. ".join(dict.fromkeys(ends)),
        _between(series, finding.steps[0]),
        " to ".join(dict.fromkeys(map(format_factor, (ratios[0], ratios[-1])))),
        _certainty(finding),
        str(len(finding.steps)),
    )


def _certainty(finding: Finding) -> str:
    """`certain (p = 0.001)`, `too few runs to tell: 3 of each value; measure 4`."""
    word = _word(finding)
    if finding.too_few is not None:
        return _few_text(finding.too_few)
    return word if word == FAR else f"{word} (p = {finding.p:.2g})"


def _few_text(few: TooFew) -> str:
    runs = f"{few.fewest}" if few.fewest == few.most else f"{few.fewest} to {few.most}"
    return f"{FEW}: {runs} of each value; measure {few.needed}"


def _word(finding: Finding) -> str:
    if finding.too_few is not None:
        return FEW
    if not finding.is_noise_known:
        return FAR
    return CERTAIN if finding.is_certain else LIKELY


def _step_cells(series: AllSeries, name: str, step: Step) -> tuple[str, ...]:
    before_s, after_s = step.medians_s
    return (
        name,
        _between(series, step),
        format_factor(step.ratio),
        format_seconds(before_s),
        format_seconds(after_s),
        f"{step.counts[0]} and {step.counts[1]}",
    )


def _summary(series: AllSeries, found: Sequence[Finding]) -> str:
    """How many steps there are, and what the series without one do."""
    words = Counter(map(_word, found))
    texts = [f"{words[word]} {word}" for word in (CERTAIN, LIKELY) if words[word]]
    texts += [f"{words[FAR]} larger than the spread of the others"] if words[FAR] else []
    texts += [f"{words[FEW]} of {FEW}"] if words[FEW] else []
    values = plural(len(series.values), "value", "values")
    steps = plural(len(found), "step", "steps") if found else "No step"
    text = f"{steps} in {len(series.rows)} series of {values} of {series.over}"
    if texts:
        text += f": {', '.join(texts)}"
    few = too_few(series.measurements[0], int(series.measurements[0].places.max()))
    if not found and few is not None:
        text += f". For a step of one series there are {_few_text(few)}"
    ratios = [*without_steps(series.measurements, found).values()]
    if not ratios:
        return f"{text}."
    low, middle, high = (float(each) for each in np.quantile(ratios, (0.05, 0.5, 0.95)))
    return (
        f"{text}. Without a step, the last value takes {format_factor(middle)} as long as the first"
        f" in the median, {format_factor(low)} to {format_factor(high)} in nine of ten series."
    )


def _together(series: AllSeries, found: Sequence[Finding]) -> Iterator[str]:
    """Where all series step at once, which a busy machine does as well, and no finding says so."""
    size = len(series.rows)
    named = Counter(step.after for finding in found for step in finding.steps)
    for (before, after), ratio in series.common.items():
        if named[after] == size:
            continue
        who = "All series together take" if size > 1 else "The only series takes"
        without = " Steps are looked for without it." if series.measurements[0].is_free else ""
        yield (
            f"{who} {format_factor(ratio)} as long at {series.values[after]} as at"
            f" {series.values[before]}: the value itself, or another day, host or driver of its"
            f" runs.{without}"
        )


def _notes(series: AllSeries, found: Sequence[Finding]) -> Iterator[str]:
    yield "takes: the median time after the step over that before it."
    if {CERTAIN, LIKELY} & {*map(_word, found)}:
        yield (
            f"{CERTAIN}: with the values permuted within each series, anything like it is found in"
            f" at most {100 * FALSE_ALARMS:g} % of permutations ({LIKELY}: {100 * LARGEST_P:g} %):"
            " one correction for all series."
        )
    if FAR in map(_word, found):
        yield f"{FAR}: their noise is not known; measure more launches of each value."
    if FEW in map(_word, found):
        yield f"{FEW}: no order of the runs has a larger step, but too many have one as large."
    yield (
        "Values that were measured in other runs may also differ in day, host and driver:"
        " commbench ab measures two in turn."
    )
    if series.left:
        yield f"{plural(series.left, 'case has', 'cases have')} no {series.over}, and are left out."


REPORTING = Reporting(
    options=(
        ReportOption(
            "over",
            "steps over library_version, or another variable that is ordered",
            lambda name: partial(over, name),
        ),
    ),
    doubts=doubts,
)
