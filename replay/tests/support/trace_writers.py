"""Traces of a job that never ran: one schedule, written in each format that commbench reads."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from commbench_replay.operations import ITEM_BYTES
from commbench_replay.readers.registry import read_traces
from commbench_replay.recorded_workload import workload_of
from commbench_replay.training_job import training_job
from commbench_replay.workload_file import workload_text

GROUP_FACTOR = ("all_gather", "gather")
TORCH_TYPES = {
    "float32": "Float",
    "bfloat16": "BFloat16",
    "float16": "Half",
    "int64": "Long",
    "int32": "Int",
    "uint8": "Byte",
}
TENSOR_TYPES = {
    "float32": "float",
    "bfloat16": "c10::BFloat16",
    "float16": "c10::Half",
    "int64": "long int",
    "int32": "int",
    "uint8": "unsigned char",
}
RECORDED = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all",
    "all_to_all_v": "all_to_allv",
    "broadcast": "broadcast",
}
ANNOTATED = {
    "all_reduce": "all_reduce",
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all",
    "all_to_all_v": "all_to_all",
    "broadcast": "broadcast",
}
CALLED = {
    "all_reduce": "allreduce_",
    "all_gather": "_allgather_base_",
    "reduce_scatter": "_reduce_scatter_base_",
    "all_to_all": "alltoall_base_",
    "all_to_all_v": "alltoall_base_",
    "broadcast": "broadcast_",
}
NCCL_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
}
NCCL_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    "bfloat16",
)
GAP_US = 100
LATE_US = 40  # of rank r: r times this
ROOT = 1  # of broadcasts in torch's traces
WORK_AFTER_US = 10  # after the call, the work of a library begins


@dataclass(frozen=True)
class Call:
    """One collective on `ranks`. `elements` is what a rank gives to each in an all_to_all,
    else its input (all_gather) or output (reduce_scatter) or all of it. `matrix` has the elements
    from each rank to each in an all_to_all_v."""

    group: str
    ranks: tuple[int, ...]
    operation: str
    dtype: str
    elements: int
    matrix: tuple[tuple[int, ...], ...] = ()

    def splits(self, rank: int) -> tuple[list[int], list[int]]:
        """What a rank sends to each, and receives from each; empty without splits."""
        if not self.matrix:
            return [], []
        place = self.ranks.index(rank)
        return list(self.matrix[place]), [row[place] for row in self.matrix]

    def sizes(self, rank: int) -> tuple[int, int]:
        """Elements in and out."""
        size = len(self.ranks)
        sent, received = self.splits(rank)
        if self.matrix:
            return sum(sent), sum(received)
        factors = {
            "all_gather": (1, size),
            "reduce_scatter": (size, 1),
            "all_to_all": (size, size),
        }
        send, receive = factors.get(self.operation, (1, 1))
        return self.elements * send, self.elements * receive

    def recorded_rank(self, rank: int) -> int:
        """The rank in the group that torch writes beside a call on NCCL: of a broadcast, the
        root."""
        return ROOT if self.operation == "broadcast" else self.ranks.index(rank)

    def row(self, rank: int, sequence: int) -> tuple[object, ...]:
        """The line of the table that every reader must return for a rank."""
        sent, received = self.sizes(rank)
        item_bytes = ITEM_BYTES[self.dtype]
        return (
            rank,
            self.ranks,
            sequence,
            self.operation,
            self.dtype,
            sent * item_bytes,
            received * item_bytes,
        )


Schedule = Sequence[Call]


def world_of(schedule: Schedule) -> int:
    return 1 + max(max(call.ranks) for call in schedule)


def calls_of(schedule: Schedule, rank: int) -> list[tuple[int, Call]]:
    """The calls of a rank with their numbers in the schedule."""
    return [(number, call) for number, call in enumerate(schedule) if rank in call.ranks]


def expected_rows(schedule: Schedule) -> list[tuple[object, ...]]:
    rows = []
    for rank in range(world_of(schedule)):
        counts: dict[str, int] = {}
        for _, call in calls_of(schedule, rank):
            sequence = counts.get(call.group, 0)
            counts[call.group] = sequence + 1
            rows.append(call.row(rank, sequence))
    return rows


def write_kineto(
    schedule: Schedule, folder: Path, computation: Sequence[tuple[float, float]] = ()
) -> None:
    """As torch 2.9 does for NCCL: calls with sizes and groups, a kernel each. `computation`: when
    each rank's own kernels begin and end, in us."""
    for rank in range(world_of(schedule)):
        groups = {call.group: call.ranks for _, call in calls_of(schedule, rank)}
        document = {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": world_of(schedule),
                "pg_config": [
                    {"pg_name": name, "pg_size": len(ranks), "ranks": list(ranks)}
                    for name, ranks in groups.items()
                ],
            },
            "traceEvents": [
                event
                for number, call in calls_of(schedule, rank)
                for event in _kineto_events(number, call, rank)
            ]
            + [_kernel("void gemm_kernel(int)", 7, *span) for span in computation],
            "baseTimeNanoseconds": 1_000_000_000,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(document, indent=1))


