"""What a call costs when nothing has to travel."""

from __future__ import annotations

import numpy as np

from commbench import contracts as c

FLOOR_REPETITIONS = 200


def floor_s(communicator: c.Communicator, engine: str) -> float:
    """Seconds of an all_reduce on a group of one rank. Raises Unsupported."""
    data = c.View("data")
    program = c.Program((c.BufferSpec("data", 1, "float32"),), (c.AllReduce(data, data, "sum"),))
    buffers = {0: {"data": communicator.allocate(program.buffers[0], 1)}}
    stamps = communicator.prepare({0: program}, buffers, c.Mode(engine))(FLOOR_REPETITIONS)
    return float(np.median(stamps[0, :, 1] - stamps[0, :, 0])) * 1e-9
