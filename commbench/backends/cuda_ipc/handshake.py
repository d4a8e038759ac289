"""What the ranks exchange before a program: their messages, and the handles of the buffers that receive them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.buffers.device import DeviceBuffer
from commbench.buffers.host import rotation_pool
from commbench.core.dtypes import dtype
from commbench.core.errors import Unsupported
from commbench.core.program import Barrier, Copy, Irecv, Isend, Program, Recv, Send, View, WaitAll

from .allocator import IpcMemory
from .protocol import Mailbox

NO_COLLECTIVES = "ipc_copy is point to point only: it copies from one process into another"
ONE_NODE_ONLY = "CUDA IPC works only between processes of one node"
MESSAGES = (Send, Recv, Isend, Irecv)
Region = tuple[str, int, int, int]  # buffer, offset in its first copy, distance of copies, size; all in bytes


@dataclass
class Offer:
    """What one rank contributes, in JSON: ranks are those of the world, as text. Messages are in program order."""

    receives: dict[str, list[Region]] = field(default_factory=dict)  # by source
    sends: dict[str, list[int]] = field(default_factory=dict)  # bytes, by target
    handles: dict[str, str] = field(default_factory=dict)  # hex, by buffer
    counters: dict[str, int] = field(default_factory=dict)  # values of those that this rank writes, by index as text
    pool: int = 1
    problem: str | None = None  # why this rank can't run its program


def region_of(buffers: Mapping[str, DeviceBuffer], view: View) -> Region:
    buffer = buffers[view.buffer]
    itemsize = dtype(buffer.spec.dtype).itemsize
    offset = buffer.offset(view.slot) + view.offset * itemsize
    return view.buffer, offset, buffer.copy_bytes, view.count_in(buffer.spec) * itemsize


def check_program(program: Program, ranks: Sequence[int], node_ranks: Sequence[int]) -> None:
    """Raises Unsupported for a program that copies within one node can't run."""
    steps = (*program.steps, *program.reset)
    if any(not isinstance(step, (*MESSAGES, WaitAll, Barrier, Copy)) for step in steps):
        raise Unsupported(NO_COLLECTIVES)
    if any(not isinstance(step, Copy) for step in program.reset):
        raise Unsupported("ipc_copy can't lower messages in a reset")
    remote = [step for step in steps if isinstance(step, MESSAGES) and ranks[step.peer] not in node_ranks]
    if remote:
        raise Unsupported(f"{ONE_NODE_ONLY}: rank {ranks[remote[0].peer]} is on another")
    if any(isinstance(step, Barrier) for step in program.steps) and not set(ranks) <= set(node_ranks):
        raise Unsupported(f"{ONE_NODE_ONLY}, and this barrier is of several")


def make_offer(
    program: Program, buffers: Mapping[str, DeviceBuffer], ranks: Sequence[int], memory: IpcMemory, rank: int
) -> Offer:
    """The offer of this rank, without its counters. Raises Unsupported where memory can't be exported."""
    receives, sends = defaultdict(list), defaultdict(list)
    for step in program.steps:
        if isinstance(step, Recv | Irecv):
            receives[str(ranks[step.peer])].append(region_of(buffers, step.data))
        elif isinstance(step, Send | Isend):
            sends[str(ranks[step.peer])].append(region_of(buffers, step.data)[3])
    shared = {name for source, regions in receives.items() if source != str(rank) for name, *_ in regions}
    handles = {name: memory.export(buffers[name].allocation.address, rank) for name in sorted(shared)}
    return Offer(dict(receives), dict(sends), handles, pool=rotation_pool(buffers))


def own_counters(mailbox: Mailbox, local_rank: int, peers: Iterable[int]) -> dict[str, int]:
    """The counters that this rank has written for these peers (local ranks), by index as text."""
    indices = [mailbox.arrived(local_rank)]
    for peer in peers:
        indices += [mailbox.posted(peer, local_rank), mailbox.sent(local_rank, peer)]
    return {str(index): mailbox.counters[index] for index in indices}


def mismatch(offers: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Why these programs do not fit together, by world rank; the same on all ranks."""
    for rank, offer in offers.items():
        for peer, sizes in offer["sends"].items():
            peer_offer = offers[int(peer)]
            expected = [region[3] for region in peer_offer["receives"].get(str(rank), [])]
            if sizes != expected:
                sent, received = _messages_text(sizes), _messages_text(expected)
                return f"rank {rank} sends {sent} to rank {peer}, which receives {received}"
            if offer["pool"] != peer_offer["pool"]:
                return f"ranks {rank} and {peer} rotate through {offer['pool']} and {peer_offer['pool']} copies"
        silent = [peer for peer in offer["receives"] if str(rank) not in offers[int(peer)]["sends"]]
        if silent:
            return f"rank {rank} receives from rank {silent[0]}, which sends nothing to it"
    return None


def _messages_text(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} messages of {sum(sizes)} B"
