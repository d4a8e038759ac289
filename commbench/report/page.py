"""One HTML page that needs nothing else: sentences first, then pictures, then tables, then every doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from commbench.core.slow_pairs import Matrix, matrices, slow_pairs
from commbench.core.units import format_rate, format_seconds

from .figure_matrix import matrix_title, pairs_table, wiring_table
from .figure_time import ecdf, ramp_histogram, time_line
from .launch_overhead import HEADS
from .machine import Machine, topology_cells
from .markup import Markup, element, joined, table
from .page_curves import Curves, curves_of, efficiency, layouts, panels, waterfalls
from .recommend import size_text
from .reference import NORMAL
from .samples import Distribution, Raw
from .style import interval_text
from .summary import Summary, reference_note

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
UNITS = (
    "Times are of one operation: half a round trip for p2p_latency, one message of a window for p2p_bandwidth, one "
    "call of a collective. GB/s is 10^9 B/s, KiB is 1024 B. Bands and intervals are 95 % of the median."
)
MOST_ROWS, MOST_MACHINES, MOST_MATRICES = 500, 8, 12
LEAST_PAIRS = 3
LINK_MEANINGS = {
    "X": "the device itself", "NV": "NVLink, with the number of links", "PIX": "one PCIe switch",
    "PXB": "several PCIe switches, no host bridge", "PHB": "a PCIe host bridge (the CPU)",
    "NODE": "several host bridges of one NUMA node", "SYS": "the link between NUMA nodes",
}  # fmt: skip
Section = tuple[str, str, Markup]


def page(summary: Summary, raw: Raw, title: str = "commbench report") -> str:
    """The whole document; a section without data is left out."""
    curves = curves_of(summary.choice, raw.distributions)
    shown = [one for one in _sections(summary, raw, curves) if one[2]]
    head = element(
        "head", element("meta", charset="utf-8"), element("title", title),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("style", Markup(_asset("page.css"))),
    )  # fmt: skip
    links = element("nav", (element("a", name, href=f"#{key}") for key, name, _ in shown))
    told = f"{len(summary.results.cases)} cases of {len(summary.results.runs)} runs. {UNITS}"
    top = element("header", element("h1", title), element("p", told, class_="soft"), links)
    body = element("main", (element("section", element("h2", name), inside, id=key) for key, name, inside in shown))
    script = element("script", Markup(_asset("page.js")))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', top, body, script), lang='en')}\n"


def _asset(name: str) -> str:
    return (files("commbench.report") / "data" / name).read_text(encoding="utf-8")


def _sections(summary: Summary, raw: Raw, curves: Curves) -> Iterator[Section]:
    yield "answers", "Answers", _answers(summary)
    yield "best", "Best for each size", _best(summary)
    yield "curves", "Time and bandwidth", joined(panels(curves))
    yield "layouts", "Layouts", _grid(layouts(curves))
    yield "efficiency", "Share of the limit", _grid(efficiency(curves))
    yield "layers", "What each layer adds", _layers(curves)
    yield "pairs", "All pairs", joined(_pairs(summary))
    yield "soak", "Over time", joined(_soaks(summary, raw))
    yield "ramps", "From the first call to the steady rate", _ramps(raw)
    yield "distributions", "Distributions", _distributions(summary, raw)
    yield "fits", "Costs of a message and of its bytes", _fits(summary)
    yield "launches", "What a launch costs", _overheads(summary)
    yield "normal", "Is this number normal?", _normal(summary)
    yield "flags", "Flags", _flags(summary)
    yield "missing", "Not measured", _missing(summary, raw)
    yield "machines", "Machines", joined(_machines(summary))
    yield "cases", "Cases", _cases(summary)


def _grid(parts: Iterable[Markup]) -> Markup:
    found = list(parts)
    return element("div", found, class_="grid2") if found else Markup("")


def _note(text: str) -> Markup:
    return element("p", text, class_="note")


def _answers(summary: Summary) -> Markup:
    doubts = ("Slow", "Link of", "Ranks differ", "Each case was", "Nothing")
    items = [
        element("li", text, class_="doubt" if text.startswith(doubts) or " than published" in text else None)
        for text in summary.sentences()
    ]
    return element("ul", items, class_="answers")


def _best(summary: Summary) -> Markup:
    if not summary.best:
        return Markup("")
    heads = ("benchmark", "ranks", "message", "best", "median", "95 % interval", "second", "takes")
    rows = [
        (f"{one.benchmark} {one.more}".strip(), str(one.world_size), size_text(one.size),
         one.name if one.decided else f"not distinguishable: {one.alike}", format_seconds(one.median_s),
         interval_text(one.low_s, one.high_s), one.second, f"{one.ratio:.3g} x")
        for one in summary.best[:MOST_ROWS]
    ]  # fmt: skip
    crossed = element("ul", (element("li", text) for text in summary.crossings[:MOST_ROWS]))
    return joined(table(heads, rows), _capped(len(summary.best)),
                  element("details", element("summary", "Backend against backend"), crossed))  # fmt: skip


def _capped(count: int) -> Markup | None:
    return _note(f"The first {MOST_ROWS} of {count} rows; commbench export has all.") if count > MOST_ROWS else None


def _layers(curves: Curves) -> Markup:
    found = waterfalls(curves)
    if not found:
        return Markup("")
    told = "The same message in the same layout, the fastest way first; grey and red are what a layer adds to the one "
    return joined(_note(f"{told}above it. Shared memory and sockets are different ways: the order is that of their "
                        "times, not of their code."), _grid(found))  # fmt: skip


def _pairs(summary: Summary) -> Iterator[Markup]:
    cases = summary.results.cases
    single = cases[cases["pair"].notna() & ~cases["pair"].str.contains(" ", na=False)]
    place = ["run_id", "benchmark", "engine", "layout", "message_bytes"]
    many = single[single.groupby(place)["pair"].transform("nunique") > LEAST_PAIRS]
    runs = many["run_id"].drop_duplicates().iloc[-MOST_MATRICES:]
    found = matrices(_plain(row) for row in many[many["run_id"].isin(runs)].to_dict("records"))
    if found:
        yield _note("Senders down, receivers across. Dark is slow; a black ring is a pair that is slow for its class.")
    for matrix in sorted(found, key=_place)[:MOST_MATRICES]:
        yield pairs_table(matrix, matrix_title(matrix), slow_pairs(matrix))
    if len(found) > MOST_MATRICES:
        yield _note(f"The first {MOST_MATRICES} matrices of the newest runs are shown.")


def _place(matrix: Matrix) -> tuple[str, str, int]:
    return str(matrix.run_id), str(matrix.shared["benchmark"]), int(matrix.shared["message_bytes"])


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): None if isinstance(value, float) and value != value else value for name, value in row.items()}


def _named(summary: Summary) -> dict[str, str]:
    """case_id -> a title, for the pictures of single cases."""
    cases = summary.results.cases.drop_duplicates("case_id")
    return {str(row["case_id"]): _title(summary, _plain(row)) for row in cases.to_dict("records")}


def _title(summary: Summary, row: Mapping[str, Any]) -> str:
    pair = f", ranks {row['pair']}" if row["pair"] and len(row["pair"]) < 20 else ""
    size = size_text(row["message_bytes"]) if row["message_bytes"] else "no message"
    return f"{row['benchmark']} {size}, {summary.choice.name(row, without=('pair',))}{pair}"


def _soaks(summary: Summary, raw: Raw) -> Iterator[Markup]:
    names = _named(summary) if raw.lines else {}
    for line in raw.lines:
        title = f"{names.get(line.case_id, line.case_id)}: median and range of each interval"
        yield element("div", element("h3", title), time_line(title, line), class_="panel wide")


def _ramps(raw: Raw) -> Markup:
    drawn = [
        element("div", element("h3", f"{name}: {len(values)} cases"),
                ramp_histogram(f"{name}: time from the first call to 95 % of the steady rate", values), class_="panel")
        for name, values in sorted(raw.ramps.items())
    ]  # fmt: skip
    return _grid(drawn)


def _distributions(summary: Summary, raw: Raw) -> Markup:
    if not raw.distributions:
        return Markup("")
    names = _named(summary)
    order = sorted(raw.distributions.values(), key=lambda one: _sorted_by(summary, one))
    told = "Choose a case here, or click its point in a curve. Each line is one launch, from quantiles of its samples."
    return joined(_note(told), (_distribution(names[one.case_id], one, not index) for index, one in enumerate(order)))


def _sorted_by(summary: Summary, one: Distribution) -> tuple[str, str, int]:
    row = summary.results.cases.loc[_first(summary, one.case_id)]
    return str(row["benchmark"]), str(row["backend"]), int(row["message_bytes"])


def _first(summary: Summary, case_id: str) -> Any:
    return (summary.results.cases["case_id"] == case_id).idxmax()


def _distribution(name: str, one: Distribution, opened: bool) -> Markup:
    count, middle = sum(one.counts), len(one.launches[0][1]) // 2
    values = one.launches[0][1]
    said = f"{name}: {format_seconds(values[0])} .. {format_seconds(values[middle])} .. {format_seconds(values[-1])}"
    head = element("summary", f"{said} (least, median, most; n = {count})")
    return element("details", head, ecdf(f"{name}: distribution", one), id=f"d-{one.case_id}",
                   open="open" if opened else None)  # fmt: skip


def _fits(summary: Summary) -> Markup:
    heads = ("benchmark", "case", "sizes", "alpha, of a message", "1 / beta, of its bytes", "n 1/2", "largest miss")
    rows = [(one.benchmark, one.name, one.sizes, one.alpha, one.rate, one.half, one.miss) for one in summary.fits]
    told = "Hockney's model, time = alpha + beta x bytes, in pieces where the protocol changes."
    return joined(_note(told), table(heads, rows)) if rows else Markup("")


def _overheads(summary: Summary) -> Markup:
    if not summary.overheads:
        return Markup("")
    told = "A call that the host waits for, and the same call in the replay of a graph: the difference is the launch."
    rows = [one.cells() for one in summary.overheads[:MOST_ROWS]]
    return joined(_note(told), table(HEADS, rows), _capped(len(summary.overheads)))


def _normal(summary: Summary) -> Markup:
    heads = ("measured case", "measured", "published", "verdict", "hardware", "source", "date", "note")
    rows = [
        (one.case, one.measured, one.published, one.verdict, one.reference.hardware, one.reference.source,
         one.reference.date, one.reference.note if one.verdict == NORMAL else f"usual causes: {one.causes}")
        for one in summary.judged
    ]  # fmt: skip
    return joined(_note(reference_note(summary.judged)), table(heads, rows) if rows else None)


def _flags(summary: Summary) -> Markup:
    rows = [(one.flag, str(one.cases), one.meaning.means, one.meaning.do) for one in summary.flags]
    return table(("flag", "cases", "means", "what to do"), rows) if rows else Markup("")


def _missing(summary: Summary, raw: Raw) -> Markup:
    rows = [(one.status, str(one.count), one.reason, one.cases) for one in summary.lost[:MOST_ROWS]]
    told = [*summary.results.problems, *raw.notes]
    told += [f"{summary.choice.left} distinct cases beyond the first were not compared"] if summary.choice.left else []
    return joined(table(("status", "cases", "reason", "which"), rows) if rows else None,
                  element("ul", (element("li", text) for text in told)) if told else None)  # fmt: skip


def _machines(summary: Summary) -> Iterator[Markup]:
    heads = ("backend", "library", "layouts", "world", "CUDA IPC", "timing", "runs", "labels")
    rows = [(one.backend, one.library, one.layouts, one.world, one.ipc, one.timing, str(one.runs), one.labels)
            for one in summary.heads[:MOST_ROWS]]  # fmt: skip
    yield table(heads, rows)
    for machine in summary.machines[:MOST_MACHINES]:
        yield from _machine(machine)
    if len(summary.machines) > MOST_MACHINES:
        yield _note(f"{len(summary.machines) - MOST_MACHINES} more kinds of machine are not shown.")
    if summary.differences:
        yield element("h3", "Differences between the ranks of a run")
        yield table(("fact", "value", "ranks"), summary.differences[:MOST_ROWS])
    else:
        yield _note("No version, setting or fact differs between the ranks of a run.")


def _machine(machine: Machine) -> Iterator[Markup]:
    hosts = ", ".join(machine.hosts[:8]) + (" ..." if len(machine.hosts) > 8 else "")
    yield element("h3", hosts)
    yield table(("fact", "value"), machine.facts)
    cells = topology_cells(machine.topology) if machine.topology else []
    if cells:
        yield wiring_table(cells, LINK_MEANINGS)
    elif machine.topology:
        yield element("pre", machine.topology)
    else:
        yield _note(f"No topology matrix: {machine.topology_reason or 'not recorded'}.")


def _cases(summary: Summary) -> Markup:
    cases = summary.choice.cases
    heads = ("case", "median", "95 % interval", "GB/s", "runs")
    rows = [
        (_title(summary, row), format_seconds(row["median_s"]),
         interval_text(float(row["ci_low_s"] or "nan"), float(row["ci_high_s"] or "nan")),
         format_rate(row["algbw_gb_per_s"]), str(int(row["runs"])))
        for row in map(_plain, cases.head(MOST_ROWS).to_dict("records"))
    ]  # fmt: skip
    inside = joined(table(heads, rows), _capped(len(cases)))
    return element("details", element("summary", f"{len(cases)} distinct measured cases"), inside)
