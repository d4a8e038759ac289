"""What a call costs when nothing has to travel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commbench import contracts as c

FLOOR_REPETITIONS = 200


def floor_s(communicator: c.Communicator, mode: c.Mode) -> float:
    """Seconds of an all_reduce on a group of one rank, by the host's clock. Raises Unsupported."""
    waited = "host" if mode.device == "cpu" else "host_sync"
    data = c.View("data")
    program = c.Program((c.BufferSpec("data", 1, "float32"),), (c.AllReduce(data, data, "sum"),))
    buffers = {0: {"data": communicator.allocate(program.buffers[0], 1)}}
    runner = communicator.prepare({0: program}, buffers, replace(mode, sync="none", timing_mode=waited))
    stamps = runner(FLOOR_REPETITIONS)
    return float(np.median(stamps[0, :, 1] - stamps[0, :, 0])) * 1e-9
