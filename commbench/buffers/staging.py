"""Programs whose messages go through host memory: every buffer that is moved gets a twin there, and copies.

What is sent is copied down before its step, what was received is copied up behind it, or behind the wait for it. The
copies are steps like any others: they lie between the stamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from commbench.core.errors import Unsupported
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    BufferSpec,
    Copy,
    Gather,
    Irecv,
    Isend,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Step,
    View,
    WaitAll,
)

TWIN = "@host"

Moved = tuple[tuple[View, ...], tuple[View, ...]]  # what a step sends, what it receives


def staged(program: Program, rank: int) -> Program:
    """The program of that rank with all messages in host memory. Raises Unsupported where nobody waits for a receive.

    `reset` stays on the device. Twins come behind the buffers of the program, under their names with @host.
    """
    steps = tuple(_staged(program.steps, rank))
    used = {view.buffer for step in steps for view in _views(step)}
    doubled = (replace(spec, name=spec.name + TWIN) for spec in program.buffers)
    return replace(program, buffers=(*program.buffers, *(spec for spec in doubled if spec.name in used)), steps=steps)


def twins(program: Program) -> tuple[BufferSpec, ...]:
    """The buffers of a staged program that lie in host memory."""
    return tuple(spec for spec in program.buffers if spec.name.endswith(TWIN))


def moved(step: Step, rank: int) -> Moved:
    """The views that a rank gives to a step and that it gets from it; where a root counts, on the root only."""
    match step:
        case Send(data, _) | Isend(data, _, _):
            return (data,), ()
        case Recv(data, _) | Irecv(data, _, _):
            return (), (data,)
        case Broadcast(data, root):
            return ((data,), ()) if rank == root else ((), (data,))
        case Reduce(send, recv, _, root) | Gather(send, recv, root):
            return (send,), (recv,) if rank == root else ()
        case Scatter(send, recv, root):
            return (send,) if rank == root else (), (recv,)
        case AllReduce(send, recv, _) | AllGather(send, recv) | ReduceScatter(send, recv, _) | AllToAll(send, recv):
            return (send,), (recv,)
    return (), ()


def _staged(steps: Iterable[Step], rank: int) -> Iterator[Step]:
    pending: dict[int, View] = {}
    for step in steps:
        sent, received = moved(step, rank)
        yield from (Copy(view, _twin(view)) for view in sent)
        yield step if isinstance(step, Copy) else _on_twins(step)
        if isinstance(step, Irecv):
            pending[step.request] = step.data
        elif isinstance(step, WaitAll):
            received = tuple(pending.pop(request) for request in step.requests if request in pending)
        if not isinstance(step, Irecv):
            yield from (Copy(_twin(view), view) for view in received)
    if pending:
        raise Unsupported(f"no WaitAll for the receives {sorted(pending)}: what they got would stay in host memory")


def _on_twins(step: Step) -> Step:
    changed: dict[str, Any] = {
        field.name: _twin(getattr(step, field.name))
        for field in fields(step)
        if isinstance(getattr(step, field.name), View)
    }
    return replace(step, **changed)


def _views(step: Step) -> Iterator[View]:
    values = (getattr(step, field.name) for field in fields(step))
    yield from (value for value in values if isinstance(value, View))


def _twin(view: View) -> View:
    return replace(view, buffer=view.buffer + TWIN)
