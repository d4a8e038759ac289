"""Keep the results that a notebook needs in one parquet file, data/NAME.parquet.

    python notebooks/keep_results.py NAME RESULTS... [--counters interval.]

The file has the cases of all runs and the facts that reports show of their machines. Host names,
addresses and folders are not written. Counters get a file of their own, and so does the workload
of a folder of `commbench replay`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from commbench.analysis.machines import SHOWN_FACTS
from commbench.features.documents.values import EXPERIMENT, experiment_of
from commbench.results.columns import SCHEMA_VERSION
from commbench.results.load import RUNS, find_runs, read_cases, run_tables
from commbench.results.run_folder import mapping_or_empty
from commbench_replay.named_workload import WORKLOAD_FILE

DATA = Path(__file__).parent / "data"
FACTS = {fact for _, fact in SHOWN_FACTS} | {"host.cpu_logical_cores", "run.bind"}


def keep(name: str, sources: Sequence[str], counters: str = "", folder: Path = DATA) -> None:
    """Write the files of one notebook. `counters`: how the names of the kept counters begin."""
    import pyarrow.compute as pc

    read, problems = read_cases(sources)
    if problems:
        raise SystemExit("\n".join(problems))
    workloads = [file for source in sources for file in Path(source).glob(WORKLOAD_FILE)]
    for file in workloads:
        shutil.copy(file, folder)
    records = [_record(record, bool(workloads)) for source in read for record in source.records]
    _write(folder / f"{name}.parquet", [source.cases for source in read], records)
    if counters:
        runs = [run for source in sources for run in find_runs(source)]
        rows = pa.concat_tables(part for run in runs for part in run_tables(run, "counters"))
        kept = rows.filter(pc.starts_with(rows["name"], counters))
        _write(folder / f"{name}.counters.parquet", [kept], [])


def _record(run: Mapping[str, Any], has_workload: bool) -> dict[str, Any]:
    """What the notebooks show of a run, and nothing that tells whose machine it was."""
    nodes = run["provenance"]["nodes"]
    config = {"workload": f"{DATA.name}/{WORKLOAD_FILE}"} if has_workload else {}
    timing = mapping_or_empty(mapping_or_empty(run.get("config")).get("timing"))
    experiment = experiment_of(run)
    return {
        "run_id": run["run_id"],
        "overrides": [f"{EXPERIMENT}{experiment}"] if experiment else [],
        "backend": {key: run["backend"][key] for key in run["backend"] if key != "address"},
        "config": {**config, "timing": {"interval_s": timing.get("interval_s")}},
        "provenance": {
            "nodes": [{fact: node[fact] for fact in node if fact in FACTS} for node in nodes]
        },
    }


def _write(file: Path, tables: Sequence[Any], records: Sequence[Mapping[str, Any]]) -> None:
    """Columns without a value are left out: they are read as null."""
    rows = pa.concat_tables(tables)
    known = [name for name in rows.column_names if rows[name].null_count < len(rows)]
    rows = rows.select([name for name in known if name != "hosts"])
    metadata = {b"schema_version": str(SCHEMA_VERSION), RUNS: json.dumps(records)}
    pq.write_table(
        rows.replace_schema_metadata(metadata), file, compression="zstd", write_statistics=False
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the notebook")
    parser.add_argument("results", nargs="+", help="folders with runs")
    parser.add_argument("--counters", default="", metavar="PREFIX", help="keep these counters too")
    given = parser.parse_args()
    keep(given.name, given.results, given.counters)
