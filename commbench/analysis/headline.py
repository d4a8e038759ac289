"""The first sentences of a report: what was measured, whether it came to its end, and how far the
numbers can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from commbench.core.states import UNFINISHED, RunStatus, status_of_run
from commbench.core.texts import size_text, span_text
from commbench.core.units import natural_key, plural
from commbench.results.columns import grouped
from commbench.results.intervals import interval_of
from commbench.results.row import Row
from commbench.results.run_folder import resume_command
from commbench.stats.interval import Certainty

from .combined import CombinedCases
from .machines import Record

GOING_ON = "is still going on"
UNFINISHED_WORDS: Mapping[RunStatus | None, str] = {
    "running": "was killed",
    "interrupted": "was interrupted",
    "broken": "lost ranks",
}


def scope_text(combined: CombinedCases) -> str:
    """What was measured but soaks, in one sentence; empty without a number."""
    measured = combined.shown
    if not measured:
        return ""
    sizes = [row.message_bytes for row in measured if row.message_bytes]
    benchmarks = ", ".join(combined.lines())
    backends = ", ".join(sorted({row.backend for row in measured}, key=natural_key))
    layouts = ", ".join(sorted({row.layout or "?" for row in measured}, key=natural_key))
    between = f", {span_text(sizes, size_text)}" if sizes else ""
    return f"{benchmarks} over {backends} in {layouts} (nodes x ranks per node){between}."


def unfinished_sentences(
    rows: Iterable[Row],
    records: Iterable[Record],
    folders: Mapping[str, Path],
    is_measured_into: Callable[[Path], bool],
) -> list[str]:
    """A sentence for each run that did not come to its end: whether it still goes on, was killed
    or interrupted, and how it is finished."""
    sentences = []
    by_run = grouped(rows, lambda row: row.run_id)
    for record in records:
        folder = folders.get(str(record.get("run_id")))
        status = status_of_run(record)
        if folder is None or status not in UNFINISHED_WORDS:
            continue
        is_going_on = status == "running" and is_measured_into(folder)
        words = GOING_ON if is_going_on else UNFINISHED_WORDS[status]
        own = by_run.get(str(record.get("run_id")), [])
        of_all = f"{len(own)} of {plural(int(record.get('cases') or 0), 'case', 'cases')} so far"
        begun = sum(row.stop_reason in UNFINISHED for row in own)
        of_all += f", {begun} of them with fewer visits than planned" if begun else ""
        rest = "" if is_going_on else f"; finish it with: {resume_command(folder)}"
        sentences.append(f"Run {folder.name} {words}: {of_all}{rest}")
    return sentences


def certainty_text(rows: Iterable[Row]) -> str:
    """How many numbers are known how well."""
    known = [interval.certainty for row in rows if (interval := interval_of(row)) is not None]
    counts = Counter(known)
    words: Mapping[Certainty, str] = {"": "to 5 %", "~": "to 30 % (~)", "?": "less well (?)"}
    parts = [f"{counts[sign]} {text}" for sign, text in words.items() if counts[sign]]
    total = plural(len(known), "number", "numbers")
    return f"Of {total} these are known: {', '.join(parts)}." if parts else ""
