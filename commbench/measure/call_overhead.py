"""What a call costs when nothing has to travel."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Mode, Planned
from commbench.core.errors import Unsupported
from commbench.core.program import AllReduce, BufferSpec, Copy, Program, View
from commbench.core.protocols import Communicator

FLOOR_REPETITIONS, COPY_REPETITIONS = 200, 20
COPIES_A_SAMPLE = 8  # so that waiting for them is no part of the rate
COPY_BYTES = 256 * 2**20  # beyond any GPU's cache


def call_overheads_s(communicator: Communicator, jobs: Iterable[Planned]) -> dict[str, float]:
    """By the engines of the jobs that are not skipped; without copies of ours where some have none."""
    floors: dict[str, float] = {}
    modes = sorted((job.case.mode for job in jobs if not job.skip), key=lambda mode: mode.staging, reverse=True)
    for engine, mode in {mode.engine: mode for mode in modes}.items():
        with suppress(Unsupported, MemoryError):
            floors[engine] = call_overhead_s(communicator, mode)
    return floors


def call_overhead_s(communicator: Communicator, mode: Mode) -> float:
    """Seconds of an all_reduce on a group of one rank, by the host's clock. Raises Unsupported."""
    waited = "host" if mode.device == "cpu" else "host_sync"
    data = View("data")
    program = Program((BufferSpec("data", 1, "float32"),), (AllReduce(data, data, "sum"),))
    buffers = {0: {"data": communicator.allocate(program.buffers[0], 1)}}
    runner = communicator.prepare({0: program}, buffers, replace(mode, sync="none", timing_mode=waited))
    return _median_s(runner(FLOOR_REPETITIONS))


def copy_gb_per_s(communicator: Communicator, jobs: Iterable[Planned]) -> float | None:
    """Rate of a copy within the GPU of this rank, 10^9 B/s; None on CPUs and where it can't be had."""
    modes = [job.case.mode for job in jobs if job.case.device == "cuda" and not job.skip]
    if not modes:
        return None
    specs = tuple(BufferSpec(name, COPY_BYTES, "uint8") for name in ("source", "target"))
    copies = (Copy(View("source"), View("target")),) * COPIES_A_SAMPLE
    program = Program(specs, copies)
    mode = replace(modes[0], sync="none", timing_mode="host_sync", staging="none")
    with suppress(Unsupported, MemoryError):
        buffers = {0: {spec.name: communicator.allocate(spec, 1) for spec in specs}}
        runner = communicator.prepare({0: program}, buffers, mode)
        runner(1)
        return COPIES_A_SAMPLE * COPY_BYTES / _median_s(runner(COPY_REPETITIONS)) / 1e9
    return None


def _median_s(stamps: NDArray[np.int64]) -> float:
    return float(np.median(stamps[0, :, 1] - stamps[0, :, 0])) * 1e-9
