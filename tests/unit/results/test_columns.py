"""The columns of the result files, and what pyarrow keeps of their description."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commbench import measure
from commbench.core.errors import CommbenchError
from commbench.core.states import STOP_REASONS, UNFINISHED
from commbench.core.variables import Case
from commbench.features import streams
from commbench.results.columns import (
    CASES,
    COUNTERS,
    SAMPLES,
    SCHEMA_VERSION,
    TABLES,
    VARIABLES,
    arrow_schema,
    check_version,
    grouped,
)
from commbench.results.row import Row
from commbench.stats.series import summarise

UNITS = {"_s": "s", "_ns": "ns", "_gb_per_s": "GB/s", "_bytes": "B", "_per_s": "1/s"}
PUBLIC = {  # version 3; taking one away or renaming one breaks files that people keep
    "variable": (
        "benchmark backend engine timer timing sync device dtype layout pair message_bytes"
        " elements window in_place reduction root schedule streams staging cache cuda_ipc interface"
        " env library bind backend_options buffers"
    ),
    "identity": (
        "run_id case_id sweep_id trial label launch order started_at status reason warnings hosts"
    ),
    "result": (
        "nodes ranks_per_node world_size headline operations_per_sample block_k clock repetitions"
        " effective_repetitions stop_reason lag1 first_call_s min_s median_s ci_low_s ci_high_s"
        " mean_s p90_s p95_s p99_s p999_s max_s algbw_gb_per_s algbw_ci_low_gb_per_s"
        " algbw_ci_high_gb_per_s busbw_gb_per_s wire_gb_per_s message_rate_per_s limit_gb_per_s"
        " limit_name limit_kind efficiency overhead_s wrong_elements cuda_ipc_effective"
        " transport link"
    ),
}
SAMPLE: dict[str, Any] = {
    "text": "ü", "integer": 2**62, "number": 0.1, "flag": True, "texts": ["overhead", "skewed"],
    "numbers": [0.1, 2.0], "integers": [0, 2], "map": [("A", "1")],
    "time": datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone.utc),
}  # fmt: skip
EVERY_TABLE = pytest.mark.parametrize("table", TABLES)


def test_every_reason_to_stop_is_in_the_description_of_its_column() -> None:
    (meaning,) = (column.meaning for column in CASES if column.name == "stop_reason")
    folders = (Path(package.__file__ or "").parent for package in (measure, streams))
    sources = [file.read_text() for folder in folders for file in folder.glob("*.py")]
    assert all(reason in meaning for reason in (*STOP_REASONS, *UNFINISHED))
    assert all(any(f'"{reason}"' in source for source in sources) for reason in STOP_REASONS)


@pytest.mark.parametrize("role", PUBLIC)
def test_no_column_of_version_2_is_lost(role: str) -> None:
    assert set(PUBLIC[role].split()) <= {each.name for each in CASES if each.role == role}


def test_the_raw_tables_have_their_columns() -> None:
    samples, counters = (" ".join(column.name for column in table) for table in (SAMPLES, COUNTERS))
    assert samples == "run_id case_id phase block repetition rank start_ns end_ns elapsed_ns visit"
    assert counters == "run_id case_id rank t_ns name value"


def test_a_case_and_its_columns_are_the_same_variables() -> None:
    assert [field.name for field in fields(Case)] == [column.name for column in VARIABLES]


def test_every_statistic_has_a_column() -> None:
    assert set(summarise(np.ones(3))) <= {column.name for column in CASES}


@EVERY_TABLE
def test_columns_are_complete_and_named_once(table: str) -> None:
    names = [column.name for column in TABLES[table]]
    assert len(set(names)) == len(names)
    for column in TABLES[table]:
        assert column.kind in SAMPLE, column.name
        assert column.meaning, column.name


@EVERY_TABLE
def test_a_name_that_ends_in_a_unit_has_that_unit(table: str) -> None:
    for column in TABLES[table]:
        ending = max((end for end in UNITS if column.name.endswith(end)), key=len, default=None)
        named = "B" if column.name.startswith("bytes_per_") else ""
        assert column.unit == (UNITS[ending] if ending else named), column.name


@EVERY_TABLE
def test_a_row_survives_parquet_with_units_and_meanings(table: str, tmp_path: Path) -> None:
    row = {column.name: SAMPLE[column.kind] for column in TABLES[table]}
    empty = dict.fromkeys(row)
    pq.write_table(
        pa.Table.from_pylist([row, empty], schema=arrow_schema(table)), tmp_path / "file.parquet"
    )
    back = pq.read_table(tmp_path / "file.parquet")
    assert back.to_pylist() == [row, empty]
    assert back.schema.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    for column in TABLES[table]:
        assert back.schema.field(column.name).metadata[b"unit"].decode() == column.unit
        assert back.schema.field(column.name).metadata[b"meaning"].decode() == column.meaning


def test_the_columns_of_cases_are_the_fields_of_a_row() -> None:
    assert [column.name for column in CASES] == [field.name for field in fields(Row)]


@pytest.mark.parametrize("version", [0, 3, 5, None, "4", 99])
def test_results_of_another_version_are_refused(version: object) -> None:
    check_version(SCHEMA_VERSION, "run")
    with pytest.raises(
        CommbenchError, match=rf"results/run has schema version {version}, .* reads 4;"
    ):
        check_version(version, "results/run")


def test_items_are_grouped_in_their_order() -> None:
    assert list(grouped([3, 1, 2, 5], lambda number: number % 2).items()) == [
        (1, [3, 1, 5]),
        (0, [2]),
    ]
