"""Communicators that are opened, captured in graphs and closed again and again; 8 B before and
after a capture; then a capture that fails.

`python lifetime.py torch|cupy`. Reports what each round took, the memory that is left, what a
message takes after captures, and what works after the capture that failed.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from world import TO_ITSELF, answer, opened, runner

from commbench.core.errors import CommunicationError, Unsupported

ROUNDS = 20
MESSAGES = 1000


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


def message_us(communicator: Any) -> float:
    """The median of 8 B to itself, not captured, by the host's clock."""
    measured, buffers = runner(communicator, "host_sync", program=TO_ITSELF)
    stamps = measured(MESSAGES)[0][MESSAGES // 10 :]
    del measured, buffers
    return float(np.median(stamps[:, 1] - stamps[:, 0])) * 1e-3


def capture_message(communicator: Any) -> None:
    measured, buffers = runner(communicator, "graph", 20, program=TO_ITSELF)
    measured(3)
    del measured, buffers


def around_captures(library: str) -> dict[str, float]:
    """In us: a message before a capture, after one in the group that is there for graphs, and after
    one in its own group."""
    communicator = opened(library)
    message_us(communicator)  # warms up
    times = {"before": message_us(communicator)}
    capture_message(communicator.for_graphs((0,)))
    times["after_capture_for_graphs"] = message_us(communicator)
    capture_message(communicator)
    times["after_own_capture"] = message_us(communicator)
    gc.collect()  # a graph keeps its communicator alive
    communicator.close()
    return times


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
    device = communicator.gpu if library == "torch" else communicator.device
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
    messages_us = around_captures(library)
    failed = after_a_failed_capture(library)
    answer(
        {
            "library": library,
            "first_s": first_s,
            "rounds_s": rounds_s,
            "lost_bytes": lost_bytes,
            "messages_us": messages_us,
            "after": failed,
        }
    )


if __name__ == "__main__":
    main(sys.argv[1])
