"""The columns of the OSU micro-benchmarks on stdout; comments say what stands in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from commbench.core.terminal import TableColumn
from commbench.report.footnotes import OWN_BUFFERS, has_own_buffers
from commbench.report.row_table import RowColumn, RowTable, row_column
from commbench.results.row import Row

from .listing import Listing, comment, flag_lines, number, status_line

MEANS = "Median, low and high: median_s and its interval; the other columns hold means, as OSU's do"
Value = Callable[[Row], "float | None"]
Columns = tuple[tuple[str, Value], ...]


def _microseconds(name: str) -> Value:
    return lambda row: None if getattr(row, name) is None else getattr(row, name) * 1e6


def _per_second(quantity: Callable[[Row], float]) -> Value:
    """The quantity divided by the mean time, as OSU computes rates."""
    return lambda row: quantity(row) / row.mean_s if row.mean_s else None


def _rate(name: str) -> Value:
    return lambda row: row.message_bytes / 1e6 / getattr(row, name) if getattr(row, name) else None


MEDIAN_TIME: Columns = (
    ("Median(us)", _microseconds("median_s")),
    ("low(us)", _microseconds("ci_low_s")),
    ("high(us)", _microseconds("ci_high_s")),
)
MEDIAN_RATE: Columns = (
    ("Median(MB/s)", _rate("median_s")),
    ("low(MB/s)", _rate("ci_high_s")),
    ("high(MB/s)", _rate("ci_low_s")),
)
MB_PER_S = _per_second(lambda row: row.message_bytes / 1e6)


@dataclass(frozen=True)
class OsuProgram:
    """`meaning` says what commbench writes into the columns, and how OSU's numbers differ."""

    name: str
    columns: Columns
    meaning: tuple[str, ...]
    size: Literal["message", "block"] | None = "message"
    median: Columns = MEDIAN_TIME


WINDOW_MEANING = "a sample is a window of messages and its answer; MB is 10^6 B"
OVER_REPETITIONS = (
    (
        "Avg, Min, Max Latency(us): mean_s, min_s, max_s over the repetitions, each the maximum"
        " over ranks"
    ),
    (
        "OSU takes Avg, Min and Max over ranks, of each rank's mean over repetitions: its Avg is"
        " lower, and its Min and Max are not comparable"
    ),
)
COLLECTIVE = tuple(
    (f"{theirs} Latency(us)", _microseconds(ours))
    for theirs, ours in (("Avg", "mean_s"), ("Min", "min_s"), ("Max", "max_s"))
)
IN_BLOCKS = (
    "Size: the block of one rank, as OSU counts it: message_bytes / ranks",
    *OVER_REPETITIONS,
)
OSU_PROGRAMS = {
    "p2p_latency": OsuProgram(
        "osu_latency",
        (("Avg Latency(us)", _microseconds("mean_s")),),
        (
            (
                "Avg Latency(us): mean_s, the mean over repetitions of half a round trip on the"
                " first rank's clock"
            ),
        ),
    ),
    "p2p_bandwidth": OsuProgram(
        "osu_bw",
        (("Bandwidth (MB/s)", MB_PER_S),),
        (f"Bandwidth (MB/s): message_bytes / mean_s on the sender's clock; {WINDOW_MEANING}",),
        median=MEDIAN_RATE,
    ),
    "p2p_bibandwidth": OsuProgram(
        "osu_bibw",
        (("Bandwidth (MB/s)", MB_PER_S),),
        ("Bandwidth (MB/s): message_bytes / mean_s, the sum of both directions; MB is 10^6 B",),
        median=MEDIAN_RATE,
    ),
    "p2p_multi_pair": OsuProgram(
        "osu_mbw_mr",
        (("MB/s", MB_PER_S), ("Messages/s", _per_second(lambda row: 1.0))),
        (
            (
                "MB/s: message_bytes / mean_s, Messages/s: 1 / mean_s, of all pairs together;"
                f" {WINDOW_MEANING}"
            ),
            (
                "mean_s is here the mean over repetitions of the slowest sender's time; OSU's is"
                " the mean over senders"
            ),
        ),
        median=MEDIAN_RATE,
    ),
    "barrier": OsuProgram("osu_barrier", COLLECTIVE, OVER_REPETITIONS, None),
    "all_reduce": OsuProgram("osu_allreduce", COLLECTIVE, OVER_REPETITIONS),
    "broadcast": OsuProgram("osu_bcast", COLLECTIVE, OVER_REPETITIONS),
    "reduce": OsuProgram("osu_reduce", COLLECTIVE, OVER_REPETITIONS),
    "reduce_scatter": OsuProgram("osu_reduce_scatter_block", COLLECTIVE, OVER_REPETITIONS),
    "all_gather": OsuProgram("osu_allgather", COLLECTIVE, IN_BLOCKS, "block"),
    "all_to_all": OsuProgram("osu_alltoall", COLLECTIVE, IN_BLOCKS, "block"),
    "gather": OsuProgram("osu_gather", COLLECTIVE, IN_BLOCKS, "block"),
    "scatter": OsuProgram("osu_scatter", COLLECTIVE, IN_BLOCKS, "block"),
}


@dataclass
class Osu(Listing):
    """With `strict` only the columns that OSU prints."""

    strict: bool = False

    tool = "the OSU micro-benchmarks"
    programs: ClassVar = {benchmark: program.name for benchmark, program in OSU_PROGRAMS.items()}

    def notes(self, rows: Sequence[Row]) -> list[str]:
        return [
            *([] if self.strict else [MEANS]),
            *([OWN_BUFFERS] if has_own_buffers(rows) else []),
        ]

    def table_lines(self, table: Sequence[Row], explained: bool) -> list[str]:
        program = OSU_PROGRAMS[table[0].benchmark]
        columns = [*(() if self.strict else program.median), *program.columns]
        first = f"{'# Size':<14}" if program.size else f"{'#':<2}"
        lines = RowTable(
            [{"": [row]} for row in table],
            [
                row_column(TableColumn("Size"), partial(_size_text, program=program)),
                *(_column(name, value) for name, value in columns),
            ],
        ).drawn.fixed([len(first), *[18] * len(columns)])
        return [
            *(comment(text) for text in program.meaning if not explained),
            first + "".join(f"{name:>18}" for name, _ in columns),
            *(
                line if row.status == "ok" else status_line(row)
                for line, row in zip(lines, table, strict=True)
            ),
            *flag_lines(table),
        ]


def _column(name: str, value: Value) -> RowColumn:
    """Scripts read every cell as a number."""

    def text(row: Row) -> str:
        known = value(row)
        return "nan" if known is None else number(known)

    return row_column(TableColumn(name, right=True), text)


def _size_text(row: Row, program: OsuProgram) -> str:
    shared = row.world_size or 1 if program.size == "block" else 1
    return str(row.message_bytes // shared) if program.size else ""
