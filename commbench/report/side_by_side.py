"""Backends, labels, environments, ... side by side: a table for each benchmark, a sentence for each
column, and what made the numbers uncertain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from commbench.analysis.case_names import (
    FAMILY_VARIABLES,
    SharedItems,
    differing,
    label_notes,
    shown_value,
    telling,
)
from commbench.analysis.effective_settings import settings_texts
from commbench.analysis.families import by_window
from commbench.core.terminal import (
    UNLIMITED_WIDTH,
    TableColumn,
    Terminal,
    paragraphs,
)
from commbench.core.texts import (
    EMPTY,
    meant,
    message_text,
    setting_text,
    size_text,
    span_text,
)
from commbench.core.units import NO_NUMBER, Unit, natural_key, plural
from commbench.core.variables import TABLE, brought_along, is_number
from commbench.results.columns import grouped, operation_order, row_order
from commbench.results.intervals import interval_note, marks_note
from commbench.results.row import Row

from .footnotes import is_unfinished
from .quantities import (
    ALGBW,
    BUSBW,
    MEDIAN,
    Quantity,
    has_bandwidth,
    in_full,
    is_collective,
    line_share_text,
    quoted,
    value_text,
)
from .row_table import RowColumn, fitted, lines_of, number_columns, row_column, value_column
from .showing import apart_texts, disturbances_text, is_apart

# columns of a table
BESIDE = (*(each.name for each in TABLE if each.beside), "label")
# named where one backend has several of them
IMPLIED = ("engine", *brought_along("backend"))
# tables of their own
APART = tuple(name for name in FAMILY_VARIABLES if name not in (*BESIDE, "window", "pair"))

KIB = 1024

Point = Mapping[str, Any]


def belong_together(runs: Sequence[Sequence[Row]]) -> bool:
    """Whether the rows of these runs differ in what stands side by side, or share a table apart."""
    rows = [*chain(*runs)]
    return len(runs) > 1 and (bool(differing(rows, BESIDE)) or all(map(is_apart, rows)))


def side_by_side(
    rows: Sequence[Row],
    terminal: Terminal,
    records: Sequence[Mapping[str, Any]] = (),
    again: str = "",
) -> str:
    """The whole text; launches are merged to their median, but of what is apart. `records` are
    those of the runs, `again` the command that shows each of them."""
    ok = [row for row in rows if row.status == "ok"]
    shared = SharedItems.of(ok)
    measured = list(map(shared.taken_from, ok))
    apart = [row for row in measured if is_apart(row)]
    others = [row for row in measured if not is_apart(row)]
    headings = _headings(others)
    notes = [
        *shared.notes,
        *label_notes(measured),
        *settings_texts(records, measured),
        *_lost_texts(measured, len(rows)),
        *_sentences(others, headings),
        *_flags(measured),
        disturbances_text(records, measured),
    ]
    parts = [
        terminal.styled(terminal.paragraph(_title(measured, others)), "bold"),
        *_tables_text(others, headings, terminal),
        *apart_texts(apart, records, terminal),
        paragraphs(filter(None, notes), terminal),
        f"{again} --intervals" if again and apart else again,
    ]
    return "\n".join(filter(None, parts))


def _lost_texts(measured: Sequence[Row], cases: int) -> Iterator[str]:
    """How many cases have no number, and how many were not finished."""
    lost = cases - len(measured)
    if lost:
        yield f"{plural(lost, 'case has', 'cases have')} no number: commbench report says why"
    unfinished = sum(map(is_unfinished, measured))
    if unfinished:
        yield f"not finished: {plural(unfinished, 'case', 'cases')}: commbench resume RUN"


def _title(rows: Sequence[Row], timed: Sequence[Row]) -> str:
    """The only backend, how many ranks were where, and what ± and the marks mean of `timed`."""
    backends = {row.backend for row in rows}
    sizes = [row.world_size for row in rows if row.world_size]
    ranks = span_text(sizes) if sizes else "no"
    nodes = {row.nodes or 1 for row in rows}
    where = f" on {span_text(nodes)} nodes" if nodes - {1} else ", no network"
    only = f"{backends.pop()}, " if len(backends) == 1 else ""
    medians = [*filter(None, map(MEDIAN.of, timed))]
    level, _, _ = interval_note(medians).partition(" confidence")
    parts = (f"{only}{ranks} ranks{where}", level and f"{level} interval", marks_note(medians))
    return "; ".join(filter(None, parts))


def _tables_text(
    rows: Sequence[Row], headings: Mapping[tuple[Any, ...], str], terminal: Terminal
) -> Iterator[str]:
    """Each table below its title, where it needs one."""
    tables = sorted(_tables(rows).items(), key=lambda table: operation_order(table[1][0]))
    points = [dict(zip((*APART, "window"), key, strict=True)) for key, _ in tables]
    beside_bandwidth = any(map(has_bandwidth, rows))
    for point, (_, listed) in zip(points, tables, strict=True):
        benchmark = point["benchmark"]
        title = _table_title(point, [each for each in points if each["benchmark"] == benchmark])
        yield terminal.styled(terminal.paragraph(title), "bold")
        full = _in_full([row for row in rows if row.benchmark == benchmark], beside_bandwidth)
        yield _table(listed, full, headings, terminal)


def _tables(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the variables of APART and the window that was asked for."""
    series = grouped(sorted(rows, key=row_order), attrgetter(*APART, *BESIDE))
    tables = dict[tuple[Any, ...], list[Row]]()
    for key, sizes in series.items():
        for window, group in by_window(sizes):
            tables.setdefault((*key[: len(APART)], window), []).extend(group)
    return tables


