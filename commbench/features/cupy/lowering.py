"""Steps as calls of NCCL through CuPy, on one stream, by addresses, counts and types.

All messages posted between two waits are one group of calls, and so are the operations that consist
of messages in NCCL (gather, scatter, all_to_all). Nothing here waits: the engine's synchronisation
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

from commbench.backends.buffers.memory import DeviceBuffer
from commbench.core import program as steps
from commbench.core.errors import Unsupported
from commbench.core.program import Step, View
from commbench.engines.lowered import (
    NO_CALL,
    Call,
    Posted,
    Rotating,
    UnsupportedForms,
    check_form,
    displacements,
    in_place,
)

NCCL_UNSUPPORTED: UnsupportedForms = {
    (steps.AllToAll, True): "NCCL receives into blocks that it has not sent yet",
    (steps.AllToAllV, True): "NCCL receives into blocks that it has not sent yet",
}
INNER_MESSAGES = "cupy_nccl can start messages between all ranks only"
NULL_ADDRESS = 0  # the address of a buffer that only the root has

MessageSide = tuple[Any, View]  # one side of a message: NCCL's call and the memory
GroupedMessage = tuple[Any, View, int, int]  # NCCL's call, a view, the index of its block, the peer


def start_missing(program: steps.Program) -> str | None:
    """Why an operation of the program can't be started without waiting; None if all can."""
    for step in program.from_lead:
        if not isinstance(step, steps.Start):
            continue
        operation = steps.operation_of(step)
        if not isinstance(operation, steps.Send | steps.Recv):
            return _one_stream_text(operation)
        if steps.group_of(step) is not None:
            return INNER_MESSAGES
    return None


def _one_stream_text(operation: Step) -> str:
    return f"cupy_nccl has one stream, so it can't start a {type(operation).__name__} beside it"


def _block_messages(function: Any, view: View, counts: Sequence[int]) -> Iterator[GroupedMessage]:
    """A message with each rank that has a block in the view."""
    for peer, (begin, count) in enumerate(zip(displacements(counts), counts, strict=True)):
        if count:
            yield function, replace(view, offset=view.offset + begin, count=count), 0, peer


