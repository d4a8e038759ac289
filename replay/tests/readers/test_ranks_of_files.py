"""Which rank a file is of, by what it says or by its name, and what is of no rank."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from loops import for_each
from trace_writers import (
    ROOT,
    Call,
    Schedule,
    write_execution_trace,
    write_kineto,
    write_nccl_log,
)

from commbench.core.errors import Unreadable
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.operations import NO_RANK, RankTrace
from commbench_replay.readers.protocol import rank_of
from commbench_replay.readers.registry import ASSUMED_RANK, STRAY, read_traces
from commbench_replay.training_job import training_job

SCHEDULE = [Call("0", (0, 1), "all_reduce", "float32", 8)]
COORDINATOR = "gpunode7_4021.async_llm.1757000000123.pt.trace.json"
COORDINATOR_EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "ts": 1.0, "dur": 2.0}


def write_coordinator(folder: Path, name: str = COORDINATOR) -> Path:
    """A process beside the ranks that was profiled, too, as vLLM's."""
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [COORDINATOR_EVENT]}))
    return path


def without_rank(path: Path, name: str) -> Path:
    """The trace under another name, without what it says about its job."""
    document = json.loads(path.read_text())
    del document["distributedInfo"]
    for event in document["traceEvents"]:
        event["args"].pop("Rank", None)
    path.unlink()
    renamed = path.with_name(name)
    renamed.write_text(json.dumps(document))
    return renamed


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("a/worker2_step_12.1694128201554.pt.trace.json.gz", 2),
        ("rank-0.20230401.4021.pt.trace.json", 0),
        ("dp0_pp0_tp1_dcp0_ep1_rank1.17570000001.pt.trace.json.gz", 1),
        ("dlrm_eg_4.json.gz", 4),
        ("host_5.json", 5),
        ("nccl_trace_6", 6),
        # processes, times and batch sizes
        ("localhost_4021.1757000000123.pt.trace.json", NO_RANK),
        ("host_4021.1757000000123.pt.trace.json", NO_RANK),
        ("frank_4021.1757000000123.pt.trace.json", NO_RANK),
        (COORDINATOR, NO_RANK),
        ("nccl.job-pods-0.70", NO_RANK),
        ("trace.4021.json", NO_RANK),
        ("merged-1769071195.6634595.trace.json.gz", NO_RANK),
        # pods, of which those of a PyTorchJob are ranks 1 and 2, and machines
        ("mnist-worker-0_1.1718116821592181759.pt.trace.json", NO_RANK),
        ("mnist-worker-1.json", NO_RANK),
        ("mnist-master-0_1.1718116821592181759.pt.trace.json", NO_RANK),
        ("worker3_4021.1757000000123.pt.trace.json", NO_RANK),
        ("nccl.mnist-worker-1.70", NO_RANK),
        ("worker_3.pt.trace.json", 3),
        ("mnist-worker-0_rank1.json", 1),
        ("bs_32.json", NO_RANK),
    ],
)
def test_a_number_in_a_name_is_a_rank_only_where_the_name_says_so(name: str, rank: int) -> None:
    assert rank_of(ForeignFile(name, io.BytesIO()), None) == rank
    assert rank_of(ForeignFile(name, io.BytesIO()), 7) == 7


def test_formats_whose_names_end_with_the_rank_say_so() -> None:
    names = ("job.3.et", "nccl_trace_rank_container-node02_3", "nccl_trace_rank_job-worker-7_3")
    for name in (*names, "nccl_trace_rank_worker7_3", "nccl_trace_rank_3"):
        assert rank_of(ForeignFile(name, io.BytesIO()), None, ends_with_rank=True) == 3


@pytest.mark.parametrize("name", [COORDINATOR, f"rank0_{COORDINATOR}", f"rank1_{COORDINATOR}"])
def test_a_file_of_no_rank_without_communication_is_left_out_and_named(
    name: str, tmp_path: Path
) -> None:
    """Also where somebody has called it after a rank."""
    write_kineto(SCHEDULE, tmp_path)
    stray = write_coordinator(tmp_path, name)
    traces, left_out = read_traces([str(tmp_path)])
    assert left_out == {str(stray): STRAY}
    job = training_job(traces)
    assert job.ranks == (0, 1) and job.operations == 2 and job.notes == {}