def _kineto_events(number: int, call: Call, rank: int) -> list[dict[str, Any]]:
    sent, received = call.sizes(rank)
    send_counts, receive_counts = call.splits(rank)
    facts = {
        "Collective name": RECORDED[call.operation],
        "dtype": TORCH_TYPES[call.dtype],
        "In msg nelems": sent,
        "Out msg nelems": received,
        "In split size": str(send_counts),
        "Out split size": str(receive_counts),
        "Process Group Name": call.group,
        "Process Group Ranks": str(list(call.ranks)),
        "Group size": len(call.ranks),
        "Rank": call.recorded_rank(rank),
    }
    start, end = _call_us(number, rank)
    common = {"ph": "X", "pid": 7, "tid": 7}
    wait = {"Collective name": "wait", "dtype": "Byte", "In msg nelems": 0, "Out msg nelems": 0}
    names = (f"c10d::{CALLED[call.operation]}", "record_param_comms")
    launch = {"correlation": 100 + number}
    return [
        {**common, "cat": "cpu_op", "name": names[0], "ts": start, "dur": 20.0, "args": {}},
        {**common, "cat": "cpu_op", "name": names[1], "ts": start + 1, "dur": 18.0, "args": facts},
        {
            **common,
            "cat": "user_annotation",
            "name": f"nccl:{ANNOTATED[call.operation]}",
            "ts": start + 2,
            "dur": 16.0,
            "args": {"External id": 5},
        },
        {
            **common,
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernelExC",
            "ts": start + 3,
            "dur": 2.0,
            "args": launch,
        },
        {
            **_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 40, start, end),
            "ts": start + WORK_AFTER_US,
            "args": launch,
        },
        {**common, "cat": "cpu_op", "name": names[1], "ts": start + 30, "dur": 1.0, "args": wait},
        {**common, "cat": "cpu_op", "name": "aten::add", "ts": start + 40, "dur": 1.0, "args": {}},
    ]


def _call_us(number: int, rank: int) -> tuple[float, float]:
    """When a rank makes the call of this number, and how long it would take from there; its work
    lies WORK_AFTER_US later."""
    begin = 1000.0 + number * 10 * GAP_US
    return begin + rank * LATE_US, begin + 5 * GAP_US


def _kernel(name: str, stream: int, start: float, end: float) -> dict[str, Any]:
    common = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream}
    return {**common, "ts": start, "dur": end - start, "args": {}}


def write_gloo_kineto(
    schedule: Schedule, folder: Path, computation: Sequence[tuple[float, float]] = ()
) -> None:
    """As torch 2.9 does for all_reduces on gloo: calls on one thread, their work on another.
    `computation`: when an operation of the CPU begins and ends, in us."""
    for rank in range(world_of(schedule)):
        calls = calls_of(schedule, rank)
        events = [event for number, call in calls for event in _gloo_events(number, call, rank)]
        for start, end in computation:
            engine = "autograd::engine::evaluate_function: MmBackward0"
            names = (engine, "MmBackward0", "aten::mm", "aten::resolve_conj")
            events += [_cpu_event("cpu_op", name, 7, start, end) for name in names]
        facts = {"backend": "gloo", "rank": rank, "world_size": world_of(schedule)}
        document = {"schemaVersion": 1, "distributedInfo": facts, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))


def _gloo_events(number: int, call: Call, rank: int) -> list[dict[str, Any]]:
    start, end = _call_us(number, rank)
    shapes = {"Input Dims": [[call.elements]], "Input type": [TENSOR_TYPES[call.dtype]]}
    work = (start + WORK_AFTER_US, end + WORK_AFTER_US)
    return [
        _cpu_event("cpu_op", f"c10d::{CALLED[call.operation]}", 7, start, start + 5),
        {**_cpu_event("user_annotation", "gloo:all_reduce", 9, *work), "args": shapes},
    ]


def _cpu_event(category: str, name: str, thread: int, start: float, end: float) -> dict[str, Any]:
    common = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread}
    return {**common, "ts": start, "dur": end - start, "args": {}}


def write_execution_trace(schedule: Schedule, folder: Path) -> None:
    """Schema 1.1.1."""
    for rank in range(world_of(schedule)):
        groups = [
            {"pg_name": name, "pg_desc": "", "ranks": list(ranks), "group_size": len(ranks)}
            for name, ranks in {
                call.group: call.ranks for _, call in calls_of(schedule, rank)
            }.items()
        ]
        announced = {
            "id": 1,
            "name": "## process_group:init ##",
            "inputs": {"values": [json.dumps(groups)], "shapes": [[]], "types": ["String"]},
        }
        nodes = [_execution_node(number, call, rank) for number, call in calls_of(schedule, rank)]
        document = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [announced, *nodes]}
        (folder / f"rank{rank}_et.json").write_text(json.dumps(document))


