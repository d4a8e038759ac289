"""Communicators that are opened, captured in graphs and closed again and again; then a capture that
fails.

`python lifetime.py torch|cupy`. Reports what each round took, the memory that is left, and what
works after the capture that failed.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from world import answer, opened, runner

from commbench.core.errors import CommunicationError, Unsupported

ROUNDS = 20


def free_bytes(library: str) -> int:
    if library == "torch":
        import torch

        cuda: Any = torch.cuda
        return int(cuda.mem_get_info()[0])
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[0])


def one_round(library: str) -> float:
    begin_s = time.monotonic()
    communicator = opened(library)
    measured, buffers = runner(communicator, "graph", 20)
    measured(3)
    del measured, buffers
    gc.collect()  # a graph keeps its communicator alive
    communicator.close()
    return time.monotonic() - begin_s


def waiting(library: str, device: Any) -> Callable[[], None]:
    """Waits for the stream that is captured: torch captures on a stream of its own."""
    if library == "cupy":
        wait: Callable[[], None] = device.synchronise
        return wait
    import torch

    cuda: Any = torch.cuda
    return lambda: cuda.current_stream().synchronize()


def after_a_failed_capture(library: str) -> dict[str, Any]:
    """To wait for the captured stream is illegal; cases with other modes must go on, and graphs may
    be refused."""
    communicator = opened(library)
    device = communicator._gpu if library == "torch" else communicator._device
    seen: dict[str, Any] = {}
    try:
        device.capture(waiting(library, device))
        seen["capture"] = "was not refused"
    except Unsupported as error:
        seen["capture"] = str(error)
    for mode in ("host_sync", "throughput", "graph"):
        try:
            measured, buffers = runner(communicator, mode, 5)
            seen[mode] = f"{len(measured(10)[0])} repetitions"
            del measured, buffers
        except (Unsupported, CommunicationError) as error:
            seen[mode] = f"{type(error).__name__}: {error}"
    communicator.close()
    return seen


def main(library: str) -> None:
    first_s = one_round(library)  # creates the context
    free_before = free_bytes(library)
    rounds_s = [one_round(library) for _ in range(ROUNDS)]
    lost_bytes = free_before - free_bytes(library)
    failed = after_a_failed_capture(library)
    answer(
        {
            "library": library,
            "first_s": first_s,
            "rounds_s": rounds_s,
            "lost_bytes": lost_bytes,
            "after": failed,
        }
    )


if __name__ == "__main__":
    main(sys.argv[1])