def _table_title(point: Point, others: Sequence[Point]) -> str:
    """The variables in which the tables of a benchmark differ; empty for its only one."""
    names = [name for name in point if any(other[name] != point[name] for other in others)]
    values = [(name, meant(name, point[name])) for name in names]
    texts = [setting_text(name, value) for name, value in values if value not in EMPTY]
    return ", ".join([point["benchmark"], *texts]) if texts else ""


def _headings(rows: Sequence[Row]) -> dict[tuple[Any, ...], str]:
    """Values of BESIDE -> the name of their columns: what differs."""
    names = telling(rows, BESIDE)
    headings = {}
    for own in grouped(rows, lambda row: row.backend).values():
        within = differing(own, names)
        shown = [name for name in names if name not in IMPLIED or name in within]
        for row in own:
            values = {name: shown_value(row, name) for name in shown}
            words = [_heading_word(*each) for each in values.items() if each[1] not in EMPTY]
            usual = "no" if shown[:1] == ["label"] else "default"
            alone = f"{usual} {shown[0]}" if shown else row.backend
            headings[_column_of(row)] = " ".join(words) or alone
    return headings


def _heading_word(name: str, value: Any) -> str:
    """A number with its name, as in `16 streams`; a label alone."""
    if is_number(name):
        return plural(value, name.removesuffix("s"), name)
    return str(value) if name == "label" else setting_text(name, value)


def _column_of(row: Row) -> tuple[Any, ...]:
    return attrgetter(*BESIDE)(row)


def _in_full(rows: Sequence[Row], beside_bandwidth: bool) -> tuple[Quantity, ...]:
    """What all tables of a benchmark show where there is room: of messages from 1 KiB on, one at a
    time, also the bandwidth, unless another benchmark tells it."""
    large = any(row.pair and row.message_bytes > KIB for row in rows if row.message_bytes)
    of_times = large and not beside_bandwidth and quoted(rows) == (MEDIAN,)
    return (MEDIAN, ALGBW) if of_times else in_full(rows)


