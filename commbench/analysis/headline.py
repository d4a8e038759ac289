"""The first sentences of a report: what was measured, whether it came to its end, and how far the
numbers can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.core.states import RunStatus, status_of_run
from commbench.core.texts import size_text
from commbench.core.units import natural_key, plural
from commbench.results.columns import UNFINISHED
from commbench.results.flags import DOUBTFUL, FLAGS, different_bindings, warnings_of
from commbench.results.load import plain
from commbench.results.run_folder import resume_command

from .combined import CombinedCases
from .machines import Record

if TYPE_CHECKING:
    import pandas as pd

MOST_FLAGS = 3
GOING_ON = "is still going on"
UNFINISHED_WORDS: Mapping[RunStatus | None, str] = {
    "running": "was killed",
    "interrupted": "was interrupted",
    "broken": "lost ranks",
}


def headline(combined: CombinedCases, soaks: Sequence[str]) -> str:
    """What was measured, in one sentence."""
    measured = combined.shown
    if not len(measured):
        return soaks[0] if soaks else "No case has a number; what was tried is below."
    sizes = [int(size) for size in measured["message_bytes"] if size > 0]
    ends = [size_text(size) for size in (min(sizes), max(sizes))] if sizes else []
    benchmarks = ", ".join(combined.lines())
    backends, layouts = (
        ", ".join(sorted(map(str, measured[name].unique()), key=natural_key))
        for name in ("backend", "layout")
    )
    between = f", {' to '.join(dict.fromkeys(ends))}" if ends else ""
    return f"{benchmarks} over {backends} in {layouts}{between}."


def unfinished_sentences(
    cases: pd.DataFrame,
    records: Iterable[Record],
    folders: Mapping[str, Path],
    is_measured_into: Callable[[Path], bool],
) -> list[str]:
    """A sentence for each run that did not come to its end: whether it still goes on, was killed
    or interrupted, and how it is finished."""
    sentences = []
    for record in records:
        folder = folders.get(str(record.get("run_id")))
        status = status_of_run(record)
        if folder is None or status not in UNFINISHED_WORDS:
            continue
        is_going_on = status == "running" and is_measured_into(folder)
        words = GOING_ON if is_going_on else UNFINISHED_WORDS[status]
        own = cases[cases["run_id"] == record.get("run_id")]
        of_all = f"{len(own)} of {plural(int(record.get('cases') or 0), 'case', 'cases')} so far"
        begun = int(own["stop_reason"].isin(UNFINISHED).sum())
        of_all += f", {begun} of them with fewer visits than planned" if begun else ""
        rest = "" if is_going_on else f"; finish it with: {resume_command(folder)}"
        sentences.append(f"Run {folder.name} {words}: {of_all}{rest}")
    return sentences


def trust(cases: pd.DataFrame, records: Iterable[Record] = ()) -> str:
    """How many measured cases have a warning that casts doubt on their number, the most frequent
    warnings, and whether the ranks of one backend were bound and those of another were not."""
    bindings = different_bindings(records)
    return " ".join(filter(None, (_doubts(cases), bindings and f"{bindings}.")))


def _doubts(cases: pd.DataFrame) -> str:
    warnings = cases.loc[cases["status"] == "ok", "warnings"]
    measured = [warnings_of({"warnings": plain(flags)}) for flags in warnings]
    doubted = [flags & DOUBTFUL for flags in measured if flags & DOUBTFUL]
    if not doubted:
        return ""
    counts = Counter(name for flags in doubted for name in sorted(flags)).most_common(MOST_FLAGS)
    frequent = "; ".join(f"{FLAGS[name].meaning} ({name}, {count})" for name, count in counts)
    advice = " Treat all numbers as rough." if 2 * len(doubted) > len(measured) else ""
    carry = "carries" if len(doubted) == 1 else "carry"
    of_all = f"{len(doubted)} of {plural(len(measured), 'measured case', 'measured cases')} {carry}"
    return f"{of_all} a warning that casts doubt on the number, most often: {frequent}.{advice}"
