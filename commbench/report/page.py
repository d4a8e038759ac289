"""The report as one HTML page that needs no network: data/page.html.j2 filled with sentences,
figures and tables."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from commbench.analysis.best import BEST_CELLS, best_rows
from commbench.analysis.cold_start import LAUNCH_HEADS
from commbench.analysis.group_gains import GAIN_HEADS, GAIN_MEANING
from commbench.analysis.headline import headline, trust
from commbench.analysis.overlaps import OVERLAP_HEADS, OVERLAP_MEANING
from commbench.analysis.reference import NORMAL
from commbench.analysis.slow_pairs import matrices
from commbench.core.states import Row
from commbench.core.texts import size_text
from commbench.core.units import format_seconds
from commbench.results.load import row_dicts

from . import numbers, page_parts
from .compare_text import AbResult, comparison_cells
from .distributions import RawData
from .links import pairs_table, wiring_table
from .summary import (
    FLAG_HEADS,
    GROUP_HEADS,
    LOST_HEADS,
    Summary,
    counts_text,
    reference_note,
    several_pairs,
)  # fmt: skip
from .svg import clean

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_ROWS = 500
MOST_MACHINES = 8
MOST_MATRICES = 12
MOST_HOSTS = 8
LEAST_MATRIX_PAIRS = 3  # a case with more pairs is shown as a matrix
SECTIONS = {
    "gate": "Acceptance",
    "curves": "Time and bandwidth",
    "soak": "Over time",
    "replay": "Replayed jobs",
    "lines": "In short",
    "answers": "Answers",
    "comparisons": "Comparisons",
    "guidelines": "Performance guidelines",
    "numbers": "Numbers",
    "best": "Best for each size",
    "layouts": "Layouts",
    "efficiency": "Share of the limit",
    "layers": "What a layer adds",
    "overlaps": "Communication beside computation",
    "gains": "Groups at once",
    "pairs": "All pairs",
    "normal": "Is this number normal?",
    "flags": "Warnings",
    "missing": "Not measured",
    "machines": "Machines",
    "details": "Details",
}


class Table(NamedTuple):
    """The first MOST_ROWS rows of a table; `total` is how many there are."""

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    total: int


def page(summary: Summary, raw: RawData, more: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The whole document; a section without data is left out. `more`: further sections, by the keys
    of SECTIONS."""
    data = {**dict.fromkeys(SECTIONS), **dict(_sections(summary, raw)), **more}
    shown = [(key, name) for key, name in SECTIONS.items() if data[key]]
    results = summary.results
    about = [part for part in (*_origin(summary), counts_text(results)) if part]
    first = {
        "unfinished": summary.unfinished,
        "verdicts": summary.verdicts(),
        "headline": headline(summary.combined, summary.soaks),
        "trust": trust(results.cases, results.records),
        "intervals": summary.interval_note(),
    }
    return (
        environment()
        .get_template("page.html.j2")
        .render(about=about, sections=shown, **first, **data)
    )


def _origin(summary: Summary) -> Iterator[str]:
    """When, where and under which label the runs were made."""
    records = summary.results.records
    cases = summary.results.cases
    days = sorted(
        {str(record["started_at"])[:10] for record in records if record.get("started_at")}
    )
    yield " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    hosts = list(dict.fromkeys(host for machine in summary.machines for host in machine.hosts))
    more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
    yield (
        f"host{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:MOST_HOSTS])}{more}"
        if hosts
        else ""
    )
    labels = sorted({str(label) for label in cases["label"].dropna()} - {""})
    yield f"label {', '.join(labels)}" if labels else ""