def _execution_node(number: int, call: Call, rank: int) -> dict[str, Any]:
    sent, received = call.sizes(rank)
    kind = f"Tensor({TENSOR_TYPES[call.dtype]})"
    name = RECORDED[call.operation]
    splits = call.splits(rank)
    values = [
        *([], number, [call.group, ""], call.recorded_rank(rank), name),
        *(*splits, 0, 1, len(call.ranks)),
    ]
    types = [kind, "Int", "Tuple[String,String]", "Int", "String"]
    return {
        "id": 10 + number,
        "name": "record_param_comms",
        "inputs": {"values": values, "shapes": [[sent]], "types": types},
        "outputs": {"values": [[]], "shapes": [[received]], "types": [kind]},
        "attrs": [{"name": "pg_size", "type": "uint64", "value": len(call.ranks)}],
    }


def write_flight_recorder(schedule: Schedule, folder: Path, pickled: bool = False) -> None:
    for rank in range(world_of(schedule)):
        counts: dict[str, int] = {}
        entries = []
        for _, call in calls_of(schedule, rank):
            sequence = counts.get(call.group, 0)
            counts[call.group] = sequence + 1
            sent, received = call.sizes(rank)
            entries.append(
                {
                    "process_group": (call.group, ""),
                    "collective_seq_id": sequence,
                    "p2p_seq_id": 0,
                    "is_p2p": False,
                    "profiling_name": f"nccl:{ANNOTATED[call.operation]}",
                    "input_sizes": [[sent]],
                    "input_dtypes": [TORCH_TYPES[call.dtype]],
                    "output_sizes": [[received]],
                    "output_dtypes": [TORCH_TYPES[call.dtype]],
                    "state": "completed",
                }
            )
        config = {
            call.group: {"name": call.group, "desc": "", "ranks": str(list(call.ranks))}
            for _, call in calls_of(schedule, rank)
        }
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        path = folder / f"nccl_trace_rank_{rank}"
        if pickled:
            path.write_bytes(pickle.dumps(dump))
        else:
            path.write_text(json.dumps(dump))


def write_pickled_flight_recorder(schedule: Schedule, folder: Path) -> None:
    write_flight_recorder(schedule, folder, pickled=True)


def write_nccl_log(schedule: Schedule, folder: Path) -> None:
    """As NCCL 2.28 does with NCCL_DEBUG_SUBSYS=INIT,COLL."""
    for rank in range(world_of(schedule)):
        calls = calls_of(schedule, rank)
        process = f"node1:{1000 + rank}:{1000 + rank} [0]"
        groups = {call.group: call.ranks for _, call in calls}
        lines = [
            f"{process} NCCL INFO ncclCommInitRankConfig comm 0x{name}a{rank} rank"
            f" {ranks.index(rank)} nranks {len(ranks)} cudaDev 0 nvmlDev 0 busId 1b000 commId"
            f" 0xc{name} - Init COMPLETE"
            for name, ranks in groups.items()
        ]
        for number, call in calls:
            sent, received = call.sizes(rank)
            count = received if call.operation == "reduce_scatter" else sent
            lines.append(
                f"{process} NCCL INFO {NCCL_NAMES[call.operation]}: opCount {number:x} sendbuff"
                f" 0x7f01 recvbuff 0x7f02 count {count} datatype {NCCL_TYPES.index(call.dtype)}"
                f" op 0 root 0 comm 0x{call.group}a{rank} [nranks={len(call.ranks)}] stream 0x55"
            )
        (folder / f"nccl.{rank}.log").write_text("\n".join([*lines, ""]))


def write_workload(schedule: Schedule, folder: Path) -> None:
    """commbench's own file, from a profile of the same schedule."""
    source = folder / "source"
    source.mkdir()
    write_kineto(schedule, source)
    job = training_job(read_traces([str(source)])[0])
    (folder / "job.json").write_text(workload_text(workload_of(job)))
    rmtree(source)


# name -> writer of a folder with one file a rank
WRITERS: dict[str, Callable[[Schedule, Path], None]] = {
    "torch profiler": write_kineto,
    "commbench workload": write_workload,
    "execution trace": write_execution_trace,
    "Flight Recorder": write_flight_recorder,
    "Flight Recorder pickle": write_pickled_flight_recorder,
    "NCCL log": write_nccl_log,
}
# format -> what it can record, where it is not everything
WRITABLE: dict[str, Collection[str]] = {"NCCL log": NCCL_NAMES}
