"""The parquet files of ai-dynamo/aiconfigurator: times of collectives on one node, measured with
nccl-tests (out of place, a thread for each GPU) or by vLLM.

`message_size` counts elements, of all_gather and reduce_scatter those of all ranks together;
`latency` is in ms; `version` in the rows counts, not that in the name of the folder.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from commbench.core.layout import MAX_RANKS, Layout
from commbench.core.variables import TimerName
from commbench.features.other_tools.experiment import (
    DIVIDED,
    Experiment,
    FileContent,
    Problems,
    RankPlace,
    measured,
)
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import NotRecognised
from commbench.features.other_tools.json_documents import text_of, whole
from commbench.features.other_tools.printed import plain_number
from commbench.results.columns import grouped
from commbench.results.row import Row

from .protocol import ITEM_BYTES, dtype_of

MAGIC = b"PAR1"
NEEDED = ("op_name", "num_gpus", "message_size", "latency")
TYPES = ("nccl_dtype", "allreduce_dtype")
SHARED = ("kernel_source", "version", "device", "framework")
OPERATIONS = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "reduce_scatter": "reduce_scatter",
}
MOST_ROWS = 2**20
NCCL = "NCCL"
TIMERS: Mapping[str, TimerName] = {"vLLM_custom_graph": "graph"}


class Aiconfigurator:
    form = "the parquet files of aiconfigurator"

    def recognises(self, file: ForeignFile) -> bool:
        return file.head.startswith(MAGIC)

    def read(self, file: ForeignFile) -> FileContent:
        problems = Problems()
        numbered = enumerate(_rows(file), 1)
        by_setting = grouped(numbered, lambda each: tuple(each[1].get(name) for name in SHARED))
        experiments = []
        for rows in by_setting.values():
            read = [row for number, values in rows if (row := _row(number, values, problems))]
            if read:
                experiments.append(_experiment(rows[0][1], read))
        return FileContent(experiments, problems)


def _rows(file: ForeignFile) -> Iterator[dict[str, Any]]:
    """Raises NotRecognised."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(io.BytesIO(file.content()))
        names = set(parquet.schema_arrow.names)
        if "run_id" in names:
            raise NotRecognised("results of commbench, which every command reads as they are")
        if not names.issuperset(NEEDED) or not names & {*TYPES}:
            raise NotRecognised(f"a parquet file without {', '.join(NEEDED)} and a type")
        if parquet.metadata.num_rows > MOST_ROWS:
            raise NotRecognised(f"a parquet file of more than {MOST_ROWS} rows")
        columns = [name for name in (*NEEDED, *TYPES, *SHARED) if name in names]
        yield from parquet.read(columns).to_pylist()
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise NotRecognised(f"a damaged parquet file: {error!s:.80}") from error


def _row(number: int, values: dict[str, Any], problems: Problems) -> Row | None:
    try:
        benchmark = OPERATIONS.get(str(values["op_name"]))
        if benchmark is None:
            raise ValueError(f"{values['op_name']!r:.40} is no operation of commbench")
        ranks = whole(values["num_gpus"], 1)
        if ranks > MAX_RANKS:
            raise ValueError(f"{ranks} GPUs are more than {MAX_RANKS}")
        elements = whole(values["message_size"], 1)
        dtype = dtype_of(next(filter(None, (text_of(values.get(name)) for name in TYPES)), None))
        if dtype not in ITEM_BYTES:
            raise ValueError(f"{dtype!r:.40} is a type of unknown size")
        time_s = plain_number(values["latency"]).times(1e-3)
    except (ValueError, OverflowError) as error:
        problems.add(f"row {number}: {error}")
        return None
    source = text_of(values.get("kernel_source"))
    is_nccl = source == NCCL
    timer: TimerName | None = "throughput" if is_nccl else TIMERS.get(source or "")
    row = measured(
        benchmark,
        elements * ITEM_BYTES[dtype],
        time_s,
        ranks=ranks,
        device="cuda",
        timer=timer,
        layout=str(Layout(1, ranks)),
        engine="native" if is_nccl else None,
        dtype=dtype,
        elements=elements // ranks if benchmark in DIVIDED else elements,
        in_place=False if is_nccl else None,
        reduction="sum" if benchmark in ("all_reduce", "reduce_scatter") else None,
        median_of="mean of calls without a wait" if is_nccl else "call",
    )
    return row


def _experiment(first: dict[str, Any], rows: list[Row]) -> Experiment:
    source = text_of(first.get("kernel_source"))
    version = text_of(first.get("version"))
    device = text_of(first.get("device"))
    framework = text_of(first.get("framework"))
    is_nccl = source == NCCL
    most = max(Layout.parse(row.layout).size for row in rows)
    name = NCCL if is_nccl else framework or source
    return Experiment(
        tool="aiconfigurator",
        backend="nccl" if is_nccl else (source or "unknown").lower(),
        library=" ".join(filter(None, (name, version))) if version else name,
        rows=rows,
        repeats="launches",
        layout=Layout(1, most),
        places=[RankPlace(rank, None, device) for rank in range(most)],
        settings={key: text for key in SHARED if (text := text_of(first.get(key)))},
    )
