"""The answers in plain sentences: what to use, which link is slow, what is missing, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.core.slow_pairs import Finding, findings
from commbench.core.units import format_seconds

from .flag_meanings import Flagged, flagged
from .launch_overhead import Launch, launches
from .machine import Head, Machine, differences, heads, machines
from .recommend import Best, Choice, Fit, choice_of, size_text
from .reference import NORMAL, Judged, judge, references
from .results import Results
from .style import interval_text

if TYPE_CHECKING:
    import pandas as pd

MOST_SENTENCES, MOST_PAIR_ROWS = 6, 40_000
GOOD_FIT = 0.25  # a line that misses a size by more is in the table only
KINDS = {"rank": "Slow rank", "slow": "Slow link", "asymmetric": "Link of two speeds"}
PLACES = ["run_id", "benchmark", "backend", "engine", "layout", "dtype", "message_bytes", "timing"]


@dataclass(frozen=True)
class Lost:
    """Cases without a number: `status` and `reason` of `count` of them, the first ones by name."""

    status: str
    reason: str
    count: int
    cases: str


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that terminal and page tell."""

    results: Results
    choice: Choice
    best: list[Best]
    crossings: list[str]
    fits: list[Fit]
    overheads: list[Launch]
    slow: list[Finding]
    lost: list[Lost]
    flags: list[Flagged]
    judged: list[Judged]
    machines: list[Machine]
    heads: list[Head]
    differences: list[tuple[str, str, str]]

    def sentences(self) -> list[str]:
        """The summary, the decision first."""
        return [*self._choices(), *self._crossed(), *self._links(), *self._costs(), *self._doubts()]

    def _choices(self) -> Iterator[str]:
        groups: dict[tuple[Any, ...], list[Best]] = {}
        for one in self.best:
            groups.setdefault((one.benchmark, one.world_size, one.more), []).append(one)
        for (benchmark, world, more), rows in list(groups.items())[:MOST_SENTENCES]:
            where = f"{benchmark} on {world} ranks{f' ({more})' if more else ''}"
            yield f"{where}: small messages ({size_text(rows[0].size)}): {verdict(rows[0])}." + (
                f" Large ones ({size_text(rows[-1].size)}): {verdict(rows[-1])}." if len(rows) > 1 else ""
            )
        if not groups:
            yield "There is no choice to make: no two backends or layouts were measured at the same size."
        elif len(groups) > MOST_SENTENCES:
            yield f"{len(groups) - MOST_SENTENCES} more choices are in the table of the best for each size."

    def _crossed(self) -> list[str]:
        crossed = [f"{text}." for text in self.crossings if " above " in text]
        return crossed[:MOST_SENTENCES]

    def _links(self) -> Iterator[str]:
        told = [one for one in self.slow if one.kind != "slow" or one.rank is None]
        records = {run.run_id: run.record for run in self.results.runs}
        yield from (
            f"{KINDS[one.kind]}: {one.text_with_host(records.get(str(one.run_id), {}))}."
            for one in told[:MOST_SENTENCES]
        )
        if len(told) > MOST_SENTENCES:
            yield f"{len(told) - MOST_SENTENCES} more slow pairs; commbench.slow_pairs(PATH) has all."

    def _costs(self) -> Iterator[str]:
        shown = [fit for fit in self.fits if fit.half != "-" and fit.largest_miss <= GOOD_FIT]
        last = list({(fit.benchmark, fit.name): fit for fit in shown}.values())
        for fit in last[: MOST_SENTENCES // 2]:
            yield (
                f"{fit.benchmark}, {fit.name}, {fit.sizes}: {fit.alpha} for a message and {fit.rate} for its bytes; "
                f"half of that rate at {fit.half} (largest miss of the fit {fit.miss})."
            )

    def _doubts(self) -> Iterator[str]:
        totals = Counter[str]()
        for one in self.lost:
            totals[one.status] += one.count
        for status, count in totals.items():
            first = next(one for one in self.lost if one.status == status)
            yield f"{count} {'case' if count == 1 else 'cases'} {status}: {first.reason} ({first.cases})."
        for it in self.judged:
            if it.verdict != NORMAL:
                yield f"{it.case}: {it.measured} is {it.verdict} ({it.published} on {it.reference.hardware})."
        if self.differences:
            names = list(dict.fromkeys(name for name, _, _ in self.differences))
            yield f"Ranks differ in {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}."
        yield self._launches()

    def _launches(self) -> str:
        runs = self.choice.cases["runs"]
        if not len(runs):
            return "Nothing was measured."
        if int(runs.max()) == 1:
            return (
                "Each case was measured in one launch: its interval is that of this launch and says nothing about the "
                "next one; -m launch=0,1,2,3 measures more."
            )
        return f"Of cases with several runs (up to {int(runs.max())}) the median and the widest interval are told."


def summary_of(results: Results) -> Summary:
    """All answers; raises CommbenchError for tables that lack columns."""
    cases = results.cases
    choice = choice_of(cases[cases["timing"] != "soak"])
    found = machines(results.runs)
    labels = cases["label"].dropna().unique().tolist()
    return Summary(
        results, choice, choice.best, choice.crossings(), choice.fits(), launches(cases),
        slow_links(cases), lost(cases),
        flagged(cases), judge(choice.cases, [*(one.text for one in found), *map(str, labels)]), found,
        heads(results.runs), differences(results.runs),
    )  # fmt: skip


def verdict(one: Best) -> str:
    """The winner with its interval and its distance, or who can't be told apart."""
    time = f"{format_seconds(one.median_s)} ({interval_text(one.low_s, one.high_s)})"
    if one.decided:
        return f"{one.name} is fastest, {time}; {one.second} takes {one.ratio:.3g} x as long"
    return f"{one.alike.replace(', ', ' and ')} are not distinguishable at {time}"


def slow_links(cases: pd.DataFrame) -> list[Finding]:
    """The findings of commbench.core.slow_pairs; only cases with several pairs are looked at."""
    single = cases[cases["pair"].notna() & ~cases["pair"].str.contains(" ", na=False)]
    many = single[single.groupby(PLACES, dropna=False)["pair"].transform("nunique") > 1].head(MOST_PAIR_ROWS)
    rows = [{str(name): _null(value) for name, value in row.items()} for row in many.to_dict("records")]
    return findings(rows)


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def lost(cases: pd.DataFrame) -> list[Lost]:
    """Invalid and failed before skipped, the most frequent reason first."""
    rows = cases[cases["status"] != "ok"]
    found = []
    for (status, reason), group in rows.groupby(["status", rows["reason"].fillna("no reason given")], sort=False):
        names = [f"{row.benchmark} {row.backend} {row.layout}" for row in group.head(200).itertuples()]
        first = list(dict.fromkeys(names))
        found.append(
            Lost(str(status), str(reason), len(group), ", ".join(first[:3]) + (" ..." if len(first) > 3 else ""))
        )
    order = ("invalid", "failed", "skipped")
    return sorted(found, key=lambda one: (order.index(one.status) if one.status in order else 0, -one.count))


def reference_note(judged: Sequence[Judged]) -> str:
    """What the comparison with published values is worth."""
    if judged:
        return f"{len(judged)} numbers have a published value of like hardware; far is beyond a factor of 1.5."
    return f"No published value is of this hardware and these cases ({len(references())} are known)."
