"""The report as one HTML page that needs no network: data/page.html.j2 filled with sentences, figures and tables."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from commbench.core.slow_pairs import matrices
from commbench.core.units import format_rate, format_seconds

from .cold_start import LAUNCH_HEADS
from .distributions import RawData
from .machines import topology_cells
from .page_figures import (
    Picture,
    curves_of,
    distribution_picture,
    efficiency_pictures,
    layout_pictures,
    ramp_picture,
    size_panels,
    soak_picture,
    waterfalls,
)  # fmt: skip
from .recommend import size_text
from .reference import NORMAL
from .slow_pairs import ColouredTable, pairs_table, wiring_table
from .summary import (
    BEST_HEADS,
    GROUP_HEADS,
    Summary,
    best_rows,
    group_rows,
    interval_text,
    plain_row,
    reference_note,
)  # fmt: skip
from .svg import clean

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_ROWS, MOST_MACHINES, MOST_MATRICES = 500, 8, 12
LEAST_PAIRS = 3  # a case with more pairs is shown as a matrix
SECTIONS = {
    "answers": "Answers",
    "best": "Best for each size",
    "curves": "Time and bandwidth",
    "layouts": "Layouts",
    "efficiency": "Share of the limit",
    "layers": "What each layer adds",
    "pairs": "All pairs",
    "soak": "Over time",
    "ramps": "From the first call to the steady rate",
    "distributions": "Distributions",
    "fits": "Cost of a message and of its bytes",
    "launches": "Cost of launching a call",
    "normal": "Is this number normal?",
    "flags": "Flags",
    "missing": "Not measured",
    "machines": "Machines",
    "cases": "Cases",
}


class Table(NamedTuple):
    """The first MOST_ROWS rows of a table; `total` is how many there are."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: int


class Distributed(NamedTuple):
    """The distribution of a case, below the line that opens it."""

    case_id: str
    line: str
    picture: Picture


class MachineView(NamedTuple):
    """A machine with its facts and its topology: a coloured table, else the text, else why there is none."""

    name: str
    facts: Table
    wiring: ColouredTable | None
    topology: str | None
    reason: str | None


def page(summary: Summary, raw: RawData, title: str = "commbench report") -> str:
    """The whole document; a section without data is left out."""
    data = dict(_sections(summary, raw))
    shown = [(key, name) for key, name in SECTIONS.items() if data[key]]
    results = summary.results
    counts = f"{len(results.cases)} cases of {len(results.records)} runs."
    return environment().get_template("page.html.j2").render(title=title, counts=counts, sections=shown, **data)


