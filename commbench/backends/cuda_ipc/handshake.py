"""What a rank tells the others before a program: what it sends and receives, and the handles of where it receives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from commbench.buffers.cuda_ipc import Exporter
from commbench.buffers.device import DeviceBuffer
from commbench.core.dtypes import dtype
from commbench.core.errors import Unsupported
from commbench.core.program import Barrier, Copy, Irecv, Isend, Program, Recv, Send, View, WaitAll
from commbench.hardware.cuda_driver import CudaError

from .mailbox import Mailbox

NO_COLLECTIVES = "ipc_copy is point to point only: it copies from one process into another"
REFUSED = "CUDA IPC is refused here"
ACROSS = "CUDA IPC reaches the processes of one node only"
MOVES = (Send, Recv, Isend, Irecv, WaitAll, Barrier, Copy)
Place = tuple[str, int, int, int]  # buffer, offset in its first copy, distance of copies, bytes


@dataclass
class Offer:
    """In JSON: ranks are those of the world, as text. Messages are in the order of the program."""

    receives: dict[str, list[Place]] = field(default_factory=dict)  # by who sends them
    sends: dict[str, list[int]] = field(default_factory=dict)  # bytes, by who receives them
    handles: dict[str, str] = field(default_factory=dict)  # hex, by buffer
    counters: dict[str, int] = field(default_factory=dict)  # those that this rank writes: by index, as text
    pool: int = 1
    problem: str | None = None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def place(buffers: Mapping[str, DeviceBuffer], view: View) -> Place:
    buffer = buffers[view.buffer]
    itemsize = dtype(buffer.spec.dtype).itemsize
    count = buffer.spec.count - view.offset if view.count is None else view.count
    return view.buffer, buffer.offset(view.slot) + view.offset * itemsize, buffer.copy_bytes, count * itemsize


def check(program: Program, ranks: Sequence[int], here: Sequence[int]) -> None:
    """Raises Unsupported for what no copy can do. `here`: the ranks of this node."""
    steps = (*program.steps, *program.reset)
    if any(not isinstance(step, MOVES) for step in steps):
        raise Unsupported(NO_COLLECTIVES)
    if any(not isinstance(step, Copy) for step in program.reset):
        raise Unsupported("ipc_copy can't lower messages in a reset")
    away = [step for step in steps if isinstance(step, MOVES[:4]) and ranks[step.peer] not in here]
    if away:
        raise Unsupported(f"{ACROSS}: rank {ranks[away[0].peer]} is on another")
    if any(isinstance(step, Barrier) for step in program.steps) and not set(ranks) <= set(here):
        raise Unsupported(f"{ACROSS}, and this barrier is one of several")


def offer(
    program: Program, buffers: Mapping[str, DeviceBuffer], ranks: Sequence[int], exporter: Exporter, rank: int
) -> Offer:
    """Of this rank, without its counters. Raises Unsupported where memory can't be exported."""
    receives, sends = defaultdict(list), defaultdict(list)
    for step in program.steps:
        if isinstance(step, Recv | Irecv):
            receives[str(ranks[step.peer])].append(place(buffers, step.data))
        elif isinstance(step, Send | Isend):
            sends[str(ranks[step.peer])].append(place(buffers, step.data)[3])
    shared = {name for peer, places in receives.items() if peer != str(rank) for name, *_ in places}
    pool = max((buffer.pool for buffer in buffers.values()), default=1)
    try:
        handles = {name: exporter.export(buffers[name].allocation.address).hex() for name in sorted(shared)}
    except CudaError as error:
        raise Unsupported(f"{REFUSED}: rank {rank}, {error}") from error
    return Offer(dict(receives), dict(sends), handles, pool=pool)


def own_counters(mailbox: Mailbox, mine: int, peers: Iterable[int]) -> dict[str, int]:
    """What this rank has written so far, for the places in the node that it may talk to."""
    indices = [mailbox.arrived(mine)]
    for peer in peers:
        indices += [mailbox.posted(peer, mine), mailbox.sent(mine, peer)]
    return {str(index): mailbox.counters[index] for index in indices}


def mismatch(offers: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Why these programs can't talk to one another, by world rank; the same on all ranks."""
    for rank, one in offers.items():
        for peer, sizes in one["sends"].items():
            other = offers[int(peer)]
            expected = [place[3] for place in other["receives"].get(str(rank), [])]
            if sizes != expected:
                return f"rank {rank} sends {_said(sizes)} to rank {peer}, which receives {_said(expected)}"
            if one["pool"] != other["pool"]:
                return f"ranks {rank} and {peer} rotate through {one['pool']} and {other['pool']} copies"
        unsent = [peer for peer in one["receives"] if str(rank) not in offers[int(peer)]["sends"]]
        if unsent:
            return f"rank {rank} receives from rank {unsent[0]}, which sends nothing to it"
    return None


def _said(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} messages of {sum(sizes)} B"