class CupyLowering:
    """`nccl` is cupy.cuda.nccl, `device` a CupyDevice, `barrier_address` one int8 of its memory,
    which barriers reduce.

    Raises Unsupported for what NCCL lacks.
    """

    def __init__(
        self,
        nccl: Any,
        communicator: Any,
        device: Any,
        buffers: Mapping[str, DeviceBuffer],
        barrier_address: int,
    ) -> None:
        self._nccl = nccl
        self._comm = communicator
        self._device = device
        self._buffers = buffers
        self._barrier_address = barrier_address
        self._rank = communicator.rank_id()
        self._size = communicator.size()
        self._stream = device.pointer
        self._posted = Posted[GroupedMessage]("cupy_nccl")
        self._is_inner = False
        self._addresses: dict[View, Rotating] = {}

    def call(self, step: Step) -> Call:
        """What is posted is one group of calls, which the next WaitAll starts."""
        match step:
            case steps.Start(steps.Send() | steps.Recv()) if self._is_inner:
                raise Unsupported(INNER_MESSAGES)
            case steps.Start(steps.Send() | steps.Recv() as message, request):
                return self._posted.start(self._grouped_message(message), request)
            case steps.Start():
                raise Unsupported(_one_stream_text(step.step))
            case steps.Send() | steps.Recv() if self._posted.messages:
                # between a start and its wait, so that a rank can send to itself
                self._posted.messages.append(self._grouped_message(step))
                return NO_CALL
            case steps.Send() | steps.Recv():
                function, view, _, peer = self._grouped_message(step)
                return Call(function, (*self._message(view), peer, self._stream))
            case steps.WaitAll(requests):
                return self._grouped(self._posted.completed(requests))
            case steps.Copy(source, target):
                self._posted.refuse()
                size = self._buffers[target.buffer].size_bytes(target)
                return Call(self._device.move, (self._address(target), self._address(source), size))
            case _:
                self._posted.refuse()
                return self._collective(step)

    def within(self, communicator: Any) -> CupyLowering:
        """A group of calls is of one communicator, so messages there can't be started."""
        inner = copy(self)
        inner._comm = communicator.comm
        inner._rank = communicator.comm.rank_id()
        inner._size = communicator.comm.size()
        inner._is_inner = True
        return inner

    def _grouped_message(self, step: steps.Message) -> GroupedMessage:
        function = self._comm.send if isinstance(step, steps.Send) else self._comm.recv
        return function, step.data, 0, step.peer

    def _collective(self, step: Step) -> Call:
        check_form(NCCL_UNSUPPORTED, step)
        comm = self._comm
        stream = self._stream
        match step:
            case steps.Barrier():
                element = self._barrier_address
                return Call(
                    comm.allReduce,
                    (element, element, 1, self._nccl.NCCL_INT8, self._nccl.NCCL_SUM, stream),
                )
            case steps.Broadcast(data, root):
                return Call(comm.bcast, (*self._message(data), root, stream))
            case steps.AllGather(send, recv):
                address, count, kind = self._message(send)
                return Call(comm.allGather, (address, self._address(recv), count, kind, stream))
            case steps.Gather(send, recv, root):
                return self._rooted(step, (comm.send, send), (comm.recv, recv), root)
            case steps.Scatter(send, recv, root):
                return self._rooted(step, (comm.recv, recv), (comm.send, send), root)
            case steps.AllToAll(send, recv):
                peers = range(self._size)
                sends = ((comm.send, send, peer, peer) for peer in peers)
                receives = ((comm.recv, recv, peer, peer) for peer in peers)
                return self._grouped([*sends, *receives], self._count(send) // self._size)
            case steps.AllToAllV(send, recv, send_counts, recv_counts):
                return self._grouped(
                    [
                        *_block_messages(comm.send, send, send_counts),
                        *_block_messages(comm.recv, recv, recv_counts),
                    ]
                )
            case steps.AllReduce(send, recv, reduction):
                address, *message = self._message(send)
                operation = self._constant(reduction)
                return Call(
                    comm.allReduce, (address, self._address(recv), *message, operation, stream)
                )
            case steps.Reduce(send, recv, reduction, root):
                address, *message = self._message(send)
                target = self._address(recv) if self._rank == root else NULL_ADDRESS
                operation = self._constant(reduction)
                return Call(comm.reduce, (address, target, *message, operation, root, stream))
            case steps.ReduceScatter(send, recv, reduction):
                address, *block = self._message(recv)
                operation = self._constant(reduction)
                return Call(
                    comm.reduceScatter, (self._address(send), address, *block, operation, stream)
                )
            case _:
                raise Unsupported(f"NCCL has no {type(step).__name__}")

    def _rooted(self, step: Step, leaf: MessageSide, at_root: MessageSide, root: int) -> Call:
        """Every rank has a message with the root, and the root one with every rank; in place none
        with itself."""
        leaf_call, leaf_view = leaf
        root_call, root_view = at_root
        skip_self = in_place(step) and self._rank == root
        messages: list[GroupedMessage] = [] if skip_self else [(leaf_call, leaf_view, 0, root)]
        if self._rank == root:
            peers = (peer for peer in range(self._size) if not (skip_self and peer == root))
            messages += [(root_call, root_view, peer, peer) for peer in peers]
        return self._grouped(messages, self._count(leaf_view))

    def _grouped(self, messages: Sequence[GroupedMessage], block_count: int | None = None) -> Call:
        """One group of messages of `block_count` elements each, or of as many as their views
        have."""
        if not messages:
            return NO_CALL
        rows = []  # of each message one call per copy of the rotation pool
        for function, view, block, peer in messages:
            buffer = self._buffers[view.buffer]
            kind = self._kind(view)
            count = self._count(view) if block_count is None else block_count
            begin = block * count * buffer.dtype.itemsize
            calls = [
                (function, (at + begin, count, kind, peer, self._stream))
                for at in buffer.addresses(view)
            ]
            rows.append(calls)
        return Call(self._group, (Rotating(tuple(map(list, zip(*rows, strict=True)))),))

    def _group(self, calls: list[tuple[Any, tuple[int, ...]]]) -> None:
        """A call that fails must not leave the group open: later calls would only be added to
        it."""
        self._nccl.groupStart()
        try:
            for function, args in calls:
                function(*args)
        except Exception:
            with suppress(Exception):
                self._nccl.groupEnd()
            raise
        self._nccl.groupEnd()

    def _message(self, view: View) -> tuple[Rotating, int, int]:
        """Address, elements and type."""
        return self._address(view), self._count(view), self._kind(view)

    def _address(self, view: View) -> Rotating:
        """The same object for the same view: the engine rotates each once."""
        if view not in self._addresses:
            self._addresses[view] = Rotating(self._buffers[view.buffer].addresses(view))
        return self._addresses[view]

    def _count(self, view: View) -> int:
        return view.count_in(self._buffers[view.buffer].spec)

    def _kind(self, view: View) -> int:
        kind = self._buffers[view.buffer].dtype
        return self._constant(kind.word if kind.is_float8 else kind.name)  # only moved

    def _constant(self, name: str) -> int:
        """NCCL's number of a data type or a reduction; an older CuPy lacks the newer ones."""
        name = f"NCCL_{name.upper()}"
        value: int | None = getattr(self._nccl, name, None)
        if value is None:
            raise Unsupported(f"this CuPy does not have {name}; install a newer one")
        return value
