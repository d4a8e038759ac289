"""The readers of all formats, and the traces in the files that a user names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from commbench.core.errors import Unreadable
from commbench.core.foreign import bounded_reading
from commbench.features.other_tools.foreign_files import ForeignFile, foreign_files
from commbench.features.other_tools.foreign_readers import read_files
from commbench_replay.operations import NO_RANK, RankTrace
from commbench_replay.workload import Workload

from .commbench_workload import CommbenchWorkload
from .execution_trace import ExecutionTrace
from .flight_recorder import FlightRecorder
from .nccl_calls import NcclCalls
from .protocol import NO_FORMAT, TraceReader
from .torch_profiler import TorchProfiler

READERS: tuple[TraceReader, ...] = (
    CommbenchWorkload(),
    ExecutionTrace(),
    FlightRecorder(),
    TorchProfiler(),
    NcclCalls(),
)
STRAY = "without communication, and of no rank of its own"
ASSUMED_RANK = "the rank, which the trace does not say; any of its groups is assumed"
CUT = "files that end early; the operations before count"


def read_traces(paths: Sequence[str]) -> tuple[list[RankTrace], dict[str, str]]:
    """What the files say about their ranks, and why files were left out, by name; raises
    Unreadable, also where there is no trace at all."""
    contents, left_out = read_files(paths, READERS, NO_FORMAT, "docs/workloads.md")
    traces: list[RankTrace] = []
    for file, (first, *others) in contents:
        notes = {**first.notes, **_notes_of(file)}
        traces += [replace(first, notes=notes, is_part=first.is_part or file.ended_early), *others]
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
        raise _no_rank(unknown, traces)
    (alone,) = traces
    groups = [set(call.group.ranks) for call in alone.operations if call.group.ranks]
    rank = min(set.intersection(*groups), default=0) if groups else 0
    calls, others = (
        tuple(replace(call, rank=rank) for call in recorded)
        for recorded in (alone.operations, alone.others)
    )
    notes = {**alone.notes, ASSUMED_RANK: 1}
    return [replace(alone, rank=rank, operations=calls, others=others, notes=notes)]


def _no_rank(unknown: Sequence[RankTrace], traces: Sequence[RankTrace]) -> Unreadable:
    """Advises only what the other traces allow."""
    size = max((trace.world_size or 0 for trace in traces), default=0) or len(traces)
    free = sorted(set(range(size)) - {trace.rank for trace in traces})
    source = unknown[0].source
    name = source.rpartition("/")[2]
    if not free:
        advice = "leave it out"
    elif len(free) == len(unknown) == 1:
        advice = f"if it is of rank {free[0]}, call it rank{free[0]}_{name}; else leave it out"
    else:
        advice = f"call it rankN_{name}, where N is its rank, or leave it out"
    return Unreadable(f"{source} does not say its rank, in it or in its name; {advice}")


def stored_workload(path: str) -> Workload | None:
    """The workload of a file that holds one; None for traces. Raises Unreadable."""
    reader = CommbenchWorkload()
    for file in foreign_files([path]):
        with bounded_reading(file.name):
            return reader.workload(file) if reader.recognises(file) else None
    return None


def _notes_of(file: ForeignFile) -> Counter[str]:
    """What is wrong with a file."""
    return +Counter({**file.notes, CUT: int(file.ended_early)})
