"""What each row of a case has of the samples of a visit: its times, its stamps, its counters.

A case has a row for each pair of a round, and for each of the nodes that are measured at once. A
round of 512 ranks has 256 rows, and the ranks wait while rank 0 makes them: so rows that are alike
are computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.variables import EVENT_TIMED, Case
from commbench.results.columns import grouped
from commbench.results.writer import Arrays
from commbench.stats.series import Series

from .samples import Block, Counts, Samples, counted_rows, repetition_times


@dataclass(frozen=True)
class CaseRow:
    """A row as a case of its own, and the ranks of the layout that it is of."""

    planned: Planned
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RowSamples:
    """The samples of one row. `times` are seconds per operation of each measured repetition;
    `skew_s` is the median difference between the starts of its ranks, None if not all stamps were
    kept; `table` has the columns of samples.parquet."""

    planned: Planned  # the row as a case of its own
    times: Series
    first_call_s: float | None
    skew_s: float | None
    counts: tuple[Counts, ...]
    table: Arrays

    @property
    def case_id(self) -> str:
        return self.planned.case.case_id


def single_cases(planned: Planned) -> list[Planned]:
    """The rows of a case, each as a case of its own."""
    cases = planned.case.single_cases
    if len(cases) == 1:
        return [planned]
    benchmark = planned.benchmark.of_row()
    if benchmark is None:
        return [replace(planned, case=case) for case in cases]
    return [
        replace(planned, case=case, benchmark=benchmark, members=_members(planned, case))
        for case in cases
    ]


def _members(planned: Planned, case: Case) -> tuple[int, ...]:
    """Of the ranks of one row."""
    ranks = planned.benchmark.active(case, planned.size)
    return tuple(planned.members[rank] for rank in ranks)


def case_rows(planned: Planned) -> list[CaseRow]:
    """The rows of a case that was measured."""
    active = planned.benchmark.active
    return [
        CaseRow(single, tuple(active(single.case, planned.size)))
        for single in single_cases(planned)
    ]


def row_samples(planned: Planned, samples: Samples, run_id: str, visit: int) -> list[RowSamples]:
    """The samples of each row of a case; `visit` is the number of its visit."""
    rows = case_rows(planned)
    counts = _counts_of(rows, samples)
    groups = [rows]
    if len(rows) > 1:  # made from the repetitions with the stamps of all ranks
        blocks = tuple(block for block in samples.blocks if block.decided is None)
        samples = replace(samples, blocks=blocks, series=None, first_call_s=None)
        by_senders = grouped(rows, lambda row: (len(row.ranks), row.planned.senders))
        groups = list(by_senders.values())
    made = list[RowSamples]()
    for alike in groups:
        times, first_calls_s, skews_s = times_of(alike, samples)
        tables = sample_tables(alike, samples, run_id, visit)
        made += [
            RowSamples(
                row.planned,
                times[index],
                first_calls_s[index],
                skews_s[index],
                counts[row.ranks],
                table,
            )
            for index, (row, table) in enumerate(zip(alike, tables, strict=True))
        ]
    return made


def times_of(
    alike: Sequence[CaseRow], samples: Samples
) -> tuple[Series, list[float | None], list[float | None]]:
    """The times [rows, n] of rows that are alike, the time of the first call of each, and the
    difference between the starts of its ranks."""
    planned = alike[0].planned
    operations = planned.shape.operations * samples.block_k
    places = _places_of(alike, samples)
    counted = places[:, counted_rows(planned)]
    measured = samples.stamps("measure")
    times = (
        repetition_times(measured, counted, operations)
        if samples.series is None
        else samples.series[np.newaxis] / operations
    )
    # of its whole sample: what it takes to connect is not divided among its operations
    first_s = repetition_times(samples.stamps("connect"), counted, 1)[:, :1]
    first_calls_s = [samples.first_call_s or next(iter(each), None) for each in first_s.tolist()]
    starts = measured[places, :, 0]
    if not starts.size:
        return times, first_calls_s, [None] * len(alike)
    return times, first_calls_s, (np.median(np.ptp(starts, axis=1), axis=1) * 1e-9).tolist()


def _places_of(alike: Sequence[CaseRow], samples: Samples) -> NDArray[np.intp]:
    """The places in the stamps [rows, ranks of a row]."""
    return np.searchsorted(samples.ranks, [row.ranks for row in alike])


def _counts_of(
    rows: Sequence[CaseRow], samples: Samples
) -> dict[tuple[int, ...], tuple[Counts, ...]]:
    """The counters of the ranks of each row; those of all ranks if there is one row."""
    if len(rows) == 1:
        return {rows[0].ranks: samples.counts}
    ranks_of = {rank: row.ranks for row in rows for rank in row.ranks}
    own: dict[tuple[int, ...], list[Counts]] = {row.ranks: [] for row in rows}
    for counts in samples.counts:
        if counts.rank in ranks_of:
            own[ranks_of[counts.rank]].append(counts)
    return {ranks: tuple(counts) for ranks, counts in own.items()}


# ---------------------------------------------------------------- raw tables


def sample_tables(
    alike: Sequence[CaseRow], samples: Samples, run_id: str, visit: int = 1
) -> list[Arrays]:
    """The columns of samples.parquet of rows that are alike: one line per rank and repetition, in
    the order they ran."""
    if not samples.blocks:
        return [{} for _ in alike]
    places = _places_of(alike, samples)
    ranks = np.array([row.ranks for row in alike])
    lines = [_lines(block, ranks, places) for block in samples.blocks]
    own_ranks = np.concatenate([of_block for of_block, _ in lines], axis=1)
    stamps = np.concatenate([of_block for _, of_block in lines], axis=1)
    elapsed_ns = stamps[..., 1] - stamps[..., 0]
    length = elapsed_ns.shape[1]
    shared = _shared_columns(samples.blocks, [of_block.shape[1] for of_block, _ in lines])
    # events give a difference, not an instant on a host's clock
    is_by_events = alike[0].planned.case.timer in EVENT_TIMED
    no_instants = _constant(None, length)
    return [
        {
            "run_id": _constant(run_id, length),
            "case_id": _constant(row.planned.case.case_id, length),
            **shared,
            "rank": own_ranks[index],
            "start_ns": no_instants if is_by_events else stamps[index, :, 0],
            "end_ns": no_instants if is_by_events else stamps[index, :, 1],
            "elapsed_ns": elapsed_ns[index],
            "visit": np.full(length, visit),
        }
        for index, row in enumerate(alike)
    ]


def _lines(
    block: Block, ranks: NDArray[np.int64], places: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ranks [rows, lines] and the stamps [rows, lines, 2] of a block."""
    if block.decided is not None:  # of a case with one row
        return block.decided[np.newaxis], block.stamps
    n = block.stamps.shape[1]
    return np.repeat(ranks, n, axis=1), block.stamps[places].reshape(len(ranks), -1, 2)


