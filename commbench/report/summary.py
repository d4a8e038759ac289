"""The answers of a report in plain sentences, and the report on a terminal."""

from __future__ import annotations

import io
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from commbench.core.errors import ConfigError
from commbench.core.flags import FLAGS, UNKNOWN_FLAG, Flag
from commbench.core.slow_pairs import Finding, findings
from commbench.core.units import format_seconds

from .cold_start import LAUNCH_HEADS, LaunchOverhead, launch_overheads
from .load import NEEDED, frame_of, read_cases
from .machines import Machine, RunGroup, machines_of, rank_differences, run_groups
from .recommend import Best, Choice, Fit, choice_of, size_text
from .reference import NORMAL, Judged, judge, references

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = (
    "operations_per_sample", "block_k", "ci_low_s", "ci_high_s", "p99_s", "algbw_gb_per_s", "busbw_gb_per_s",
    "limit_gb_per_s", "efficiency", "overhead_s",
)  # fmt: skip
TEXTS = ("label", "reason", "flags", "limit_name")
COLUMNS = (*NEEDED["cases"], "launch", "ranks_per_node", "world_size", *TEXTS, *NUMBERS)  # that a report reads
MOST_SENTENCES, MOST_PAIR_ROWS = 6, 40_000
GOOD_FIT = 0.25  # a fit that misses a size by more is only in the table
FINDING_TITLES = {"rank": "Slow rank", "slow": "Slow link", "asymmetric": "Link with two speeds"}
MATRIX_KEY = ["run_id", "benchmark", "backend", "engine", "layout", "dtype", "message_bytes", "timing"]
STATUSES = ("invalid", "failed", "skipped")  # the most serious first
LEAST_WIDTH = 100
BEST_HEADS = ("benchmark", "ranks", "message", "best", "median", "95 % interval", "second", "takes")
GROUP_HEADS = ("backend", "library", "layouts", "world", "CUDA IPC", "timing", "runs", "labels")


@dataclass(frozen=True)
class Results:
    """`cases` has COLUMNS, of two attempts at a case the newer one; `problems` names what was left out, and why.

    `records`: the run.json of each run; `folders`: run_id -> folder, where raw tables can be read.
    """

    cases: pd.DataFrame
    records: tuple[Mapping[str, Any], ...]
    folders: Mapping[str, Path]
    problems: tuple[str, ...]


def read_results(paths: Iterable[str | Path], benchmark: str | None = None) -> Results:
    """All runs below the folders and all parquet files of cases; raises ConfigError where nothing is left."""
    sources, problems = read_cases(paths, COLUMNS)
    if not sources:
        reasons = "; ".join(problems.values())
        raise ConfigError(f"nothing to report: {reasons}; give a folder with runs or a parquet file of cases")
    cases = frame_of([source.cases for source in sources])
    if benchmark is not None:
        measured = ", ".join(sorted(cases["benchmark"].unique()))
        cases = cases[cases["benchmark"] == benchmark].reset_index(drop=True)
        if not len(cases):
            raise ConfigError(f"--benchmark {benchmark} is not in these results; they have: {measured}")
    records = tuple(record for source in sources for record in source.records or ({"run_id": source.path.stem},))
    folders = {str(source.records[0].get("run_id")): source.path for source in sources if source.path.is_dir()}
    return Results(cases, records, folders, tuple(problems.values()))


@dataclass(frozen=True)
class Lost:
    """Cases without a number: how many have this status and reason, and the names of the first ones."""

    status: str
    reason: str
    count: int
    cases: str


