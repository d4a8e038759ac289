"""Make a small result set out of result folders, to be kept beside the notebooks.

    python notebooks/keep_results.py results notebooks/data/NAME [--samples] [--counters interval.]

Host names, addresses, identifiers and folders are taken out of run.json; tables are written in one
piece.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from commbench.replay.causes import WORKLOAD_FILE
from commbench.report.compare_text import AB_FILE, AB_SIDES
from commbench.results.columns import arrow_schema
from commbench.results.load import find_runs, load_run, read_rows

MACHINE = "2-core x86-64 cloud VM"
PRIVATE = re.compile(
    r"hostname|boot_id|ipv[46]|\.mac|\.network$|namespace|environment\.|digest|^folder$|config_dir|address|"
    r"provenance\.differences|^config\.output$|load_1min|_jiffies|_available_bytes|_free_bytes"
)


def keep(source: str, target: str, samples: bool, counters: str) -> None:
    """Every run below `source`, as a folder of the same name below `target`; of a folder of
    `commbench ab` its record, and its sides apart; of one of `commbench replay --on` its
    workload."""
    comparison = Path(source) / AB_FILE
    if comparison.is_file():
        for side in AB_SIDES:
            keep(f"{source}/{side}", f"{target}/{side}", samples, counters)
        record = _cleaned(json.loads(comparison.read_text()), "")
        (Path(target) / AB_FILE).write_text(json.dumps(record, indent=1) + "\n")
        return
    workload = Path(source) / WORKLOAD_FILE
    if workload.is_file():
        Path(target).mkdir(parents=True, exist_ok=True)
        (Path(target) / WORKLOAD_FILE).write_text(workload.read_text())
    for run in find_runs(source):
        folder = Path(target) / run.name
        folder.mkdir(parents=True, exist_ok=True)
        record = {
            **_cleaned(load_run(run), ""),
            "folder": run.name,
            "machine": MACHINE,
            "config_dir": None,
        }
        (folder / "run.json").write_text(json.dumps(record, indent=1) + "\n")
        for table in (
            "cases",
            *(["samples"] if samples else []),
            *(["counters"] if counters else []),
        ):
            frame = read_rows([run], table)
            if table == "counters":
                frame = frame[frame["name"].str.startswith(counters)]
            if table == "cases":
                for name in ("env", "backend_options"):
                    frame[name] = [
                        list(one.items()) if isinstance(one, dict) else one for one in frame[name]
                    ]
            schema = arrow_schema(table)
            plain = pa.schema([field.remove_metadata() for field in schema], schema.metadata)
            rows = pa.Table.from_pandas(frame, plain, preserve_index=False)
            rows = rows.replace_schema_metadata(schema.metadata)
            file = folder / f"{table}.parquet"
            pq.write_table(
                rows, file, compression="zstd", write_statistics=False, store_schema=False
            )


def _cleaned(value: Any, name: str) -> Any:
    """Without what tells which machine, and whose, it was."""
    if isinstance(value, dict):
        inside = ((key, f"{name}.{key}" if name else str(key)) for key in value)
        return {key: _cleaned(value[key], path) for key, path in inside if not PRIVATE.search(path)}
    if isinstance(value, list):
        return [_cleaned(one, name) for one in value]
    if isinstance(value, str):
        value = (
            re.sub(r"output='?[^\s']*'?", "output=results", value)
            if value.startswith("output=")
            else value
        )
        if value.startswith("workload="):
            value = re.sub(r"[^\s'=]*/", "", value)
        value = (
            re.sub(r"(\d+\.\d+\.\d+)-[\w.-]+", r"\1", value)
            if "kernel" in f"{name} {value}"
            else value
        )
        return Path(value).name if value.startswith("/") else value
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a folder with runs")
    parser.add_argument("target", help="a folder to write")
    parser.add_argument("--samples", action="store_true", help="keep every repetition too")
    parser.add_argument(
        "--counters", default="", metavar="PREFIX", help="keep counters whose name begins so"
    )
    given = parser.parse_args()
    keep(given.source, given.target, given.samples, given.counters)