def _shared_columns(blocks: Sequence[Block], lines: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The columns that are the same for all rows, from the number of lines of each block."""
    phases = [block.phase for block in blocks]
    repetitions = [
        np.resize(np.arange(block.first, block.first + block.stamps.shape[1]), count)
        for block, count in zip(blocks, lines, strict=True)
    ]
    return {
        "phase": (
            np.repeat(np.array(phases, dtype=object), lines)
            if len(set(phases)) > 1
            else _constant(phases[0], sum(lines))
        ),
        "block": np.repeat([block.index for block in blocks], lines),
        "repetition": np.concatenate(repetitions),
    }


def count_table(case_id: str, counts: Sequence[Counts], run_id: str) -> Arrays:
    """The columns of counters.parquet."""
    if not counts:
        return {}
    lengths = [len(each.values) for each in counts]
    return {
        "run_id": _constant(run_id, sum(lengths)),
        "case_id": _constant(case_id, sum(lengths)),
        "rank": np.repeat([each.rank for each in counts], lengths),
        "t_ns": np.repeat([each.t_ns for each in counts], lengths),
        "name": np.array([name for each in counts for name in each.values], dtype=object),
        "value": np.array(
            [value for each in counts for value in each.values.values()], dtype=np.float64
        ),
    }


def _constant(value: str | None, length: int) -> NDArray[np.object_]:
    """A column [length] of one value that takes no memory: its stride is 0, which the parquet
    writer recognises."""
    return np.broadcast_to(np.array(value, dtype=object), length)