class FlagCount(NamedTuple):
    """A flag, how many cases have it, and what it means."""

    name: str
    cases: int
    flag: Flag


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that the terminal and the page show."""

    results: Results
    choice: Choice
    best: list[Best]
    crossings: list[str]
    fits: list[Fit]
    overheads: list[LaunchOverhead]
    slow: list[Finding]
    lost: list[Lost]
    flags: list[FlagCount]
    judged: list[Judged]
    machines: list[Machine]
    groups: list[RunGroup]
    differences: list[tuple[str, str, str]]

    def sentences(self) -> list[str]:
        """The summary, beginning with what to choose."""
        crossed = [f"{text}." for text in self.crossings if " above " in text]
        lines = [*self._choices(), *crossed[:MOST_SENTENCES], *self._fits(), *self.doubts()]
        if self._most_runs > 1:
            lines.append(f"Cases with several runs (up to {self._most_runs}) show the median and the widest interval.")
        return lines

    def doubts(self) -> list[str]:
        """What to check before the numbers are used."""
        lines = [*self._slow_links(), *self._lost(), *self._abnormal()]
        if self._most_runs == 0:
            lines.append("Nothing was measured.")
        elif self._most_runs == 1:
            lines.append(
                "Each case was measured in one launch, so its interval does not cover differences between launches; "
                "-m launch=0,1,2,3 measures several."
            )
        return lines

    @property
    def _most_runs(self) -> int:
        return int(self.choice.cases["runs"].max()) if len(self.choice.cases) else 0

    def _choices(self) -> Iterator[str]:
        groups: dict[tuple[Any, ...], list[Best]] = {}
        for best in self.best:
            groups.setdefault((best.benchmark, best.world_size, best.more), []).append(best)
        for (benchmark, world, more), rows in list(groups.items())[:MOST_SENTENCES]:
            where = f"{benchmark} on {world} ranks{f' ({more})' if more else ''}"
            yield f"{where}: small messages ({size_text(rows[0].size)}): {best_text(rows[0])}." + (
                f" Large ones ({size_text(rows[-1].size)}): {best_text(rows[-1])}." if len(rows) > 1 else ""
            )
        if not groups:
            yield "There is no choice to make: no two backends or layouts were measured at the same size."
        elif len(groups) > MOST_SENTENCES:
            yield f"{len(groups) - MOST_SENTENCES} more choices are in the table of the best for each size."

    def _fits(self) -> Iterator[str]:
        good = [fit for fit in self.fits if fit.half != "-" and fit.largest_miss <= GOOD_FIT]
        last_pieces = list({(fit.benchmark, fit.name): fit for fit in good}.values())
        for fit in last_pieces[: MOST_SENTENCES // 2]:
            yield (
                f"{fit.benchmark}, {fit.name}, {fit.sizes}: {fit.alpha} per message and {fit.rate} for its bytes; "
                f"half of that rate at {fit.half} (largest miss of the fit {fit.miss})."
            )

    def _slow_links(self) -> Iterator[str]:
        shown = [one for one in self.slow if one.kind != "slow" or one.rank is None]
        records = {str(record.get("run_id")): record for record in self.results.records}
        for one in shown[:MOST_SENTENCES]:
            yield f"{FINDING_TITLES[one.kind]}: {one.text_with_host(records.get(str(one.run_id), {}))}."
        if len(shown) > MOST_SENTENCES:
            yield f"{len(shown) - MOST_SENTENCES} more slow pairs; commbench.slow_pairs(PATH) lists all."

    def _lost(self) -> Iterator[str]:
        totals = Counter[str]()
        for one in self.lost:
            totals[one.status] += one.count
        for status, count in totals.items():
            first = next(one for one in self.lost if one.status == status)
            yield f"{count} {'case' if count == 1 else 'cases'} {status}: {first.reason} ({first.cases})."

    def _abnormal(self) -> Iterator[str]:
        for one in self.judged:
            if one.verdict != NORMAL:
                yield f"{one.case}: {one.measured} is {one.verdict} ({one.published} on {one.reference.hardware})."
        if self.differences:
            names = list(dict.fromkeys(name for name, _, _ in self.differences))
            yield f"Ranks differ in {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}."


def summarise_results(results: Results) -> Summary:
    """All answers."""
    cases = results.cases
    choice = choice_of(cases[cases["timing"] != "soak"])
    machines = machines_of(results.records)
    labels = map(str, cases["label"].dropna().unique().tolist())
    return Summary(
        results, choice, choice.best, choice.crossings(), choice.fits(), launch_overheads(cases),
        slow_links(cases), lost_cases(cases), count_flags(cases),
        judge(choice.cases, [*(one.text for one in machines), *labels]), machines,
        run_groups(results.records), rank_differences(results.records),
    )  # fmt: skip


def best_text(best: Best) -> str:
    """The winner with its interval and its lead, or the names that are not distinguishable."""
    time = f"{format_seconds(best.median_s)} ({interval_text(best.low_s, best.high_s)})"
    if best.decided:
        return f"{best.name} is fastest, {time}; {best.second} takes {best.ratio:.3g} x as long"
    return f"{best.alike.replace(', ', ' and ')} are not distinguishable at {time}"


def interval_text(low: float, high: float) -> str:
    """Both ends of an interval of seconds, or `no interval`."""
    return f"{format_seconds(low)} .. {format_seconds(high)}" if low == low and high == high else "no interval"


def slow_links(cases: pd.DataFrame) -> list[Finding]:
    """Slow ranks and pairs (commbench/core/slow_pairs.py) of the cases with several pairs."""
    single = cases[cases["pair"].notna() & ~cases["pair"].str.contains(" ", na=False)]
    several = single[single.groupby(MATRIX_KEY, dropna=False)["pair"].transform("nunique") > 1].head(MOST_PAIR_ROWS)
    return findings([plain_row(row) for row in several.to_dict("records")])


def plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of a data frame with None for NaN."""
    return {str(name): None if isinstance(value, float) and value != value else value for name, value in row.items()}