def test_files_without_rank_and_communication_alone_are_refused(tmp_path: Path) -> None:
    write_coordinator(tmp_path)
    write_coordinator(tmp_path, "other.json")
    with pytest.raises(Unreadable, match="no communication, and no rank; name the traces"):
        read_traces([str(tmp_path)])


def test_what_is_advised_for_a_file_without_a_rank_leads_to_an_answer(tmp_path: Path) -> None:
    write_kineto(SCHEDULE, tmp_path)
    nameless = without_rank(tmp_path / "rank0.json", "x.json")
    with pytest.raises(Unreadable, match=r"of rank 0, call it rank0_x\.json; else leave it"):
        read_traces([str(tmp_path)])
    nameless.rename(tmp_path / "rank0_x.json")
    assert training_job(read_traces([str(tmp_path)])[0]).ranks == (0, 1)
    (tmp_path / "y.json").write_text((tmp_path / "rank0_x.json").read_text())
    with pytest.raises(Unreadable, match=r"y.json does not say its rank.*; leave it out$"):
        read_traces([str(tmp_path)])


def test_several_files_without_a_rank_are_not_given_one(tmp_path: Path) -> None:
    """Which of the pods is which rank only the user knows."""
    write_kineto(SCHEDULE, tmp_path)
    for rank, pod in enumerate(("mnist-master-0", "mnist-worker-0")):
        without_rank(tmp_path / f"rank{rank}.json", f"{pod}_1.171811682159.pt.trace.json")
    with pytest.raises(
        Unreadable, match=r"call it rankN_mnist-master-0_1\..*, where N is its rank"
    ):
        read_traces([str(tmp_path)])


def test_a_trace_alone_is_read_as_a_rank_of_its_groups(tmp_path: Path) -> None:
    groups = [
        Call("0", (0, 1), "all_reduce", "float32", 8),
        Call("1", (1, 2), "broadcast", "int64", 1),
    ]
    write_kineto(groups, tmp_path)
    path = without_rank(tmp_path / "rank1.json", "x.json")
    (trace,), left_out = read_traces([str(path)])
    assert trace.rank == 1 and {call.rank for call in trace.operations} == {1}
    assert trace.notes == {ASSUMED_RANK: 1} and left_out == {}


def without_name(path: Path) -> list[RankTrace]:
    """The trace in a file whose name says nothing."""
    return read_traces([str(path.rename(path.with_name("x.json")))])[0]


@for_each("write", [write_execution_trace, write_kineto])
def test_the_root_of_a_broadcast_is_known_and_is_not_taken_for_the_rank(
    write: Callable[[Schedule, Path], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    write([Call("0", (0, 1), "broadcast", "int64", 1), *SCHEDULE], folder)
    (first,) = read_traces([str(next(folder.glob("rank0*")))])[0]
    assert first.rank == 0 and first.operations[0].root == ROOT
    job = training_job(read_traces([str(folder)])[0])
    assert job.ranks == (0, 1) and "roots" not in job.unknown


def test_a_trace_with_broadcasts_only_says_that_its_rank_is_assumed(tmp_path: Path) -> None:
    write_execution_trace([Call("0", (0, 1), "broadcast", "int64", 1)], tmp_path)
    (trace,) = without_name(tmp_path / "rank0_et.json")
    assert trace.rank == 0 and trace.notes == {ASSUMED_RANK: 1}


def test_the_rank_in_a_group_is_not_that_in_the_world(tmp_path: Path) -> None:
    write_execution_trace([Call("1", (4, 5), "all_reduce", "int64", 1)], tmp_path)
    (trace,) = without_name(tmp_path / "rank5_et.json")
    assert trace.rank == 5 and not trace.notes


def test_the_process_in_the_name_of_a_log_of_nccl_is_no_rank(tmp_path: Path) -> None:
    write_nccl_log(SCHEDULE, tmp_path)
    lines = (tmp_path / "nccl.1.log").read_text().splitlines()
    path = tmp_path / "nccl.node1.4021"
    path.write_text("\n".join(line for line in lines if "Init" not in line))
    (trace,), _ = read_traces([str(path)])
    assert trace.rank == 0 and trace.notes[ASSUMED_RANK] == 1
