"""run.json, and parquet that grows case by case: a killed run loses at most the case in flight."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import CommbenchError, Unsaved
from commbench.core.states import status_of_run
from commbench.core.terminal import print_error
from commbench.results.columns import SCHEMA_VERSION, TABLES, arrow_schema
from commbench.results.run_folder import PARTS, RECORD, exists, json_text, publish, write_json

from .durable_files import DurableFiles, clear_torn, error_text, opening, retry_s
from .row import Row
from .table_files import Damaged, read_table
from .writer import Entry

GROUP_ROWS = 100_000  # of a merged file
# of an interrupted run, which must not keep its user waiting: the rest stays in parts
MERGE_S = 1.0
MERGED_BYTES = 16 << 20  # of the merged file of an earlier start
FEW_ROWS = 10  # of a part
# of a whole table; zstd makes the many columns of cases 8 % smaller, and takes twice as long
COMPRESSION = {"cases": "snappy", "samples": "zstd", "counters": "zstd"}


@dataclass
class Parquet:
    """A Writer of parquet files: a part per case and table, merged into one file per table at the
    end."""

    def __post_init__(self) -> None:
        # by case: the name of its newest part, its row
        self._rows: dict[str, tuple[str, Row]] = {}
        self._newest = Counter[str]()  # by part: how many cases have their newest row there

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        """Raises WorldBroken where nothing can be written."""
        self._files = DurableFiles(Path(folder))
        parts = self._files.folder / PARTS
        self._metadata = parquet_metadata(run)
        with opening(self._files.folder):
            parts.mkdir(parents=True, exist_ok=True)
            clear_torn(parts)
            clear_torn(self._files.folder)
            # a resumed run: the parts of an earlier start come first
            self._next = 1 + max(
                (int(part.name.split(".")[0]) for part in parts.glob("*.parquet")), default=-1
            )
            write_json(self._files.folder / RECORD, run)
        # loads pyarrow, which takes a second, before measuring
        self._encoded(arrow_schema("samples").empty_table())

    def cases(self, entries: Sequence[Entry]) -> None:
        """Write them into one part."""
        import pyarrow as pa

        stem = f"parts/{self._next:06d}"
        self._next += 1
        by_table = {
            "samples": [entry.samples for entry in entries if entry.samples],
            "counters": [entry.counters for entry in entries if entry.counters],
        }
        for table, columns in by_table.items():
            if columns:
                schema = arrow_schema(table)
                arrays = {
                    name: _arrow([each[name] for each in columns], schema.field(name).type)
                    for name in schema.names
                }
                content = self._encoded(pa.table(arrays, schema=schema))
                self._files.put(f"{stem}.{table}.parquet", content, keep=False)
        # the cases come last: a reader that finds them finds their samples and counters too
        name = f"{stem}.cases.parquet"
        rows = {entry.row.case_id: entry.row for entry in entries}
        earlier = Counter(self._rows[case_id][0] for case_id in rows if case_id in self._rows)
        self._rows |= {case_id: (name, row) for case_id, row in rows.items()}
        self._newest[name] = len(rows)
        self._put_rows(name, rows.values())
        for part, count in earlier.items():  # of earlier visits of these cases
            self._newest[part] -= count
            if not self._newest[part]:
                self._files.replace(part, name)

    def end(self, run: Mapping[str, Any]) -> None:
        """Merge the parts and write run.json. Raises Unsaved where results are missing; the parts
        then stay."""
        files = self._files
        status = status_of_run(run)
        patience = retry_s(status)
        self._metadata = parquet_metadata(run)
        removed = files.gone()
        for part in removed & {name for name, _ in self._rows.values()}:
            self._put_rows(part, [row for name, row in self._rows.values() if name == part])
        lost = [name for name in removed if not name.endswith(".cases.parquet")]
        if files.retry(patience) and not files.dropped and not lost:
            until_s = time.monotonic() + MERGE_S if status == "interrupted" else math.inf
            try:
                for table in TABLES:
                    self._merge(files.folder, table, until_s)
                with suppress(OSError):  # what can't be read stays there
                    (files.folder / "parts").rmdir()
            except OSError as error:
                print_error(
                    f"{files.folder}: results stay in its parts, which are read as well"
                    f" ({error_text(error)})"
                )
        else:
            run = {**run, "exit_status": max(Unsaved.exit_status, run.get("exit_status") or 0)}
        files.put(RECORD, json_text(run).encode())
        if (
            not files.retry(0 if files.waiting.keys() - {RECORD} else patience)
            or files.dropped
            or lost
        ):
            raise Unsaved(self._unsaved_text(run, {_stem(name) for name in lost}))

    def _put_rows(self, name: str, rows: Iterable[Row]) -> None:
        import pyarrow as pa

        table = pa.Table.from_pylist([vars(row) for row in rows], arrow_schema("cases"))
        self._files.put(name, self._encoded(table))

    def _encoded(self, table: Any) -> memoryview:
        """The content of a part. Few rows, which are merged soon, are not compressed: that would
        cost more."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        many = len(table) > FEW_ROWS
        pq.write_table(
            table.replace_schema_metadata(self._metadata),
            sink,
            compression="zstd" if many else "none",
            use_dictionary=many,
            write_statistics=many,
            write_page_checksum=True,
        )
        return memoryview(sink.getvalue())

    def _unsaved_text(self, run: Mapping[str, Any], lost: set[str]) -> str:
        """How many cases are saved and how many are not, why, and where the rest is."""
        files = self._files
        missing = {*files.waiting, *files.dropped}
        without = sum(name in missing for name, _ in self._rows.values())
        others = {_stem(name) for name in missing if name.startswith("parts/")}
        others -= {_stem(name) for name, _ in self._rows.values() if name in missing}
        parts = [
            f"{len(self._rows) - without} of {len(self._rows)} cases are saved in {files.folder}",
            *([f"{without} are not"] if without else []),
            *([f"samples or counters of {len(others)} more are not"] if others else []),
            *([f"samples or counters of {len(lost)} are gone for good"] if lost else []),
            *(["the end of the run is not in its run.json"] if RECORD in missing else []),
        ]
        why = f" ({files.error})" if files.error else ""
        refuge = files.rescue({RECORD: json_text(run).encode()}) if files.waiting else None
        where = (
            "no folder for temporary files takes them either"
            if files.waiting
            else "what is missing is lost"
        )
        if refuge is not None:
            rest = f", but for {len(files.waiting)} files that did not fit" if files.waiting else ""
            folders = [str(folder) for folder in (files.folder, refuge) if exists(folder)]
            call = f"commbench.load({', '.join(map(repr, folders))})"
            reads = "reads both" if len(folders) > 1 else "reads them"
            where = f"they are in {refuge}{rest}: {call} {reads}"
        return f"{', '.join(parts)}{why}; {where}"

    def _merge(self, folder: Path, table: str, until_s: float) -> None:
        """Merge the parts of a table and remove them, with one row group or one part in memory at a
        time. Parts for which there is no time by time.monotonic() stay: they are read as well."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = sorted((folder / "parts").glob(f"*.{table}.parquet"))
        target = folder / f"{table}.parquet"
        aside = folder / f"{table}.tmp"
        if not parts and (table != "cases" or target.exists()):
            return
        is_large = target.exists() and target.stat().st_size > MERGED_BYTES
        if time.monotonic() > until_s or (is_large and until_s < math.inf):
            return
        schema = arrow_schema(table).with_metadata(self._metadata)
        done = list[Path]()
        try:
            with pq.ParquetWriter(
                aside,
                schema,
                compression=COMPRESSION[table],
                write_page_checksum=True,
            ) as writer:
                group = list[Any]()
                for part in ([target] if target.exists() else []) + parts:
                    if done and time.monotonic() > until_s:
                        break
                    rows = _read_part(part, table)
                    if rows is not None:
                        group.append(rows)
                        done.append(part)
                    elif part == target:
                        return
                    # reading costs per group, not per row
                    if sum(map(len, group)) >= GROUP_ROWS and table != "cases":
                        writer.write_table(pa.concat_tables(group))
                        group = []
                if group:
                    rows = pa.concat_tables(group)
                    writer.write_table(_newest_rows(rows, self._rows) if table == "cases" else rows)
            publish(aside, target)
        finally:
            with suppress(OSError):
                aside.unlink()
        for part in set(done) - {target}:
            self._files.forget(f"parts/{part.name}")
            part.unlink()


def parquet_metadata(run: Mapping[str, Any]) -> dict[str, str]:
    """What each parquet file of a run says about it."""
    return {"schema_version": str(SCHEMA_VERSION), "commbench_run": json.dumps(run)}


def _arrow(columns: Sequence[NDArray[Any]], kind: Any) -> Any:
    """The columns one after another, as a pyarrow array. One repeated object (stride 0) is not
    converted: that would hold the GIL."""
    import pyarrow as pa

    repeated = [
        column.dtype == object and len(column) > 0 and column.strides == (0,) for column in columns
    ]
    if all(repeated):
        firsts = [column[0] for column in columns]
        lengths = [len(column) for column in columns]
        if len(set(firsts)) == 1:
            return pa.repeat(pa.scalar(firsts[0], kind), sum(lengths))
        return pa.array(firsts, kind).take(pa.array(np.repeat(np.arange(len(firsts)), lengths)))
    return pa.array(columns[0] if len(columns) == 1 else np.concatenate(columns), kind)


def _newest_rows(rows: Any, case_ids: Iterable[str]) -> Any:
    """The last row of each case, in the order of the case ids; cases of earlier starts of the run
    come first."""
    place = {case_id: index for index, case_id in enumerate(case_ids)}
    newest = {case_id: index for index, case_id in enumerate(rows["case_id"].to_pylist())}
    return rows.take(
        [newest[case_id] for case_id in sorted(newest, key=lambda case_id: place.get(case_id, -1))]
    )


def _read_part(file: Path, table: str) -> Any:
    """The rows of a file; None, with a warning, if it can't be merged: then it stays where it
    is."""
    import pyarrow.parquet as pq

    try:
        rows = read_table(file, table)
        unknown = {*pq.read_schema(file).names} - {*rows.column_names}
        if unknown:  # of a later commbench: they would be lost
            raise Damaged(f"{file} has columns of a later commbench: {', '.join(sorted(unknown))}")
        return rows
    except CommbenchError as error:
        print_error(f"{error}; it stays where it is")
        return None


def _stem(name: str) -> str:
    return name.split(".")[0]
