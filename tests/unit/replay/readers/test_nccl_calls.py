"""Logs of NCCL and RCCL: peers, communicators and ranks."""

from __future__ import annotations

import io

from commbench.replay.operations import RankTrace
from commbench.replay.readers.nccl_calls import NO_COMMUNICATOR, UNKNOWN_CALLS, NcclCalls
from commbench.replay.trace_files import TraceFile

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
    return NcclCalls().read(TraceFile(name, io.BytesIO(text)))


def test_the_root_of_a_send_is_its_peer() -> None:
    (trace,) = read(BEGUN, SEND)
    (call,) = trace.operations
    assert (trace.rank, trace.world_size, call.operation, call.peer) == (1, 4, "send", 3)
    assert (call.dtype, call.input_bytes, call.group.size) == ("bfloat16", 32, 4)


def test_processes_in_one_file_are_ranks_of_their_own() -> None:
    traces = read(BEGUN, SEND, REDUCE)
    assert [(trace.rank, len(trace.operations)) for trace in traces] == [(1, 1), (2, 1)]
    assert traces[1].notes == {NO_COMMUNICATOR: 1}


def test_what_is_not_known_is_counted() -> None:
    (trace,) = read(
        BEGUN, SEND.replace("Send", "Mystery"), SEND.replace("datatype 9", "datatype 99")
    )
    assert trace.operations == () and trace.notes == {UNKNOWN_CALLS: 2}


def test_other_lines_and_cut_ones_do_no_harm() -> None:
    (trace,) = read("x" * 100, BEGUN, SEND[:60], "\x1b[31m opCount", SEND)
    assert len(trace.operations) == 1
