"""Logs of NCCL and RCCL: peers, communicators and ranks."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from commbench.core.errors import Unreadable
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.operations import RankTrace
from commbench_replay.readers.nccl_calls import (
    NO_CALLS,
    NO_COMMUNICATOR,
    NO_OWNER,
    UNKNOWN_CALLS,
    NcclCalls,
)
from commbench_replay.readers.registry import read_traces
from commbench_replay.training_job import training_job

SEND = (
    "n1:7:7 [0] NCCL INFO Send: opCount 1e7 sendbuff 0x1 recvbuff (nil) count 16 datatype 9 op 0"
    " root 3 comm 0xa [nranks=4] stream 0x5"
)
REDUCE = (
    "n1:8:9 [2] NCCL INFO AllReduce: opCount 2 sendbuff 0x1 recvbuff 0x1 count 1 datatype 8 op 0"
    " root 0 comm 0xb [nranks=4] stream 0x5 task 0 globalrank 2"
)
BEGUN = (
    "n1:7:7 [0] NCCL INFO ncclCommInitRank comm 0xa rank 1 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000"
    " commId 0x2f0 - Init COMPLETE"
)


def read(*lines: str, name: str = "nccl.log") -> list[RankTrace]:
    text = "\n".join(lines).encode()
    return NcclCalls().read(ForeignFile(name, io.BytesIO(text)))


def test_the_root_of_a_send_is_its_peer() -> None:
    (trace,) = read(BEGUN, SEND)
    (call,) = trace.operations
    assert (trace.rank, trace.world_size, call.operation, call.peer) == (1, 4, "send", 3)
    assert (call.dtype, call.input_bytes, call.group.size) == ("bfloat16", 32, 4)


def test_processes_in_one_file_are_ranks_of_their_own() -> None:
    traces = read(BEGUN, SEND, REDUCE)
    assert [(trace.rank, len(trace.operations)) for trace in traces] == [(1, 1), (2, 1)]
    assert traces[1].notes == {NO_COMMUNICATOR: 1}


def initialised(address: str, rank: int, gpu: int, process: str = "n1:7:9") -> str:
    return (
        f"{process} [{gpu}] NCCL INFO ncclCommInitAll comm {address} rank {rank} nranks 2 cudaDev"
        f" {gpu} nvmlDev {gpu} busId {gpu + 1}000 commId 0x2f0 - Init COMPLETE"
    )


def called(name: str, address: str, process: str = "n1:7:7") -> str:
    return (
        f"{process} [0] NCCL INFO {name}: opCount 2 sendbuff 0x1 recvbuff 0x1 count 1 datatype 7"
        f" op 0 root 0 comm {address} [nranks=2] stream 0x5"
    )


def test_the_gpus_of_one_process_are_ranks_of_their_own() -> None:
    """As with all_reduce_perf -g 2: the GPU in a header is that which was current."""
    lines = [initialised("0xa", 0, 0), initialised("0xb", 1, 1)]
    lines += [
        called(name, address) for name in ("AllReduce", "AllGather") for address in ("0xa", "0xb")
    ]
    traces = read(*lines)
    assert [(trace.rank, trace.world_size, trace.notes) for trace in traces] == [
        (0, 2, {}), (1, 2, {}),
    ]  # fmt: skip
    job = training_job(traces)
    assert [each.complete for each in job.collectives] == [True, True]
    assert {each.group.ranks for each in job.collectives} == {(0, 1)}


def test_groups_of_a_process_with_several_gpus_belong_to_their_rank() -> None:
    split = (
        "n1:7:9 [0] NCCL INFO ncclCommSplit comm {} rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId {}"
    )
    split += " parent {} splitCount 1 color {} key 0 - Init COMPLETE"
    traces = read(
        initialised("0xa", 0, 0),
        initialised("0xb", 1, 1),
        split.format("0xc", "1000", "0xa", 0),
        split.format("0xd", "2000", "0xb", 1),
        called("AllReduce", "0xd").replace("nranks=2", "nranks=1"),
    )
    assert [(trace.rank, len(trace.operations)) for trace in traces] == [(0, 0), (1, 1)]


def test_a_call_of_a_process_with_several_ranks_that_is_of_none_of_them_is_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nccl.log"
    lines = [initialised("0xa", 0, 0), initialised("0xb", 1, 1)]
    path.write_text("\n".join([*lines, *(called("AllReduce", f"0x{name}") for name in "abc")]))
    job = training_job(read_traces([str(path)])[0])
    assert job.ranks == (0, 1) and job.operations == 2 and job.notes[NO_OWNER] == 1


def test_a_process_that_is_one_rank_on_two_gpus_is_one() -> None:
    (trace,) = read(
        initialised("0xa", 1, 0),
        initialised("0xb", 1, 1).replace("0x2f0", "0x3f0"),
        called("AllReduce", "0xa"),
        called("AllGather", "0xb"),
    )
    assert trace.rank == 1 and len(trace.operations) == 2


@pytest.mark.parametrize("prefix", ["[2] ", "[0] [2] ", "[Rank 2] "])
def test_a_rank_may_stand_before_the_name_of_a_call(prefix: str) -> None:
    (trace,) = read(BEGUN, SEND.replace("INFO ", f"INFO {prefix}"))
    assert [call.operation for call in trace.operations] == ["send"]


def test_calls_behind_much_other_output_are_read(tmp_path: Path) -> None:
    """As in the log of a job that trains for a while before its first line of NCCL."""
    path = tmp_path / "job.log"
    path.write_text("epoch 1 loss 0.5\n" * 10_000 + f"{BEGUN}\n{SEND}\n")
    (trace,), left_out = read_traces([str(path)])
    assert len(trace.operations) == 1 and left_out == {}


def test_a_log_without_calls_says_what_logs_them(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("x\n" * 9 + "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.1<0>\n")
    with pytest.raises(Unreadable, match=r"job\.log: NCCL's log without calls: NCCL_DEBUG_SUBSYS"):
        read_traces([str(path)])
    path.write_text(f"{BEGUN}\n")
    (trace,), _ = read_traces([str(path)])
    assert trace.notes == {NO_CALLS: 1}
    path.write_text("hello\n" * 99)
    with pytest.raises(Unreadable, match=r"job\.log: no trace that commbench knows; known are: "):
        read_traces([str(path)])


def test_what_is_not_known_is_counted() -> None:
    (trace,) = read(
        BEGUN, SEND.replace("Send", "Mystery"), SEND.replace("datatype 9", "datatype 99")
    )
    assert trace.operations == () and trace.notes == {UNKNOWN_CALLS: 2}


def test_other_lines_and_cut_ones_do_no_harm() -> None:
    (trace,) = read("x" * 100, BEGUN, SEND[:60], "\x1b[31m opCount", SEND)
    assert len(trace.operations) == 1
