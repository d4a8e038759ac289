"""Below a table: what its numbers are, why cases have none, and what each flag means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commbench.core.layout import Layout
from commbench.core.states import UNFINISHED, status_of_run
from commbench.core.terminal import Terminal, paragraphs
from commbench.core.texts import some_of
from commbench.core.units import format_bytes, plural
from commbench.results.flags import flag_named
from commbench.results.row import Row
from commbench.results.run_folder import resume_command

from .quantities import is_stream_soak, limit_text
from .run_heading import CONSTANT, variable_text
from .showing import missing_texts

NOT_FINISHED = "not finished"  # cases of an interrupted run
MOST_OPERATIONS = 3  # named per meaning of the median
MOST_SERIES = 6  # that a line names
LONGEST_REASON = 400  # characters on a terminal: a reason can be a stack of 50 lines
DIVIDED = (
    "message: in total; gather, scatter, all_gather, all_to_all and reduce_scatter divide it among"
    " the ranks"
)

OWN_BUFFERS = (
    "buffers own: each message of a window has memory of its own (osu_bw has one buffer:"
    " buffers=shared)"
)

RowsBySeries = Mapping[str, Sequence[Row]]  # rows by the text of the variables in which they differ


def footnotes(
    run: Mapping[str, Any],
    rows: Sequence[Row],
    listed: Sequence[Row],
    varying: Sequence[str],
    terminal: Terminal,
    *,
    numbers: bool,
    flags: bool,
) -> list[str]:
    """`listed`: those of the rows that are in no matrix. With `numbers` what the numbers are, with
    `flags` what each flag means."""
    series = _rows_by_series(rows, listed, varying)
    texts = [
        *_reason_texts(series, terminal),
        *_unfinished_texts(run, series, len(rows)),
        *_numberings(run, rows),
        *(_number_texts(rows) if numbers else []),
        *missing_texts(rows),
        *(_legend(rows, series) if flags else []),
    ]
    return [paragraphs(texts, terminal)] if texts else []


def _number_texts(rows: Sequence[Row]) -> list[str]:
    """What the times are, and what the limits. Where time has several meanings, the operations of
    each: `collective (all_reduce)`."""
    operations = dict[str, set[str]]()
    for row in rows:
        if row.median_of is not None and not is_stream_soak(row):
            operations.setdefault(row.median_of, set()).add(row.benchmark)
    kinds = list(operations)
    if len(kinds) > 1:
        kinds = [
            f"{kind} ({', '.join(some_of(sorted(names), MOST_OPERATIONS))})"
            for kind, names in sorted(operations.items())
        ]
    texts = [f"time: median of {', '.join(kinds)}"] if kinds else []
    texts += ["time of a stream: mean of its writes"] if any(map(is_stream_soak, rows)) else []
    limits = limit_text(rows)
    return [*texts, limits] if limits else texts


def _legend(rows: Sequence[Row], series: RowsBySeries) -> list[str]:
    """Each flag with its sizes, meaning and advice; then what sizes and buffers are."""
    names = {flag for row in rows if row.status == "ok" for flag in row.warnings}
    texts = [_flag_text(name, series) for name in sorted(names)]
    texts = texts or ["no case has a flag"]
    divided = any(row.bytes_per_rank not in (None, row.message_bytes) for row in rows)
    texts += [DIVIDED] if divided else []
    texts += [OWN_BUFFERS] if has_own_buffers(rows) else []
    return texts


def _flag_text(name: str, series: RowsBySeries) -> str:
    """`in_cache (4 MiB, 8 MiB): meaning; advice`."""
    flag = flag_named(name)
    return f"{name} ({_flag_sizes(name, series)}): {flag.meaning}; {flag.advice}"


def _flag_sizes(flag: str, series: RowsBySeries) -> str:
    """The sizes with this flag: `4 MiB, 8 MiB`, `all but 8 B`."""
    texts = dict[str, str]()
    for name, rows in series.items():
        measured = [row for row in rows if row.status == "ok"]
        having = [row for row in measured if flag in row.warnings]
        without = [row for row in measured if flag not in row.warnings]
        if having and not without and len(having) > 1:
            texts[name] = "all sizes"
        elif having:
            most = len(having) > max(len(without), 2) and without
            texts[name] = f"all but {sizes_text(without)}" if most else sizes_text(having)
    return by_series(texts)


def _reason_texts(series: RowsBySeries, terminal: Terminal) -> list[str]:
    """`failed: all_reduce 1 MiB: reason`, a line for each status and reason."""
    rows_by_reason = dict[tuple[str, str], dict[str, list[Row]]]()
    for name, rows in series.items():
        for row in rows:
            if row.status != "ok":
                key = row.status, row.reason or "no reason given"
                rows_by_reason.setdefault(key, {}).setdefault(name, []).append(row)
    texts = []
    for (status, reason), groups in sorted(rows_by_reason.items()):
        line = " ".join(reason.split())
        if terminal.width is not None and len(line) > LONGEST_REASON:
            line = f"{line[: LONGEST_REASON // 2]} ... {line[-LONGEST_REASON // 2 :]}"
        sizes = {name: sizes_text(rows) for name, rows in groups.items()}
        texts.append(f"{status}: {by_series(sizes)}: {line}")
    return texts


def is_unfinished(row: Row) -> bool:
    """Whether the row has numbers, but from fewer visits than planned."""
    return row.status == "ok" and row.stop_reason in UNFINISHED


def _unfinished_texts(run: Mapping[str, Any], series: RowsBySeries, rows: int) -> list[str]:
    """`not finished: 8 B, 1 KiB; 40 of 42 cases not begun: ...` of a run that was interrupted.
    `rows` are those of the series, which are listed, and those of matrices."""
    unfinished = {name: list(filter(is_unfinished, each)) for name, each in series.items()}
    begun = by_series({name: sizes_text(each) for name, each in unfinished.items() if each})
    ended_early = status_of_run(run) in ("interrupted", "broken")
    planned = run.get("cases", 0) if ended_early else 0
    rest = (
        f"{planned - rows} of {plural(planned, 'case', 'cases')} not begun"
        if planned > rows
        else ""
    )
    text = "; ".join(filter(None, [begun if any(unfinished.values()) else "", rest]))
    return (
        [f"{NOT_FINISHED}: {text}: {resume_command(run['folder'])} measures what is missing"]
        if text
        else []
    )


def by_series(texts: Mapping[str, str]) -> str:
    """`p2p_latency 8 B, 1 KiB; all_reduce all sizes`."""
    parts = [f"{name} {text}".strip() for name, text in texts.items()]
    return "; ".join(filter(None, some_of(parts, MOST_SERIES))) or "all"


def sizes_text(rows: Iterable[Row]) -> str:
    return ", ".join(
        format_bytes(size) for size in sorted({row.message_bytes for row in rows}) if size
    )


def _numberings(run: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """A line for each layout whose pairs are not numbered as the ranks of the world."""
    nodes = run["world"].get("ranks")
    paired = dict.fromkeys(row.layout for row in rows if row.pair)
    texts = (Layout.parse(name).numbering_text(nodes) for name in paired if nodes)
    return [text for text in texts if text is not None]


def _rows_by_series(
    rows: Sequence[Row], listed: Sequence[Row], varying: Sequence[str]
) -> RowsBySeries:
    """The listed rows by the text of the variables in which they differ, "" where all are one
    series.

    A window is no such variable: it shrinks with the message.
    """
    names = [name for name in CONSTANT if name != "window" and name in varying]
    several = len({row.benchmark for row in rows}) > 1
    series = dict[str, list[Row]]()
    for row in listed:
        parts = [variable_text(row, name) for name in names]
        words = [row.benchmark if several or not any(parts) else "", *parts]
        series.setdefault(" ".join(filter(None, words)), []).append(row)
    return series if len(series) > 1 else {"": listed}


def has_own_buffers(rows: Iterable[Row]) -> bool:
    """Whether each message of a window had memory of its own, which no other tool does."""
    return any(row.buffers == "own" and (row.window or 1) > 1 for row in rows)
