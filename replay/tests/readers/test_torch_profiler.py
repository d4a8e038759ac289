"""The profiles of real jobs, from 2022 to 2026, say what is known about them."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from places import TRACES
from trace_writers import Call, write_kineto

from commbench.core.errors import Unreadable
from commbench_replay.operations import RankTrace, element_type, operation_named
from commbench_replay.readers.profiled_call import NO_GROUP
from commbench_replay.readers.profiled_work import UNLINKED_KERNELS
from commbench_replay.readers.registry import ASSUMED_RANK, read_traces
from commbench_replay.readers.torch_profiler import UNLINKED_CALLS
from commbench_replay.training_job import ASSUMED_WORLD, TrainingJob, training_job

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs real traces in {TRACES}")


def job(name: str) -> TrainingJob:
    traces, left_out = read_traces([str(TRACES / name)])
    assert left_out == {}
    return training_job(traces)


def only(name: str) -> RankTrace:
    (trace,) = read_traces([str(TRACES / name)])[0]
    return trace


def counts(trace: RankTrace) -> Counter[str]:
    return Counter(call.operation for call in trace.operations)


def test_every_rank_of_a_job_is_read_and_the_late_one_is_known_by_its_short_calls() -> None:
    dlrm = job("kineto_dlrm_v100_8rank_old")
    assert dlrm.ranks == tuple(range(8)) and dlrm.world_size == 8 and dlrm.steps == 1
    assert dlrm.operations == 64 and len(dlrm.collectives) == 8
    assert all(collective.complete for collective in dlrm.collectives)
    assert ASSUMED_WORLD in dlrm.notes
    first = dlrm.collectives[0]
    assert first.durations_ns[0] == 2_146_000 and first.durations_ns[1] == 7_635_000
    assert first.job_ns == 10_000 and first.waiting_ns[1] == 7_625_000
    uneven = [call for collective in dlrm.collectives for call in collective.calls]
    sizes = [call.output_bytes for call in uneven if call.operation == "all_to_all_v"]
    assert min(sizes, key=int) == 4 * 768 and max(sizes, key=int) == 4 * 13312


def test_an_operation_is_known_by_its_annotation_and_not_by_its_kernel() -> None:
    """All 80 kernels of this job are called SendRecv."""
    trace = only("kineto_torchrec_a100_16rank_old")
    kinds = Counter(call.operation.removesuffix("_v") for call in trace.operations)
    expected = {"all_to_all": 55, "all_reduce": 10, "all_gather": 10, "reduce_scatter": 10}
    assert kinds == expected
    assert trace.notes[UNLINKED_KERNELS] == 5 and trace.notes[NO_GROUP] == 85
    assert UNLINKED_CALLS not in trace.notes, "those ten have no bytes, so they start no kernel"
    assert sum(call.duration_ns is None for call in trace.operations) == 10


def test_collectives_of_other_libraries_are_counted_apart() -> None:
    trace = only("kineto_vllm_tp8_b200_new")
    assert counts(trace) == {"all_gather": 1}
    (call,) = trace.operations
    assert (call.dtype, call.input_bytes, call.output_bytes) == ("bfloat16", 50272, 402176)
    assert call.group.ranks == tuple(range(8)) and call.duration_ns == 21_953
    assert Counter(call.operation for call in trace.others) == {"multimem_all_reduce_kernel": 73}
    assert sum(call.duration_ns or 0 for call in trace.others) == 2_119_548
    assert not trace.foreign, "each call has a kernel"


def test_calls_with_sizes_and_groups_are_read_as_recorded() -> None:
    trace = only("kineto_ddp_a100_2rank_new")
    assert counts(trace) == {"all_reduce": 15, "broadcast": 6}, "wait is none of them"
    assert {call.group.ranks for call in trace.operations} == {(0, 1)}
    assert {call.dtype for call in trace.operations} == {"float32", "int64"}
    assert max(call.input_bytes or 0 for call in trace.operations) == 4 * 7_875_584
    assert {call.step for call in trace.operations} == {4, 5, 6}
    assert all(call.duration_ns for call in trace.operations) and not trace.notes


def test_a_call_without_shapes_of_its_output_has_no_bytes_out() -> None:
    trace = only("kineto_a100_8rank_oldest")
    assert counts(trace) == {"all_to_all": 42, "all_reduce": 18} and trace.rank == 3
    assert all(call.duration_ns for call in trace.operations)
    outputs = {call.operation: call.output_bytes for call in trace.operations}
    assert outputs["all_to_all"] is None and outputs["all_reduce"]


def test_gloo_has_its_calls_on_one_thread_and_its_work_on_another() -> None:
    trace = only("kineto_gloo_300rank_cpu")
    assert counts(trace) == {"all_reduce": 10} and trace.rank == 34 and trace.world_size == 300
    assert {call.input_bytes for call in trace.operations} == {4 * 321271, 4 * 2082411}
    assert {call.group.size for call in trace.operations} == {300}
    assert trace.operations[0].duration_ns == 173_209_713


def test_a_job_of_one_rank_has_calls_and_no_times() -> None:
    trace = only("kineto_ddp_v100_1rank_nopgname")
    assert counts(trace) == {"all_reduce": 25, "broadcast": 10}
    assert {call.group.ranks for call in trace.operations} == {(0,)}
    assert not any(call.duration_ns for call in trace.operations)


@pytest.mark.parametrize("name", ["kineto_ddp_a100_2rank_new", "kineto_a100_8rank_oldest"])
def test_computation_beside_the_kernels_of_a_library_is_that_of_all_other_kernels(
    name: str,
) -> None:
    """Compared with going through the events of the file in the order of their times."""
    path = next((TRACES / name).iterdir())
    borders: list[tuple[int, int, int]] = []  # time, of a library's kernel or another, +1 or -1
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("cat") == "kernel":
            start_ns = round(event["ts"] * 1000)
            kind = 0 if "nccl" in event["name"] else 1
            borders.append((start_ns, kind, 1))
            borders.append((start_ns + round(event["dur"] * 1000), kind, -1))
    running = [0, 0]
    hidden_ns = 0
    before_ns = 0
    for time_ns, kind, change in sorted(borders):
        hidden_ns += (time_ns - before_ns) * running[0] * (running[1] > 0)
        running[kind] += change
        before_ns = time_ns
    calls = only(name).operations
    assert sum(call.beside_ns or 0 for call in calls) == hidden_ns > 0
    assert all(0 <= (call.beside_ns or 0) <= (call.duration_ns or 0) for call in calls)


def test_kernels_on_one_stream_hide_nothing_and_a_cpu_hides_little_of_what_it_waits_for() -> None:
    assert only("kineto_vllm_tp8_b200_new").operations[0].beside_ns == 0
    gloo = only("kineto_gloo_300rank_cpu").operations
    hidden_ns = sum(call.beside_ns or 0 for call in gloo)
    assert 0 < hidden_ns < sum(call.duration_ns or 0 for call in gloo) / 10
    assert {call.beside_ns for call in only("kineto_ddp_v100_1rank_nopgname").operations} == {None}


def test_a_profile_without_communication_has_no_operations() -> None:
    assert only("kineto_no_nccl_oldest_inference").operations == ()


def test_a_single_file_that_does_not_say_its_rank_is_read_as_a_rank() -> None:
    trace = only("kineto_no_rank_info/rank_not_found.json.gz")
    assert trace.rank == 0 and trace.notes[ASSUMED_RANK] == 1
    with pytest.raises(Unreadable, match=r"does not say its rank.*call it rankN_"):
        read_traces([str(TRACES / "kineto_no_rank_info")])


def test_a_file_that_is_cut_says_so_and_what_was_read_counts(tmp_path: Path) -> None:
    original = next((TRACES / "kineto_ddp_a100_2rank_new").iterdir()).read_bytes()
    cut = tmp_path / "rank0.json.gz"
    cut.write_bytes(original[: len(original) // 2])
    traces, _ = read_traces([str(cut)])
    assert any("end early" in note for note in traces[0].notes)
    plain = tmp_path / "rank0.json"
    whole = gzip.decompress(original)
    plain.write_bytes(whole[: len(whole) * 99 // 100])
    (trace,), _ = read_traces([str(plain)])
    assert len(trace.operations) == 21 and any("end early" in note for note in trace.notes)
    assert trace.computing is None, "kernels may be missing"


def test_the_signatures_of_a_sharded_job_are_those_of_its_published_summary(
    tmp_path: Path,
) -> None:
    """The summary of another tool has the calls and their megabytes; the traces are not public."""
    summary = TRACES / "summary_fsdp70b_mi300_8rank" / "nccl_summary_long.csv"
    rows = list(csv.DictReader(summary.read_text().splitlines()))
    expected = {}
    for row in rows:
        operation = operation_named(row["Collective name"])
        kind = element_type(row["dtype"])
        assert operation is not None and kind is not None
        sent = float(row["In msg size (MB)_first"])
        received = float(row["Out msg size (MB)_first"])
        elements = min(int(row["In msg nelems"]), int(row["Out msg nelems"]))
        expected[operation, kind[0], sent, received] = elements
    write_kineto(
        [
            Call("0", tuple(range(8)), operation, dtype, elements)
            for (operation, dtype, _, _), elements in expected.items()
        ],
        tmp_path,
    )
    seen = {
        (
            call.operation,
            call.dtype,
            (call.input_bytes or 0) / 2**20,
            (call.output_bytes or 0) / 2**20,
        )
        for collective in job(str(tmp_path)).collectives
        for call in collective.calls
    }
    assert seen == set(expected) and len(rows) == 8 * len(expected)