def lost_cases(cases: pd.DataFrame) -> list[Lost]:
    """Cases without a number by status and reason, the most serious status and the most frequent reason first."""
    rows = cases[cases["status"] != "ok"]
    lost = []
    for (status, reason), group in rows.groupby(["status", rows["reason"].fillna("no reason given")], sort=False):
        names = list(
            dict.fromkeys(f"{row.benchmark} {row.backend} {row.layout}" for row in group.head(200).itertuples())
        )
        text = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        lost.append(Lost(str(status), str(reason), len(group), text))
    return sorted(lost, key=lambda one: (STATUSES.index(one.status) if one.status in STATUSES else 0, -one.count))


def count_flags(cases: pd.DataFrame) -> list[FlagCount]:
    """The flags of the measured cases, the most frequent first."""
    lists = cases.loc[cases["status"] == "ok", "flags"]
    counts = Counter(str(flag) for flags in lists if flags is not None for flag in flags)
    return [FlagCount(name, count, FLAGS.get(name, UNKNOWN_FLAG)) for name, count in counts.most_common()]


def reference_note(judged: Sequence[Judged]) -> str:
    """How many published values apply."""
    if judged:
        return f"{len(judged)} numbers have a published value for similar hardware; far is beyond a factor of 1.5."
    return f"No published value is for this hardware and these cases ({len(references())} are known)."


# ---------------------------------------------------------------- rows of tables


def best_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Cells below BEST_HEADS."""
    return [
        (f"{one.benchmark} {one.more}".strip(), str(one.world_size), size_text(one.size),
         one.name if one.decided else f"not distinguishable: {one.alike}", format_seconds(one.median_s),
         interval_text(one.low_s, one.high_s), one.second, f"{one.ratio:.3g} x")
        for one in summary.best
    ]  # fmt: skip


def group_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Cells below GROUP_HEADS."""
    return [
        (one.backend, one.library, one.layouts, one.world, one.ipc, one.timing, str(one.runs), one.labels)
        for one in summary.groups
    ]


# ---------------------------------------------------------------- the terminal


def summary_text(summary: Summary, top: int) -> str:
    """The whole report, tables cut after `top` rows with a line that says so."""
    width = max(int(os.environ.get("COLUMNS", "0") or 0), LEAST_WIDTH)
    title = f"{len(summary.results.cases)} cases of {len(summary.results.records)} runs"
    fits = [(one.benchmark, one.name, one.sizes, one.alpha, one.rate, one.half, one.miss) for one in summary.fits]
    fit_heads = ("benchmark", "case", "sizes", "alpha", "1 / beta", "n 1/2", "largest miss")
    flags = [(one.name, str(one.cases), one.flag.meaning, one.flag.advice) for one in summary.flags]
    lost = [(one.status, str(one.count), one.reason, one.cases) for one in summary.lost]
    overheads = [one.cells() for one in summary.overheads]
    parts = [
        "\n".join([_table(title, GROUP_HEADS, group_rows(summary), top, width), _wrapped(_places(summary), width)]),
        "\n".join(["Answers", _wrapped((f"  * {text}" for text in summary.sentences()), width)]),
        _table("Best backend and layout for each size", BEST_HEADS, best_rows(summary), top, width),
        _table("Costs: time = alpha + beta x bytes", fit_heads, fits, top, width),
        _table("Cost of launching a call: waiting for it, and replaying it", LAUNCH_HEADS, overheads, top, width),
        _wrapped(_reference_lines(summary), width),
        _table("Flags", ("flag", "cases", "meaning", "what to do"), flags, len(flags), width),
        _table("Not measured", ("status", "cases", "reason", "which"), lost, top, width)
        + _wrapped((f"left out: {line}" for line in summary.results.problems), width),
    ]
    lines = "\n\n".join(part for part in parts if part).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], top: int, width: int) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return ""
    table = Table(box=None, title=Text(title, style="bold"), title_justify="left", pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows[:top]:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text + (f"... and {len(rows) - top} more: --top {len(rows)}\n" if len(rows) > top else "")


def _wrapped(lines: Iterable[str], width: int) -> str:
    return "\n".join(textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False) for line in lines)


def _places(summary: Summary) -> Iterator[str]:
    """The machines and the differences between ranks."""
    for machine in summary.machines[:3]:
        facts = ", ".join(f"{name} {value}" for name, value in machine.facts)
        yield f"machine {', '.join(machine.hosts[:4])}: {facts}"
    if len(summary.machines) > 3:
        yield f"... and {len(summary.machines) - 3} more kinds of machine: --html FILE"
    for name, value, ranks in summary.differences[:10]:
        yield f"ranks differ: {name} is {value} on rank {ranks}"
    if len(summary.differences) > 10:
        yield f"... and {len(summary.differences) - 10} more differences: --html FILE"


def _reference_lines(summary: Summary) -> Iterator[str]:
    yield f"Is this number normal? {reference_note(summary.judged)}"
    for one in summary.judged:
        causes = f"; usual causes: {one.causes}" if one.verdict != NORMAL else ""
        yield f"  {one.case}: {one.measured}, published {one.published}: {one.verdict}{causes}"
        yield f"    {one.reference.hardware}; {one.reference.source}, {one.reference.date}"
