"""Sends and receives that are begun together, and operations on several tensors at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commbench_replay.readers.execution_trace import NO_DESCRIPTION
from commbench_replay.readers.flight_recorder import NO_PARTS_HERE, NO_SIZE_HERE
from commbench_replay.readers.profiled_call import NO_SIZE, NO_TYPE
from commbench_replay.readers.profiled_work import UNLINKED_KERNELS
from commbench_replay.readers.registry import read_traces
from commbench_replay.readers.torch_profiler import UNLINKED_CALLS
from commbench_replay.recorded_workload import workload_of
from commbench_replay.training_job import TrainingJob, training_job

RING = 4


def written(folder: Path, *documents: dict[str, Any]) -> TrainingJob:
    """A file a rank."""
    for rank, document in enumerate(documents):
        (folder / f"trace_rank_{rank}").write_text(json.dumps(document))
    return training_job(read_traces([str(folder)])[0])


def profile(rank: int, ranks: int, events: list[dict[str, Any]]) -> dict[str, Any]:
    groups = [{"pg_name": "0", "pg_size": ranks, "ranks": list(range(ranks))}]
    facts = {"rank": rank, "world_size": ranks, "pg_config": groups}
    return {"schemaVersion": 1, "distributedInfo": facts, "traceEvents": events}


def dump(entries: list[dict[str, Any]], ranks: int = RING) -> dict[str, Any]:
    """Of Flight Recorder with NCCL."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def entry(name: str, number: int, *elements: int) -> dict[str, Any]:
    shapes = [[count] for count in elements]
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 0,
        "p2p_seq_id": number,
        "is_p2p": True,
        "profiling_name": f"nccl:{name}",
        "input_sizes": shapes,
        "output_sizes": shapes,
        "input_dtypes": ["Float"] * len(shapes),
        "output_dtypes": ["Float"] * len(shapes),
    }


def batch(rank: int, number: int) -> list[dict[str, Any]]:
    """To the right and from the left, twice: one number for all, and an entry at the end."""
    right = (rank + 1) % RING
    left = (rank - 1) % RING
    there = entry(f"send {rank}->{right}", number, 10)
    back = entry(f"recv {rank}<-{left}", number, 10)
    return [there, back, there, back, entry("coalesced", number)]


def peers_of(job: TrainingJob) -> set[tuple[int, int]]:
    """Of complete messages: sender, receiver."""
    messages = [each for each in job.collectives if each.complete]
    return {
        (send.rank, receive.rank)
        for each in messages
        for send in each.calls
        for receive in each.calls
        if (send.operation, receive.operation) == ("send", "recv")
    }


def test_a_batch_in_flight_recorder_is_its_sends_and_receives_begun_together(
    tmp_path: Path,
) -> None:
    job = written(tmp_path, *(dump([*batch(rank, 1), *batch(rank, 2)]) for rank in range(RING)))
    assert job.notes == {} and len(job.collectives) == 4 * RING
    assert peers_of(job) == {(rank, (rank + 1) % RING) for rank in range(RING)}
    for order in workload_of(job).orders:
        assert [call.concurrent for call in order.calls] == [0, 1, 2, 3] * 2


def test_messages_of_a_rank_to_several_are_matched_with_the_receive_of_each(
    tmp_path: Path,
) -> None:
    """A dump counts those to all peers together."""
    sends = [entry(f"send 0->{peer}", peer, 10) for peer in range(1, RING)]
    receives = [[entry(f"recv {peer}<-0", 1, 10)] for peer in range(1, RING)]
    job = written(tmp_path, *map(dump, [sends, *receives]))
    assert peers_of(job) == {(0, peer) for peer in range(1, RING)}
    assert {call.concurrent for order in workload_of(job).orders for call in order.calls} == {0}


def test_the_end_of_a_batch_whose_parts_are_not_recorded_is_noted(tmp_path: Path) -> None:
    job = written(tmp_path, dump([entry("coalesced", 3)], 1))
    assert job.notes == {NO_PARTS_HERE: 1} and job.operations == 0


def test_collectives_of_a_batch_are_as_many_operations(tmp_path: Path) -> None:
    parts = [entry("all_reduce", 0, size) for size in (3, 4)]
    entries = [{**part, "is_p2p": False, "collective_seq_id": 7} for part in parts]
    end = {**entry("coalesced", 0), "is_p2p": False, "collective_seq_id": 7}
    job = written(tmp_path, *[dump([*entries, end], 2)] * 2)
    sizes = [[call.input_bytes for call in each.calls] for each in job.collectives]
    assert sizes == [[12, 12], [16, 16]] and job.notes == {}


def test_gloo_records_one_output_of_an_all_gather_of_several_tensors(tmp_path: Path) -> None:
    gathered = {
        **entry("all_gather", 0, 2, 3),
        "profiling_name": "gloo:all_gather",
        "is_p2p": False,
        "output_sizes": [[2, 2]],
    }
    without_groups = {**dump([gathered], 2), "pg_config": {}}
    job = written(tmp_path, without_groups, without_groups)
    (first, *_) = job.calls[0]
    assert (first.input_bytes, first.output_bytes) == (20, None)
    assert job.notes[NO_SIZE_HERE] == 2