@functools.cache
def environment() -> Environment:
    """Jinja2 that escapes everything but Markup, and replaces characters that HTML forbids."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def printable_text(value: object) -> object:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=PackageLoader("commbench.report", "data"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _sections(summary: Summary, raw: RawData) -> Iterator[tuple[str, Any]]:
    """Section -> what the template shows in it; empty where there is nothing."""
    curves = page_parts.curves_of(summary.combined, raw.distributions)
    cases = summary.results.cases.drop_duplicates("case_id")
    titled = row_dicts(cases) if raw.distributions or raw.time_lines else []
    titles = {str(row["case_id"]): _case_title(summary, row) for row in titled}
    doubts = set(summary.doubts())
    yield "answers", [(text, text in doubts) for text in summary.sentences()]
    yield "comparisons", list(map(_comparison, summary.results.comparisons))
    yield "guidelines", summary.guideline_lines[:MOST_ROWS]
    yield "lines", numbers.benchmark_lines(summary.combined)
    yield "numbers", list(numbers.number_tables(summary.combined))
    best = first_rows(tuple(BEST_CELLS), best_rows(summary.combined.best, summary.combined.level))
    yield (
        "best",
        best
        and {
            "table": best,
            "crossings": summary.combined.crossings[:MOST_ROWS],
        },
    )
    panels = list(page_parts.size_panels(curves))
    yield "curves", panels
    yield "layouts", page_parts.layout_pictures(curves)
    yield "efficiency", page_parts.efficiency_pictures(curves)
    yield "layers", page_parts.waterfalls(curves)
    overlaps = first_rows(OVERLAP_HEADS, summary.overlaps)
    gains = first_rows(GAIN_HEADS, summary.gains)
    yield "gains", gains and {"table": gains, "note": GAIN_MEANING}
    yield "overlaps", overlaps and {"table": overlaps, "note": OVERLAP_MEANING}
    yield "pairs", _pair_tables(summary)
    shown = "median and range of each interval"
    yield (
        "soak",
        [
            page_parts.soak_picture(f"{titles[case_id]}: {shown}", line)
            for case_id, line in raw.time_lines
        ],
    )
    fit_heads = (
        "benchmark",
        "case",
        "sizes",
        "alpha, per message",
        "1 / beta, of its bytes",
        "n 1/2",
        "misses up to",
    )
    details = {
        "distributions": _distributions(summary, raw, titles),
        "notes": raw.notes,
        "ramps": [
            page_parts.ramp_picture(backend, seconds)
            for backend, seconds in sorted(raw.ramps.items())
        ],
        "fits": first_rows(fit_heads, summary.combined.fits),
        "launches": first_rows(LAUNCH_HEADS, summary.overheads),
        "cases": _case_table(summary),
    }
    yield "details", details if any(details.values()) else None
    yield "normal", {"note": reference_note(summary.judged), "table": _references(summary)}
    yield "flags", first_rows(FLAG_HEADS, summary.flags)
    yield "missing", _missing(summary)
    yield "machines", _machines(summary)


def _comparison(result: AbResult) -> dict[str, Any]:
    shared, heads, rows = comparison_cells(result.frame, result.rules)
    used = [at for at in range(len(heads)) if any(row[at] != "-" for row in rows)]
    table = first_rows([heads[at] for at in used], [[row[at] for at in used] for row in rows])
    notes = [shared, *result.notes()] if shared else result.notes()
    return {"text": result.sentence(), "table": table, "notes": notes}


def first_rows(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Table | None:
    """A table of the first rows; None without rows."""
    return Table(heads, rows[:MOST_ROWS], len(rows)) if rows else None


def _pair_tables(summary: Summary) -> dict[str, Any] | None:
    """The matrices of the newest runs, of cases with more than LEAST_MATRIX_PAIRS pairs."""
    many = several_pairs(summary.results.cases, LEAST_MATRIX_PAIRS)
    runs = many["run_id"].drop_duplicates().iloc[-MOST_MATRICES:]
    newest = matrices(row_dicts(many[many["run_id"].isin(runs)]))
    newest.sort(
        key=lambda matrix: (
            str(matrix.run_id),
            matrix.shared["benchmark"],
            matrix.shared["message_bytes"],
        )
    )
    return (
        {"tables": list(map(pairs_table, newest[:MOST_MATRICES])), "total": len(newest)}
        if newest
        else None
    )


def _case_title(summary: Summary, row: Row) -> str:
    pair = f", ranks {row['pair']}" if row["pair"] and len(row["pair"]) < 20 else ""
    size = size_text(row["message_bytes"]) if row["message_bytes"] else "no message"
    return f"{row['benchmark']} {size}, {summary.combined.name(row, without=('pair',))}{pair}"


def _distributions(
    summary: Summary, raw: RawData, titles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The distributions by benchmark, backend and size; `line` opens the picture."""
    cases = summary.results.cases.drop_duplicates("case_id")
    order = cases[cases["case_id"].isin(list(raw.distributions))].sort_values(
        ["benchmark", "backend", "message_bytes"], kind="stable"
    )
    views = []
    for case_id in order["case_id"]:
        launches = raw.distributions[case_id]
        repetitions = sum(times.size for _, times in launches)
        ends = " .. ".join(map(format_seconds, np.quantile(launches[0][1], (0, 0.5, 1)).tolist()))
        line = f"{titles[case_id]}: {ends} (minimum, median, maximum; n = {repetitions})"
        picture = page_parts.distribution_picture(titles[case_id], launches)
        views.append({"case_id": case_id, "line": line, "picture": picture})
    return views


