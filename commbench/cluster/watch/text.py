"""What a turn of `commbench watch` says: the changes first, then each changed case, and what else
changed then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.watch.beginning import changed_facts
from commbench.cluster.watch.changes import JudgedCase
from commbench.cluster.watch.located import Location
from commbench.core.units import format_factor, format_seconds, plural
from commbench.results.columns import case_text, grouped
from commbench.results.run_folder import clock_text, time_in_name
from commbench.stats.interval import Interval
from commbench.stats.thresholds import DECIDING_LAUNCHES

MOST_CHANGED = 8  # with a line each


def turn_lines(
    judged: Sequence[JudgedCase],
    location: Location | None,
    healthy: Sequence[Mapping[str, Any]],
    launch: FreshLaunch,
) -> list[str]:
    """`healthy`: the records (run.json) of the runs of the store, oldest first."""
    now = datetime.now(timezone.utc)
    lines = [f"watch: {now:%Y-%m-%d %H:%M} UTC: {answer_text(judged)}"]
    lines += () if location is None else location.lines
    lines += _case_lines(judged)
    lines += filter(None, [clock_text(launch.runs.values())])
    new = [each.change.since_run for each in judged if each.change and each.is_new]
    for since_run in dict.fromkeys(new):
        lines += _fact_lines(since_run, healthy, launch)
    return [*lines, *_day_lines(judged), *_undecided_lines(judged)]


def answer_text(judged: Sequence[JudgedCase]) -> str:
    """`node5: SLOWER since 2026-11-25 06:00 UTC: 4 of 4 cases, the farthest 1.05 x`, for each
    change; then how many cases have which verdict."""
    of_all = f"of {plural(len(judged), 'case', 'cases')}"
    changes = grouped(
        (each for each in judged if each.change is not None),
        lambda each: replace(each.change, ratio=None) if each.change else None,
    )
    parts = [
        f"{change.nodes and change.nodes + ': '}{change.verdict} since"
        f" {_time_text(change.since_run)}: {len(cases)} {of_all}{_farthest_text(cases)}"
        for change, cases in changes.items()
        if change is not None
    ]
    counts = Counter(each.verdict for each in judged if each.change is None)
    rest = "" if parts else f" {of_all}"
    return "; ".join(
        [*parts, *(f"{count}{rest} {verdict}" for verdict, count in counts.most_common())]
    )


def _farthest_text(cases: Sequence[JudgedCase]) -> str:
    ratios = [each.change.ratio for each in cases if each.change and each.change.ratio]
    return f", the farthest {format_factor(max(ratios, key=_distance))}" if ratios else ""


def _distance(ratio: float | None) -> float:
    """From a time without a change; of a case without a ratio the largest."""
    return abs(math.log(ratio)) if ratio else math.inf


def _case_lines(judged: Sequence[JudgedCase]) -> list[str]:
    """Of each case of which there is something to say; of many changed ones, the farthest."""
    changed = [(_distance(each.change.ratio), each) for each in judged if each.change is not None]
    farthest = sorted(changed, key=itemgetter(0))
    left_out = [each for _, each in farthest[:-MOST_CHANGED]]
    lines = [_case_line(each) for each in judged if each not in left_out]
    lines += [f"and {plural(len(left_out), 'case', 'cases')} with less"] if left_out else []
    return [*filter(None, lines)]


def _case_line(judged: JudgedCase) -> str:
    """By how much a case has changed, since when and where; empty for one that has not."""
    name = case_text(judged.case)
    change = judged.change
    why = judged.outcome.why
    if change is None:
        return f"{name}: {why}" if why else ""
    ratio = "" if change.ratio is None else f" {format_factor(change.ratio)}"
    parts = [f"{name}: {change.verdict}{ratio} since {change.since_run}"]
    row = judged.row
    if row is not None:
        parts[0] += f", on {row.hosts}"
        parts += [str(row.reason)] if change.verdict == "FAILED" else []
        parts += _times(row.median_s, judged.expected)
    return "; ".join([*parts, *([why] if why else [])])


def _times(median_s: float | None, expected: Interval | None) -> list[str]:
    if median_s is None or expected is None:
        return []
    least = format_seconds(expected.low)
    most = format_seconds(expected.high)
    return [f"now {format_seconds(median_s)}, healthy launches take {least} to {most}"]


def _fact_lines(
    since_run: str, healthy: Sequence[Mapping[str, Any]], launch: FreshLaunch
) -> list[str]:
    """What else differs between the runs before a change and those since."""
    before = [record for record in healthy if str(record.get("run_id")) < since_run]
    later = [record for record in healthy if str(record.get("run_id")) >= since_run]
    if not before:
        return []
    facts = changed_facts(before, [*later, *launch.runs.values()])
    if not facts:
        return [f"nothing that commbench records has changed with {since_run}"]
    return [f"changed with {since_run}:", *(f"    {fact}" for fact in facts)]


def _time_text(run_id: str) -> str:
    """The time in the name of a run."""
    started = time_in_name(run_id)
    return run_id if started is None else f"{started:%Y-%m-%d %H:%M} UTC"


def _day_lines(judged: Sequence[JudgedCase]) -> list[str]:
    """From which change on one day shows it, in the case where that takes most."""
    known = [each.days for each in judged if each.days is not None]
    if not known:
        return []
    widest = max(known, key=lambda days: days.told_from)
    least = f"{100 * (widest.told_from - 1):.2g} %"
    if widest.between is None:
        return [f"all healthy launches are of one day: on another, a change shows from {least} on"]
    differ = f"days differ by {100 * widest.between:.2g} %"
    return [f"{differ}: one day shows a change from {least} on, several a smaller one"]


def _undecided_lines(judged: Sequence[JudgedCase]) -> list[str]:
    undecided = [each for each in judged if each.verdict == "UNDECIDED"]
    few = [each for each in undecided if len(each.history.healthy) < DECIDING_LAUNCHES]
    lines = []
    if few:
        least = min(len(each.history.healthy) for each in few)
        lines.append(
            f"UNDECIDED: {plural(len(few), 'case has', 'cases have')} fewer than"
            f" {DECIDING_LAUNCHES} healthy launches in the store (fewest: {least})"
        )
    unmeasured = [each for each in undecided if len(each.history.healthy) >= DECIDING_LAUNCHES]
    if unmeasured:
        rows = [each.row for each in unmeasured if each.row is not None]
        reasons = {str(row.reason) for row in rows if row.reason}
        why = f": {'; '.join(sorted(reasons))}" if reasons else ""
        lines.append(
            f"UNDECIDED: {plural(len(unmeasured), 'case was', 'cases were')} not measured{why}"
        )
    return lines
