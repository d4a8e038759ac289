"""What earlier starts of a run have left in its folder, read back by rank 0: parquet, or JSON lines
where pyarrow is not installed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.states import Phase
from commbench.stats.series import Series

from .jsonl import is_json, json_columns, json_rows
from .load import counting_mask, rows_of_table, run_tables
from .row import Row, row_of
from .writer import Arrays

MEASURE: Phase = "measure"
REPETITION = ("block", "repetition", "rank")  # with the phase, what identifies a sample of a case
SAMPLE_COLUMNS = ("phase", *REPETITION, "elapsed_ns", "visit")


def recorded_rows(folder: Path) -> dict[str, Row]:
    """The newest row of each case as its writers got it, by case_id."""
    if is_json(folder):
        rows = list(map(row_of, json_rows(folder)))
    else:
        rows = [row for table in run_tables(folder, "cases") for row in rows_of_table(table)]
    return {row.case_id: row for row in rows}


def recorded_counters(folder: Path, case_id: str) -> Iterator[Mapping[str, Sequence[Any]]]:
    """The counters of a case, one part after another."""
    if is_json(folder):
        yield from (part for part in json_columns(folder, "counters") if case_id in part["case_id"])
        return
    for table in run_tables(folder, "counters", where=[("case_id", "=", case_id)]):
        yield table.to_pydict()


def recorded_samples(folder: Path, case_ids: Collection[str]) -> dict[str, Arrays]:
    """The samples of these cases: texts, and floats with NaN for null. Of two attempts at a
    repetition the newer one counts."""
    parts = dict[str, list[Arrays]]()
    for columns in _json_samples(folder) if is_json(folder) else _parquet_samples(folder, case_ids):
        ids = columns["case_id"].tolist()
        numbers = {case_id: number for number, case_id in enumerate(dict.fromkeys(ids))}
        number_of = np.array([numbers[case_id] for case_id in ids])  # compared faster than texts
        for case_id in numbers.keys() & case_ids:
            is_own = number_of == numbers[case_id]
            own = {name: columns[name][is_own] for name in SAMPLE_COLUMNS}
            parts.setdefault(case_id, []).append(own)
    return {case_id: _newest(own) for case_id, own in parts.items()}


def repetition_seconds(row: Row, samples: Arrays) -> Series:
    """Seconds per operation of each measured repetition of these samples of a case: of the slowest
    rank whose clock counts."""
    counts = (samples["phase"] == MEASURE) & counting_mask(row, samples["rank"])
    repetition, elapsed_ns = (samples[name][counts] for name in ("repetition", "elapsed_ns"))
    order = np.argsort(repetition, kind="stable")
    _, begins = np.unique(repetition[order], return_index=True)
    slowest_ns: Series = np.fmax.reduceat(elapsed_ns[order], begins)
    return slowest_ns * (1e-9 / (row.operations_per_sample or 1))


def _json_samples(folder: Path) -> Iterator[Arrays]:
    for columns in json_columns(folder, "samples"):
        yield {name: _plain_array(columns[name]) for name in ("case_id", *SAMPLE_COLUMNS)}


def _parquet_samples(folder: Path, case_ids: Collection[str]) -> Iterator[Arrays]:
    names = ("run_id", "case_id", *SAMPLE_COLUMNS)
    where = [("case_id", "in", list(case_ids))]
    for table in run_tables(folder, "samples", names, where):
        yield {name: _plain_array(table[name].to_numpy()) for name in names}


def _plain_array(values: Any) -> NDArray[Any]:
    array = np.asarray(values, dtype=object if isinstance(values, list) else None)
    is_text = bool(array.size) and isinstance(array[0], str)
    return array if is_text else array.astype(np.float64)


def _newest(parts: Sequence[Arrays]) -> Arrays:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in SAMPLE_COLUMNS}
    phases = np.unique(columns["phase"], return_inverse=True)[1]
    keys = np.stack([phases, *(columns[name] for name in REPETITION)], axis=1)
    last_first = np.unique(keys[::-1], axis=0, return_index=True)[1]
    newest = np.sort(len(keys) - 1 - last_first)
    return {name: column[newest] for name, column in columns.items()}