@functools.cache
def environment() -> Environment:
    """Jinja2 that escapes everything but Markup, and replaces characters that HTML forbids."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    folder = files("commbench.report") / "data"
    loader = DictLoader(
        {name: (folder / name).read_text(encoding="utf-8") for name in ("page.html.j2", "page.css", "page.js")}
    )

    def printable_text(value: object) -> object:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=printable_text, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def _sections(summary: Summary, raw: RawData) -> Iterator[tuple[str, Any]]:
    """Section -> what the template shows in it; empty where there is nothing."""
    curves = curves_of(summary.choice, raw.distributions)
    titles = _case_titles(summary) if raw.distributions or raw.time_lines else {}
    doubts = set(summary.doubts())
    yield "answers", [(text, text in doubts) for text in summary.sentences()]
    yield (
        "best",
        summary.best
        and {
            "table": _table(BEST_HEADS, best_rows(summary)),
            "crossings": summary.crossings[:MOST_ROWS],
        },
    )
    yield "curves", list(size_panels(curves))
    yield "layouts", layout_pictures(curves)
    yield "efficiency", efficiency_pictures(curves)
    yield "layers", waterfalls(curves)
    yield "pairs", _pair_tables(summary)
    yield (
        "soak",
        [
            soak_picture(f"{titles.get(one.case_id, one.case_id)}: median and range of each interval", one)
            for one in raw.time_lines
        ],
    )
    yield "ramps", [ramp_picture(backend, seconds) for backend, seconds in sorted(raw.ramps.items())]
    yield "distributions", _distributions(summary, raw, titles)
    fit_heads = ("benchmark", "case", "sizes", "alpha, per message", "1 / beta, of its bytes", "n 1/2", "largest miss")
    fits = [(one.benchmark, one.name, one.sizes, one.alpha, one.rate, one.half, one.miss) for one in summary.fits]
    yield "fits", fits and _table(fit_heads, fits)
    yield "launches", summary.overheads and _table(LAUNCH_HEADS, [one.cells() for one in summary.overheads])
    yield "normal", {"note": reference_note(summary.judged), "table": _references(summary)}
    flags = [(one.name, str(one.cases), one.flag.meaning, one.flag.advice) for one in summary.flags]
    yield "flags", flags and _table(("flag", "cases", "meaning", "what to do"), flags)
    yield "missing", _missing(summary, raw)
    yield "machines", _machines(summary)
    yield "cases", _cases(summary)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(heads, rows[:MOST_ROWS], len(rows))


def _pair_tables(summary: Summary) -> dict[str, Any] | None:
    """The matrices of the newest runs, of cases with more than LEAST_PAIRS pairs."""
    cases = summary.results.cases
    single = cases[cases["pair"].notna() & ~cases["pair"].str.contains(" ", na=False)]
    key = ["run_id", "benchmark", "engine", "layout", "message_bytes"]
    many = single[single.groupby(key)["pair"].transform("nunique") > LEAST_PAIRS]
    runs = many["run_id"].drop_duplicates().iloc[-MOST_MATRICES:]
    found = matrices(plain_row(row) for row in many[many["run_id"].isin(runs)].to_dict("records"))
    found.sort(key=lambda one: (str(one.run_id), str(one.shared["benchmark"]), int(one.shared["message_bytes"])))
    return {"tables": list(map(pairs_table, found[:MOST_MATRICES])), "total": len(found)} if found else None


def _case_titles(summary: Summary) -> dict[str, str]:
    """case_id -> a title for the figure of a single case."""
    cases = summary.results.cases.drop_duplicates("case_id")
    return {str(row["case_id"]): _case_title(summary, plain_row(row)) for row in cases.to_dict("records")}


def _case_title(summary: Summary, row: Mapping[str, Any]) -> str:
    pair = f", ranks {row['pair']}" if row["pair"] and len(row["pair"]) < 20 else ""
    size = size_text(row["message_bytes"]) if row["message_bytes"] else "no message"
    return f"{row['benchmark']} {size}, {summary.choice.name(row, without=('pair',))}{pair}"


def _distributions(summary: Summary, raw: RawData, titles: Mapping[str, str]) -> list[Distributed]:
    """By benchmark, backend and size."""
    cases = summary.results.cases.drop_duplicates("case_id")
    order = cases[cases["case_id"].isin(list(raw.distributions))].sort_values(
        ["benchmark", "backend", "message_bytes"], kind="stable"
    )
    views = []
    for case_id in order["case_id"]:
        one = raw.distributions[case_id]
        times = one.launches[0][1]
        ends = " .. ".join(format_seconds(times[at]) for at in (0, len(times) // 2, -1))
        line = f"{titles[case_id]}: {ends} (minimum, median, maximum; n = {sum(one.counts)})"
        views.append(Distributed(case_id, line, distribution_picture(titles[case_id], one)))
    return views


def _references(summary: Summary) -> Table | None:
    heads = ("measured case", "measured", "published", "verdict", "hardware", "source", "date", "note")
    rows = [
        (one.case, one.measured, one.published, one.verdict, one.reference.hardware, one.reference.source,
         one.reference.date, one.reference.note if one.verdict == NORMAL else f"usual causes: {one.causes}")
        for one in summary.judged
    ]  # fmt: skip
    return _table(heads, rows) if rows else None


def _missing(summary: Summary, raw: RawData) -> dict[str, Any] | None:
    rows = [(one.status, str(one.count), one.reason, one.cases) for one in summary.lost]
    notes = [*summary.results.problems, *raw.notes]
    if summary.choice.left:
        notes.append(f"{summary.choice.left} more distinct cases were not compared")
    table = _table(("status", "cases", "reason", "which"), rows) if rows else None
    return {"table": table, "notes": notes} if rows or notes else None


def _machines(summary: Summary) -> dict[str, Any]:
    views = []
    for machine in summary.machines[:MOST_MACHINES]:
        hosts = ", ".join(machine.hosts[:8]) + (" ..." if len(machine.hosts) > 8 else "")
        links = topology_cells(machine.topology) if machine.topology else []
        wiring = wiring_table(links) if links else None
        facts = _table(("fact", "value"), machine.facts)
        views.append(MachineView(hosts, facts, wiring, machine.topology, machine.topology_reason))
    differences = _table(("fact", "value", "ranks"), summary.differences) if summary.differences else None
    return {
        "groups": _table(GROUP_HEADS, group_rows(summary)),
        "machines": views,
        "left": len(summary.machines) - len(views),
        "differences": differences,
    }


def _cases(summary: Summary) -> Table:
    cases = summary.choice.cases
    rows = [
        (_case_title(summary, row), format_seconds(row["median_s"]),
         interval_text(float(row["ci_low_s"] or "nan"), float(row["ci_high_s"] or "nan")),
         format_rate(row["algbw_gb_per_s"]), str(int(row["runs"])))
        for row in map(plain_row, cases.head(MOST_ROWS).to_dict("records"))
    ]  # fmt: skip
    return Table(("case", "median", "95 % interval", "GB/s", "runs"), rows, len(cases))
