"""The readers of all formats, and the traces in the files that a user names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from commbench.core.errors import Unreadable
from commbench.core.foreign import bounded_reading
from commbench.workloads.operations import RankTrace
from commbench.workloads.trace_files import TraceFile, trace_files
from commbench.workloads.workload import Workload

from .chakra import Chakra
from .commbench_workload import CommbenchWorkload
from .execution_trace import ExecutionTrace
from .flight_recorder import FlightRecorder
from .nccl_calls import NcclCalls
from .nccl_inspector import NcclInspector
from .protocol import TraceReader
from .torch_profiler import TorchProfiler

READERS: tuple[TraceReader, ...] = (
    Chakra(),
    CommbenchWorkload(),
    ExecutionTrace(),
    FlightRecorder(),
    NcclInspector(),
    NcclCalls(),
    TorchProfiler(),
)
CUT = "files that end early; the operations before count"


def read_traces(paths: Sequence[str]) -> tuple[list[RankTrace], list[str]]:
    """What the files say about their ranks, and the names of files in no known format; raises
    Unreadable, also where there is no trace at all."""
    traces: list[RankTrace] = []
    unknown: list[str] = []
    for file in trace_files(paths):
        reader = _reader_of(file)
        if reader is None:
            unknown.append(file.name)
            continue
        with bounded_reading(file.name):
            read = reader.read(file)
        for trace in read:
            cut = {CUT: 1} if file.ended_early else {}
            traces.append(replace(trace, notes={**trace.notes, **cut}))
    if not traces:
        named = ", ".join(unknown[:3])
        raise Unreadable(
            f"{named} is no trace that commbench knows; known are:"
            f" {', '.join(reader.form for reader in READERS)} (docs/workloads.md)"
        )
    return traces, unknown


def stored_workload(path: str) -> Workload | None:
    """The workload of a file that holds one; None for traces. Raises Unreadable."""
    reader = CommbenchWorkload()
    for file in trace_files([path]):
        with bounded_reading(file.name):
            return reader.workload(file) if reader.recognises(file) else None
    return None


def _reader_of(file: TraceFile) -> TraceReader | None:
    return next((reader for reader in READERS if reader.recognises(file)), None)
