"""Backends, labels, environments, ... side by side: a table for each benchmark, one for all
streams, a sentence for each column, and what made the numbers uncertain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from statistics import median
from typing import Any

from commbench.analysis.case_names import (
    FAMILY_VARIABLES,
    SharedItems,
    differing,
    label_notes,
    telling,
)
from commbench.analysis.disturbances import disturbances_text
from commbench.analysis.effective_settings import settings_texts
from commbench.analysis.fit import by_window
from commbench.analysis.slow_pairs import matrices
from commbench.core.states import Row, case_status
from commbench.core.terminal import (
    GAP,
    UNLIMITED_WIDTH,
    TableColumn,
    Terminal,
    paragraphs,
    table_text,
)
from commbench.core.texts import (
    EMPTY,
    message_text,
    setting_text,
    setting_texts,
    shown_value,
    size_text,
)
from commbench.core.units import natural_key, plural
from commbench.core.variables import TABLE, brought_along, is_number
from commbench.results.columns import grouped, hashable, row_order
from commbench.results.flags import warnings_of
from commbench.results.intervals import interval_note
from commbench.stats.interval import Interval, widest

from .footnotes import is_unfinished
from .quantities import (
    ALGBW,
    BUSBW,
    MEDIAN,
    NO_NUMBER,
    Quantity,
    Unit,
    has_bandwidth,
    in_full,
    is_collective,
    quoted,
)
from .streams import is_stream_soak, streams_text
from .table import is_matrix, matrix_text

# columns of a table
BESIDE = (*(each.name for each in TABLE if each.beside), "label")
# named where one backend has several of them
IMPLIED = ("engine", *brought_along("backend"))
# tables of their own
APART = tuple(name for name in FAMILY_VARIABLES if name not in (*BESIDE, "window", "pair"))

KIB = 1024

Point = Mapping[str, Any]
Column = tuple[
    tuple[TableColumn, Sequence[str]], ...
]  # the columns of one heading, with their cells


def belong_together(runs: Sequence[Sequence[Row]]) -> bool:
    """Whether the rows of these runs differ in what stands side by side, or have streams, which
    share a table."""
    with_streams = [rows for rows in runs if any(map(is_stream_soak, rows))]
    differ = len(runs) > 1 and differing([*chain(*runs)], BESIDE)
    return bool(differ) or len(with_streams) > 1


def side_by_side(
    rows: Sequence[Row],
    terminal: Terminal,
    records: Sequence[Mapping[str, Any]] = (),
    again: str = "",
) -> str:
    """The whole text; launches are merged to their median, but of streams. `records` are those of
    the runs, `again` the command that shows each of them."""
    ok = [row for row in rows if case_status(row) == "ok"]
    shared = SharedItems.of(ok)
    measured = list(map(shared.taken_from, ok))
    notes = [*shared.notes, *label_notes(measured), *settings_texts(records, measured)]
    streams = [row for row in measured if is_stream_soak(row)]
    others = [row for row in measured if not is_stream_soak(row)]
    tables = _tables(others)
    points = {key: dict(zip((*APART, "window"), key, strict=True)) for key in tables}
    headings = _headings(others)
    note = interval_note(filter(None, map(MEDIAN.of, others))).partition(" over ")[0]
    title = "; ".join(filter(None, [_title(measured), note]))
    parts = [terminal.styled(terminal.paragraph(title), "bold")]
    for key, listed in sorted(tables.items(), key=lambda table: _place(table[1][0])):
        alike_points = [
            other for other in points.values() if other["benchmark"] == points[key]["benchmark"]
        ]
        head = _table_title(points[key], alike_points)
        parts += [terminal.styled(terminal.paragraph(head), "bold")] if head else []
        alike = [row for row in others if row["benchmark"] == points[key]["benchmark"]]
        full = _in_full(alike, beside_bandwidth=any(map(has_bandwidth, others)))
        parts.append(_table(listed, full, headings, terminal))
    parts += _of_streams(streams, terminal)
    lost = len(rows) - len(measured)
    unfinished = sum(map(is_unfinished, measured))
    notes += [f"{plural(lost, 'case has', 'cases have')} no number: commbench report says why"] * (
        lost > 0
    )
    notes += [f"not finished: {plural(unfinished, 'case', 'cases')}: commbench resume RUN"] * (
        unfinished > 0
    )
    notes += _sentences(others, headings)
    notes += _flags(measured)
    notes += [disturbances_text(records, measured)]
    text = paragraphs(filter(None, notes), terminal)
    again += " --intervals" if again and streams else ""
    return "\n".join(filter(None, [*parts, text, again]))


def _of_streams(streams: Sequence[Row], terminal: Terminal) -> Iterator[str]:
    """The matrices of all pairs, and a line for each stream."""
    for matrix in filter(is_matrix, matrices(streams)):
        yield f"{matrix_text(matrix, differing(streams), terminal)}\n"
    yield streams_text(sorted(streams, key=row_order), terminal)


def _title(rows: Sequence[Row]) -> str:
    """The only backend, and how many ranks were where."""
    backends = {str(row["backend"]) for row in rows}
    sizes = sorted({int(row["world_size"]) for row in rows if row["world_size"]})
    ranks = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))) if sizes else "no"
    nodes = max((int(row["nodes"] or 1) for row in rows), default=1)
    where = "on this machine, no network" if nodes == 1 else f"on up to {nodes} nodes"
    only = f"{backends.pop()}, " if len(backends) == 1 else ""
    return f"{only}{ranks} ranks {where}"


def _tables(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the variables of APART and the window that was asked for."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=row_order):
        key = tuple(hashable(row[name]) for name in (*APART, *BESIDE))
        series.setdefault(key, []).append({**row, "message_bytes": row["message_bytes"] or 0})
    tables: dict[tuple[Any, ...], list[Row]] = {}
    for key, sizes in series.items():
        for window, group in by_window(sizes):
            tables.setdefault((*key[: len(APART)], window), []).extend(group)
    return tables


def _table_title(point: Point, others: Sequence[Point]) -> str:
    """The variables in which the tables of a benchmark differ; empty for its only one."""
    names = [name for name in point if any(other[name] != point[name] for other in others)]
    values = setting_texts(point, names)
    return ", ".join([str(point["benchmark"]), *values]) if values else ""


def _headings(rows: Sequence[Row]) -> dict[tuple[Any, ...], str]:
    """Values of BESIDE -> the name of their columns: what differs."""
    names = telling(rows, BESIDE)
    headings = {}
    for own in grouped(rows, lambda row: str(row["backend"])).values():
        within = differing(own, names)
        shown = [name for name in names if name not in IMPLIED or name in within]
        for row in own:
            values = {name: shown_value(row, name) for name in shown}
            words = [_heading_word(*each) for each in values.items() if each[1] not in EMPTY]
            alone = f"no {shown[0]}" if shown else str(row["backend"])
            headings[_column_of(row)] = " ".join(words) or alone
    return headings


def _heading_word(name: str, value: Any) -> str:
    """A number with its name, as in `16 streams`; a label alone."""
    if is_number(name):
        return plural(value, name.removesuffix("s"), name)
    return str(value) if name == "label" else setting_text(name, value)


def _column_of(row: Row) -> tuple[Any, ...]:
    return tuple(hashable(row[name]) for name in BESIDE)


def _in_full(rows: Sequence[Row], beside_bandwidth: bool) -> tuple[Quantity, ...]:
    """What all tables of a benchmark show where there is room: of messages from 1 KiB on, one at a
    time, also the bandwidth, unless another benchmark tells it."""
    large = any(row["pair"] and row["message_bytes"] > KIB for row in rows if row["message_bytes"])
    of_times = large and not beside_bandwidth and quoted(rows) == (MEDIAN,)
    return (MEDIAN, ALGBW) if of_times else in_full(rows)


def _table(
    rows: Sequence[Row],
    full: Sequence[Quantity],
    headings: Mapping[tuple[Any, ...], str],
    terminal: Terminal,
) -> str:
    """Sizes down, backends across; several tables where the terminal is too narrow for one. `full`
    is shown where there is room."""
    lines: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (natural_key(row["pair"]), row["message_bytes"])):
        line = lines.setdefault((row["pair"] or "-", row["message_bytes"]), {})
        line.setdefault(headings[_column_of(row)], []).append(row)
    has_pairs = len({pair for pair, _ in lines}) > 1
    sizes = [message_text(size) for _, size in lines]
    leading = [TableColumn(str(rows[0]["benchmark"]), right=True)]
    names: list[tuple[str, ...]] = [(size,) for size in sizes]
    if has_pairs:
        leading.append(TableColumn("pair"))
        names = [(size, pair) for size, (pair, _) in zip(sizes, lines, strict=True)]
    every = dict.fromkeys(heading for line in lines.values() for heading in line)
    room = (terminal.width or UNLIMITED_WIDTH) - sum(map(_width, leading, zip(*names, strict=True)))
    for quantities in (full, quoted(rows)):
        # one unit for all backends, so that numbers in a line can be compared
        shown = [(quantity, quantity.unit(rows)) for quantity in quantities]
        groups = [
            _columns(heading, [line.get(heading, []) for line in lines.values()], shown)
            for heading in sorted(every, key=natural_key)
        ]
        if sum(_width(*column) for group in groups for column in group) <= room:
            break
    parts = []
    while groups:
        widths = accumulate(sum(_width(*column) for column in group) for group in groups)
        count = max(1, sum(total <= room for total in widths))
        fitting = [column for group in groups[:count] for column in group]
        groups = groups[count:]
        cells = zip(*(texts for _, texts in fitting), strict=True)
        table = [(*name, *texts) for name, texts in zip(names, cells, strict=True)]
        parts.append(table_text([*leading, *(column for column, _ in fitting)], table, terminal))
    return "\n".join(parts)


def _width(column: TableColumn, texts: Iterable[str]) -> int:
    return max(map(len, (column.heading, *texts))) + GAP


def _columns(
    heading: str, lines: Sequence[Sequence[Row]], shown: Sequence[tuple[Quantity, Unit]]
) -> Column:
    """The numbers of one heading: the first quantity with its width, then the others."""
    columns = []
    for number, (quantity, unit) in enumerate(shown):
        merged = [_over_launches(line, quantity) for line in lines]
        texts = [NO_NUMBER if each is None else each.value_text(unit.text) for each in merged]
        name = f"{heading} {unit.name}" if number == 0 else f"{quantity.name} {unit.name}"
        columns.append((TableColumn(name, right=True), texts))
        if number == 0:
            widths = ["" if each is None else each.width_text() for each in merged]
            columns.append((TableColumn("±"), widths))
    return tuple(columns)


def _over_launches(rows: Sequence[Row], quantity: Quantity) -> Interval | None:
    """The number of a cell; of several launches the median with the widest interval."""
    intervals = [interval for row in rows if (interval := quantity.of(row)) is not None]
    if len(intervals) < 2:
        return next(iter(intervals), None)
    return widest(median(each.value for each in intervals), intervals)


def _sentences(rows: Sequence[Row], headings: Mapping[tuple[Any, ...], str]) -> Iterator[str]:
    """`gloo: 8 B latency 46.1 us, 8 MiB bandwidth 4.94 GB/s, 8 MiB busbw 1.65 GB/s`, each
    heading: only what is one case in all of them."""
    sized = [row for row in rows if row["message_bytes"]]
    kinds = (
        ([row for row in sized if row["pair"] and not has_bandwidth(row)], MEDIAN, min, "latency"),
        ([row for row in sized if row["pair"] and has_bandwidth(row)], ALGBW, max, "bandwidth"),
        ([row for row in sized if is_collective(row)], BUSBW, max, "busbw"),
    )
    parts: dict[str, list[str]] = {}
    for alike, quantity, pick, word in kinds:
        by_heading = grouped(alike, lambda row: headings[_column_of(row)])
        sizes = [{row["message_bytes"] for row in own} for own in by_heading.values()]
        shared = set.intersection(*sizes) if sizes else set()
        if not shared or len(set(map(_line_of, alike))) > 1:
            continue
        size = pick(shared)
        at_size = {
            heading: [row for row in own if row["message_bytes"] == size]
            for heading, own in by_heading.items()
        }
        if len({row.get("window") for own in at_size.values() for row in own}) > 1:
            continue
        for heading, own in at_size.items():
            interval = _over_launches(own, quantity)
            unit = quantity.unit(own)
            number = NO_NUMBER if interval is None else interval.value_text(unit.text)
            text = f"{size_text(size)} {word} {number} {unit.name}"
            parts.setdefault(heading, []).append(text)
    for heading, texts in sorted(parts.items(), key=lambda named: natural_key(named[0])):
        yield f"{heading}: {', '.join(texts)}"


def _line_of(row: Row) -> tuple[Any, ...]:
    """What cases share that differ in the heading, the size and the window at most."""
    return tuple(hashable(row[name]) for name in (*APART, "pair"))


def _flags(rows: Sequence[Row]) -> list[str]:
    """How many cases have each flag: the tables of single runs say which."""
    flags = (name for row in rows for name in warnings_of(row) - {"oversubscribed"})
    counted = sorted(Counter(flags).items(), key=lambda item: (-item[1], item[0]))
    counts = ", ".join(f"{count} {name}" for name, count in counted)
    return [f"numbers with flags: {counts}"] if counts else []


def _place(row: Row) -> tuple[Any, ...]:
    """Latency first, then other messages between pairs, then collectives."""
    name = str(row["benchmark"])
    return name != "p2p_latency", not row["pair"], name, row_order(row)