def test_a_batch_whose_kernel_has_no_call_is_begun_together(tmp_path: Path) -> None:
    """NCCL's profile: the kernel is launched at the end of the batch."""
    documents = []
    for rank in range(2):
        peer = 1 - rank
        events: list[dict[str, Any]] = []
        for number, name in enumerate(["send", "recv", "wait", "send", "recv", "allreduce"]):
            span = {"ph": "X", "pid": 7, "tid": 7, "ts": 1000 + 100 * number, "dur": 50}
            facts = {
                "Collective name": name, "dtype": "Float", "Process Group Name": "0",
                "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2, "Rank": peer,
            }  # fmt: skip
            events.append({**span, "cat": "cpu_op", "name": "record_param_comms", "args": facts})
        linked = {"correlation": 1}
        launch = {"ph": "X", "pid": 7, "tid": 7, "ts": 1510, "dur": 5, "args": linked}
        events.append({**launch, "cat": "cuda_runtime", "name": "cudaLaunchKernelExC"})
        for correlation in (1, 2):
            kernel = {**launch, "tid": 9, "args": {"correlation": correlation}}
            events.append({**kernel, "cat": "kernel", "name": "ncclDevKernel_SendRecv"})
        documents.append(profile(rank, 2, events))
    job = written(tmp_path, *documents)
    assert job.notes == {UNLINKED_CALLS: 8, UNLINKED_KERNELS: 2}
    for order in workload_of(job).orders:
        assert [call.concurrent for call in order.calls] == [0, 1, 0, 1, 0]


def coalesced(name: str, work: str, lists: list[Any], *types: str) -> list[dict[str, Any]]:
    """As torch 2.13 records gloo: shapes of the call, types with the work."""
    args = {"Input Dims": [*lists, [], []], "Input type": ["TensorList"] * len(lists)}
    inputs = lists[-1]
    worked = {"Input Dims": inputs, "Input type": list(types)}
    call = {"ph": "X", "cat": "cpu_op", "tid": 1, "pid": 1, "ts": 0, "dur": 5, "args": args}
    done = {"ph": "X", "cat": "user_annotation", "tid": 2, "pid": 1, "ts": 7, "args": worked}
    spans = [(7, 3), (11, 4)] if "scatter" in name else [(7, 3)]
    works = [{**done, "name": f"gloo:{work}", "ts": start, "dur": dur} for start, dur in spans]
    return [{**call, "name": f"c10d::{name}"}, *works]


def test_all_tensors_of_an_operation_on_gloo_are_counted(tmp_path: Path) -> None:
    float_pair = ("float", "float")
    for name, work, lists, expected in (
        ("allreduce_coalesced_", "all_reduce", [[[5], [7]]], ("all_reduce", 48, 48, 3000)),
        ("allgather_coalesced_", "all_gather", [[], [[4], [6]]], ("all_gather", 40, 80, 3000)),
        (
            "allgather_into_tensor_coalesced_", "all_gather", [[[4], [6]], [[2], [3]]],
            ("all_gather", 20, 40, 3000),
        ),
        (
            "reduce_scatter_tensor_coalesced_", "all_reduce", [[[4], [5]], [[8], [10]]],
            ("reduce_scatter", 72, 36, 8000),
        ),
    ):  # fmt: skip
        job = written(tmp_path, profile(0, 2, coalesced(name, work, lists, *float_pair)))
        ((call,),) = job.calls.values()
        seen = (call.operation, call.input_bytes, call.output_bytes, call.duration_ns)
        assert (seen, job.notes) == (expected, {}), name


def test_tensors_of_two_types_in_one_operation_are_noted(tmp_path: Path) -> None:
    events = coalesced("allreduce_coalesced_", "all_reduce", [[[5], [7]]], "float", "long int")
    job = written(tmp_path, profile(0, 2, events))
    assert job.notes == {NO_TYPE: 1} and job.calls[0][0].input_bytes is None


def test_an_operation_on_several_tensors_without_shapes_has_no_bytes(tmp_path: Path) -> None:
    name = "reduce_scatter_tensor_coalesced_"
    events = [{**event, "args": {}} for event in coalesced(name, "all_reduce", [[[4]], [[8]]])]
    job = written(tmp_path, profile(0, 2, events))
    assert job.notes[NO_SIZE] == 1 and job.calls[0][0].input_bytes is None


def test_an_execution_trace_of_gloo_says_how_many_calls_it_does_not_describe(
    tmp_path: Path,
) -> None:
    names = ("c10d::send", "c10d::recv_", "c10d::allreduce_coalesced_", "aten::add")
    nodes = [{"id": number, "name": name, "inputs": {}} for number, name in enumerate(names)]
    document = {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}
    job = written(tmp_path, document)
    assert (job.operations, job.notes) == (0, {NO_DESCRIPTION: 3})
