"""A world of one rank in this process, and communicators of commbench's NCCL backends in it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from commbench.core.program import (
    AllGather,
    BufferSpec,
    Program,
    Recv,
    Send,
    Start,
    View,
    WaitAll,
)
from commbench.core.variables import Mode, TimerName
from commbench.engines.device import DeviceRunner
from commbench.runtime.control import hosted_world

# 8 B out of place: one rank alone moves nothing in place
PROGRAM = Program((BufferSpec("send", 2, "float32"), BufferSpec("recv", 2, "float32")),
                  (AllGather(View("send"), View("recv")),))  # fmt: skip
# 8 B to itself: for NCCL a collective of one rank is a copy, not a launch of a kernel of its own
TO_ITSELF = Program(
    PROGRAM.buffers,
    (Start(Recv(View("recv"), 0), 0), Start(Send(View("send"), 0), 1), WaitAll((0, 1))),
)


def opened(library: str) -> Any:
    """A communicator of NCCL on the first GPU, as `backend=nccl` or `backend=cupy_nccl` opens
    it."""
    world, control = hosted_world(1, 1)
    if library == "cupy":
        from commbench.features.cupy.backend import CupyNccl

        return CupyNccl().open(world, control)
    import torch

    from commbench.backends.torch.nccl import Nccl

    distributed: Any = torch.distributed
    meeting: Any = SimpleNamespace(store=distributed.HashStore())
    return Nccl().open(world, meeting)


def runner(
    communicator: Any,
    timer: TimerName,
    samples: int = 1,
    connected: bool = True,
    program: Program = PROGRAM,
) -> tuple[DeviceRunner, Any]:
    """`samples` runs of the program between two stamps, and the buffers that have to outlive it."""
    buffers = {0: {spec.name: communicator.allocate(spec, 1) for spec in program.buffers}}
    mode = Mode("python", "barrier", timer=timer, device="cuda", connected=connected)
    return communicator.prepare({0: program.repeated(samples)}, buffers, mode), buffers


def answer(value: dict[str, Any]) -> None:
    """The last line of a probe's output, which check.py reads."""
    print(json.dumps(value), flush=True)