def _references(summary: Summary) -> Table | None:
    heads = (
        "measured case",
        "measured",
        "known value",
        "verdict",
        "hardware",
        "source",
        "date",
        "note",
    )
    rows = [
        (
            judged.case,
            judged.measured,
            judged.expected,
            judged.verdict,
            judged.reference["hardware"],
            judged.reference["source"],
            judged.reference["date"],
            (
                judged.reference["note"]
                if judged.verdict == NORMAL
                else f"usual causes: {judged.causes}"
            ),
        )
        for judged in summary.judged
    ]
    return first_rows(heads, rows)


def _missing(summary: Summary) -> dict[str, Any] | None:
    notes = [f"Left out: {line}" for line in summary.left_out()]
    if summary.combined.left:
        notes.append(f"{summary.combined.left} more distinct cases were not compared")
    return (
        {"table": first_rows(LOST_HEADS, summary.lost), "notes": notes}
        if summary.lost or notes
        else None
    )


def _machines(summary: Summary) -> dict[str, Any]:
    """One table of all machines: what differs first, then what they share, in one cell."""
    machines = summary.machines[:MOST_MACHINES]
    hosts = [
        ", ".join(machine.hosts[:4]) + (" ..." if len(machine.hosts) > 4 else "")
        for machine in machines
    ]
    names = [
        f"{name} ({number})" if hosts.count(name) > 1 else name
        for number, name in enumerate(hosts, start=1)
    ]
    facts = [dict(machine.facts) for machine in machines]
    titles = dict.fromkeys(title for machine in machines for title, _ in machine.facts)
    rows = [(title, [values.get(title, "-") for values in facts]) for title in titles]
    rows.sort(key=lambda row: len(set(row[1])) == 1)
    wiring = [
        {"name": name, "table": wiring_table(machine.topology), "text": machine.topology,
         "reason": machine.topology_reason}
        for name, machine in zip(names, machines, strict=True)
    ]  # fmt: skip
    return {
        "groups": first_rows(GROUP_HEADS, summary.groups),
        "names": names,
        "facts": rows,
        "wiring": wiring,
        "left": len(summary.machines) - len(machines),
        "differences": first_rows(("fact", "value", "ranks"), summary.differences),
    }


def _case_table(summary: Summary) -> Table | None:
    cases = sorted(
        row_dicts(summary.combined.cases),
        key=lambda row: page_parts.by_variables(summary.combined, row),
    )
    level = summary.combined.level
    rows = [
        [
            _case_title(summary, row),
            *(cell(row, level) for cell in numbers.CASE_NUMBERS.values()),
            str(int(row["runs"])),
        ]
        for row in cases[:MOST_ROWS]
    ]
    return Table(("case", *numbers.CASE_NUMBERS, "runs"), rows, len(cases)) if cases else None