def _table(
    rows: Sequence[Row],
    full: Sequence[Quantity],
    headings: Mapping[tuple[Any, ...], str],
    terminal: Terminal,
) -> str:
    """Sizes down, backends across; several tables where the terminal is too narrow for one. `full`
    is shown where there is room, and the share of a line between nodes."""
    ordered = sorted(rows, key=lambda row: (natural_key(row.pair), row.message_bytes))
    lines = lines_of(
        ordered, lambda row: (row.pair, row.message_bytes), lambda row: headings[_column_of(row)]
    )
    names = sorted({heading for line in lines for heading in line}, key=natural_key)
    size = TableColumn(rows[0].benchmark, right=True)
    leading = [row_column(size, lambda row: message_text(row.message_bytes))]
    if len({row.pair for row in rows}) > 1:
        leading.append(row_column(TableColumn("pair"), lambda row: row.pair or "-"))
    have_lines = any(line_share_text([row]) != NO_NUMBER for row in rows)
    shapes = [(full, True)] if have_lines else []
    for quantities, with_share in (*shapes, (full, False), (quoted(rows), False)):
        # one unit for all backends, so that numbers in a line can be compared
        shown = [(quantity, quantity.unit(rows)) for quantity in quantities]
        groups = [_columns(name, shown, with_share) for name in names]
        tables = fitted(lines, leading, groups, terminal.width or UNLIMITED_WIDTH)
        if len(tables) == 1:
            break
    return "\n".join(table.drawn.text(terminal) for table in tables)


def _columns(
    heading: str, shown: Sequence[tuple[Quantity, Unit]], with_share: bool
) -> list[RowColumn]:
    """The numbers of one heading: the first quantity with its width, then the others, and the share
    of the line."""
    (first, unit), *others = shown
    share = RowColumn(TableColumn("of limit %", right=True), line_share_text, heading)
    return [
        *number_columns(f"{heading} {unit.name}", first, unit, heading),
        *(
            value_column(f"{quantity.name} {unit.name}", quantity, unit, heading)
            for quantity, unit in others
        ),
        *([share] if with_share else []),
    ]


def _sentences(rows: Sequence[Row], headings: Mapping[tuple[Any, ...], str]) -> Iterator[str]:
    """`gloo: 8 B latency 46.1 us, 8 MiB bandwidth 4.94 GB/s, 8 MiB busbw 1.65 GB/s`, each
    heading: only what is one case in all of them."""
    sized = [row for row in rows if row.message_bytes]
    pairs = [row for row in sized if row.pair]
    line_of = attrgetter(*APART, "pair")  # what is not the heading, the size or the window
    kinds = (
        ([row for row in pairs if not has_bandwidth(row)], MEDIAN, min, "latency"),
        ([row for row in pairs if has_bandwidth(row)], ALGBW, max, "bandwidth"),
        ([row for row in sized if is_collective(row)], BUSBW, max, "busbw"),
    )
    parts = dict[str, list[str]]()
    for alike, quantity, pick, word in kinds:
        by_heading = grouped(alike, lambda row: headings[_column_of(row)])
        sizes = [{row.message_bytes for row in own} for own in by_heading.values()]
        shared = set.intersection(*sizes) if sizes else set()
        if not shared or len(set(map(line_of, alike))) > 1:
            continue
        size = pick(shared)
        at_size = [row for row in alike if row.message_bytes == size]
        if len({row.window for row in at_size}) > 1:
            continue
        for heading, own in grouped(at_size, lambda row: headings[_column_of(row)]).items():
            unit = quantity.unit(own)
            number = value_text(own, quantity, unit)
            parts.setdefault(heading, []).append(f"{size_text(size)} {word} {number} {unit.name}")
    for heading, texts in sorted(parts.items(), key=lambda named: natural_key(named[0])):
        yield f"{heading}: {', '.join(texts)}"


def _flags(rows: Sequence[Row]) -> list[str]:
    """How many cases have each flag: the tables of single runs say which."""
    flags = (name for row in rows for name in set(row.warnings) - {"oversubscribed"})
    counted = sorted(Counter(flags).items(), key=lambda item: (-item[1], item[0]))
    counts = (f"{name} on {plural(count, 'number', 'numbers')}" for name, count in counted)
    return [f"flags: {', '.join(counts)}"] if counted else []
