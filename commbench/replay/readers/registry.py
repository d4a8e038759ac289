"""The readers of all formats, and the traces in the files that a user names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from commbench.core.errors import Unreadable
from commbench.core.foreign import bounded_reading
from commbench.replay.operations import NO_RANK, RankTrace
from commbench.replay.trace_files import TraceFile, trace_files
from commbench.replay.workload import Workload

from .commbench_workload import CommbenchWorkload
from .execution_trace import ExecutionTrace
from .flight_recorder import FlightRecorder
from .nccl_calls import NcclCalls
from .protocol import TraceReader
from .torch_profiler import TorchProfiler

READERS: tuple[TraceReader, ...] = (
    CommbenchWorkload(),
    ExecutionTrace(),
    FlightRecorder(),
    NcclCalls(),
    TorchProfiler(),
)
NO_FORMAT = "no trace that commbench knows"
STRAY = "without communication, and of no rank of its own"
ASSUMED_RANK = "the rank, which the trace does not say; any of its groups is assumed"
CUT = "files that end early; the operations before count"


def read_traces(paths: Sequence[str]) -> tuple[list[RankTrace], dict[str, str]]:
    """What the files say about their ranks, and why files were left out, by name; raises
    Unreadable, also where there is no trace at all."""
    traces: list[RankTrace] = []
    left_out: dict[str, str] = {}
    for file in trace_files(paths):
        reader = _reader_of(file)
        if reader is None:
            left_out[file.name] = NO_FORMAT
            continue
        with bounded_reading(file.name):
            read = reader.read(file)
        if read:
            read[0] = replace(read[0], notes={**read[0].notes, **_notes_of(file)})
        traces += read
    if not traces:
        named = ", ".join([*left_out, *paths][:3])
        raise Unreadable(
            f"{named} is no trace that commbench knows; known are:"
            f" {', '.join(reader.form for reader in READERS)} (docs/workloads.md)"
        )
    stray = [trace for trace in traces if _is_stray(trace, traces)]
    if len(stray) == len(traces):
        named = ", ".join(trace.source for trace in stray[:3])
        raise Unreadable(
            f"{named}: no communication, and no rank; name the traces of a job's ranks"
        )
    left_out |= {trace.source: STRAY for trace in stray}
    return _with_ranks([trace for trace in traces if trace not in stray]), left_out


def _is_stray(trace: RankTrace, traces: Sequence[RankTrace]) -> bool:
    """Whether a trace is of a process beside the ranks, as a scheduler or a data loader."""
    if _communicates(trace) or len(traces) == 1:
        return False
    return trace.rank == NO_RANK or trace.rank in [
        other.rank for other in traces if _communicates(other)
    ]


def _communicates(trace: RankTrace) -> bool:
    return bool(trace.operations or trace.others or trace.foreign) or trace.world_size is not None


def _with_ranks(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The traces, one that is alone with a rank of its groups where it does not say its own."""
    unknown = [trace for trace in traces if trace.rank == NO_RANK]
    if not unknown:
        return list(traces)
    if len(traces) > 1:
        raise _no_rank(unknown[0], traces)
    (alone,) = traces
    groups = [set(call.group.ranks) for call in alone.operations if call.group.ranks]
    rank = min(set.intersection(*groups), default=0) if groups else 0
    calls, others = (
        tuple(replace(call, rank=rank) for call in recorded)
        for recorded in (alone.operations, alone.others)
    )
    notes = {**alone.notes, ASSUMED_RANK: 1}
    return [replace(alone, rank=rank, operations=calls, others=others, notes=notes)]


def _no_rank(trace: RankTrace, traces: Sequence[RankTrace]) -> Unreadable:
    """Advises only what the other traces allow."""
    size = max((other.world_size or 0 for other in traces), default=0) or len(traces)
    free = sorted(set(range(size)) - {other.rank for other in traces})
    folder, slash, name = trace.source.rpartition("/")
    advice = f"if it is of rank {free[0]}, call it rank{free[0]}_{name}; else " if free else ""
    return Unreadable(
        f"{folder}{slash}{name} does not say its rank, in it or in its name; {advice}leave it out"
    )


def stored_workload(path: str) -> Workload | None:
    """The workload of a file that holds one; None for traces. Raises Unreadable."""
    reader = CommbenchWorkload()
    for file in trace_files([path]):
        with bounded_reading(file.name):
            return reader.workload(file) if reader.recognises(file) else None
    return None


def _notes_of(file: TraceFile) -> Counter[str]:
    """What is wrong with a file."""
    return +Counter({**file.notes, CUT: int(file.ended_early)})


def _reader_of(file: TraceFile) -> TraceReader | None:
    return next((reader for reader in READERS if reader.recognises(file)), None)
