"""Programs whose messages go through host memory: every buffer that is moved gets a twin there, and copies.

What is sent is copied down before its step, what was received is copied up behind it, or behind the wait for it. The
copies are steps like any others: they lie between the stamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from commbench import contracts as c
from commbench.errors import Unsupported

TWIN = "@host"

Moved = tuple[tuple[c.View, ...], tuple[c.View, ...]]  # what a step sends, what it receives


def staged(program: c.Program, rank: int) -> c.Program:
    """The program of that rank with all messages in host memory. Raises Unsupported where nobody waits for a receive.

    `reset` stays on the device. Twins come behind the buffers of the program, under their names with @host.
    """
    steps = tuple(_staged(program.steps, rank))
    used = {view.buffer for step in steps for view in _views(step)}
    doubled = (replace(spec, name=spec.name + TWIN) for spec in program.buffers)
    return replace(program, buffers=(*program.buffers, *(spec for spec in doubled if spec.name in used)), steps=steps)


def twins(program: c.Program) -> tuple[c.BufferSpec, ...]:
    """The buffers of a staged program that lie in host memory."""
    return tuple(spec for spec in program.buffers if spec.name.endswith(TWIN))


def moved(step: c.Step, rank: int) -> Moved:
    """The views that a rank gives to a step and that it gets from it; where a root counts, on the root only."""
    match step:
        case c.Send(data, _) | c.Isend(data, _, _):
            return (data,), ()
        case c.Recv(data, _) | c.Irecv(data, _, _):
            return (), (data,)
        case c.Broadcast(data, root):
            return ((data,), ()) if rank == root else ((), (data,))
        case c.Reduce(send, recv, _, root) | c.Gather(send, recv, root):
            return (send,), (recv,) if rank == root else ()
        case c.Scatter(send, recv, root):
            return (send,) if rank == root else (), (recv,)
        case (
            c.AllReduce(send, recv, _)
            | c.AllGather(send, recv)
            | c.ReduceScatter(send, recv, _)
            | c.AllToAll(send, recv)
        ):
            return (send,), (recv,)
    return (), ()


def _staged(steps: Iterable[c.Step], rank: int) -> Iterator[c.Step]:
    pending: dict[int, c.View] = {}
    for step in steps:
        sent, received = moved(step, rank)
        yield from (c.Copy(view, _twin(view)) for view in sent)
        yield step if isinstance(step, c.Copy) else _on_twins(step)
        if isinstance(step, c.Irecv):
            pending[step.request] = step.data
        elif isinstance(step, c.WaitAll):
            received = tuple(pending.pop(request) for request in step.requests if request in pending)
        if not isinstance(step, c.Irecv):
            yield from (c.Copy(_twin(view), view) for view in received)
    if pending:
        raise Unsupported(f"no WaitAll for the receives {sorted(pending)}: what they got would stay in host memory")


def _on_twins(step: c.Step) -> c.Step:
    changed: dict[str, Any] = {
        field.name: _twin(getattr(step, field.name))
        for field in fields(step)
        if isinstance(getattr(step, field.name), c.View)
    }
    return replace(step, **changed)


def _views(step: c.Step) -> Iterator[c.View]:
    values = (getattr(step, field.name) for field in fields(step))
    yield from (value for value in values if isinstance(value, c.View))


def _twin(view: c.View) -> c.View:
    return replace(view, buffer=view.buffer + TWIN)
