"""run.json, and parquet that grows case by case: a killed run loses at most the case in flight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from commbench.folder import publish, write_json
from commbench.schema import SCHEMA_VERSION, TABLES, arrow_schema


@dataclass
class Parquet:
    """See contracts.Writer. Parts are written aside, synced and renamed; the end merges them into one file a table."""

    def __post_init__(self) -> None:
        self._folder = Path()
        self._metadata: dict[str, str] = {}
        self._next = 0

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        self._folder = Path(folder)
        parts = self._folder / "parts"
        parts.mkdir(parents=True, exist_ok=True)
        # a run that goes on: what an earlier start has left comes first
        self._next = 1 + max((int(part.name.split(".")[0]) for part in parts.glob("*.parquet")), default=-1)
        self._metadata = {"schema_version": str(SCHEMA_VERSION), "commbench_run": json.dumps(run)}
        write_json(self._folder / "run.json", run)

    def case(
        self, row: Mapping[str, Any], samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        import pyarrow as pa

        stem = self._folder / "parts" / f"{self._next:06d}"
        self._next += 1
        for name, columns in (("samples", samples), ("counters", counters)):
            if columns:
                self._write(pa.table(dict(columns), schema=arrow_schema(name)), stem.with_suffix(f".{name}.parquet"))
        # the case comes last: a reader that finds it finds its samples and counters too
        self._write(pa.Table.from_pylist([dict(row)], arrow_schema("cases")), stem.with_suffix(".cases.parquet"))

    def end(self, run: Mapping[str, Any]) -> None:
        self._metadata["commbench_run"] = json.dumps(run)
        for table in TABLES:
            self._merge(table)
        parts = self._folder / "parts"
        if parts.exists() and not any(parts.iterdir()):
            parts.rmdir()
        write_json(self._folder / "run.json", run)

    def _merge(self, table: str) -> None:
        """Row group by row group, so that memory holds one part at a time."""
        import pyarrow.parquet as pq

        parts = sorted((self._folder / "parts").glob(f"*.{table}.parquet"))
        target = self._folder / f"{table}.parquet"
        if not parts and (table != "cases" or target.exists()):
            return
        aside = target.with_suffix(".tmp")
        schema = arrow_schema(table).with_metadata(self._metadata)
        earlier = [target] if target.exists() else []
        with pq.ParquetWriter(aside, schema, compression="zstd") as writer:
            for part in (*earlier, *parts):
                writer.write_table(pq.read_table(part).replace_schema_metadata(self._metadata))
        publish(aside, target)
        for part in parts:
            part.unlink()

    def _write(self, table: Any, target: Path) -> None:
        import pyarrow.parquet as pq

        aside = target.with_suffix(".tmp")
        pq.write_table(table.replace_schema_metadata(self._metadata), aside, compression="zstd")
        publish(aside, target)
