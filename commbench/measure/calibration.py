"""What is measured before the first case: the time of an empty sample and of a call, and rates of
copies."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.errors import Unsupported
from commbench.core.program import AllReduce, BufferSpec, Copy, Program, View
from commbench.core.protocols import Communicator, Runner
from commbench.core.variables import Mode, TimerName
from commbench.engines.lowered import Lowered, PythonRunner, now_ns
from commbench.hardware import nvml
from commbench.stats.series import Series

CALL_REPETITIONS = 200
COPY_REPETITIONS = 20
EMPTY_REPETITIONS = 20_000
COPIES_PER_SAMPLE = 8  # so that waiting for them does not affect the rate
COPY_BYTES = 256 * 2**20  # beyond any GPU's cache
# copied first; a device slower than any GPU would need seconds for 256 MiB
CACHED_COPY_BYTES = 16 * 2**20
SLOW_COPY_GB_PER_S = 20.0
LEAST_CORE_COPY_BYTES = 2**25
CORE_COPIES = 3
WAKE_BYTES = 16 * 2**20
WAKE_S = 0.3  # that an idle link may take to reach its full rate


def empty_samples_s(engines: Collection[str]) -> dict[str, float]:
    """Median seconds between the stamps of a repetition without steps, by engine, for those engines
    that run here.

    Every sample includes them; they are never subtracted (method: Hoefler & Belli 2015, timer
    overhead).
    """
    nothing: Lowered[Any] = Lowered((), (), ())
    runners: dict[str, Runner] = {"python": PythonRunner(nothing, 1)}
    if "native" in engines:
        from commbench.engines.native import NativeRunner

        runners["native"] = NativeRunner(nothing, 1, None)
    return {
        name: median_elapsed_s(runners[name](EMPTY_REPETITIONS)) for name in {*engines} & {*runners}
    }


def wake_links(communicator: Communicator) -> None:
    """Copy to the GPU until NVML shows its PCIe link at its full rate, for WAKE_S at most: that of
    an idle GPU may be slower (GeForce: generation 1), and limits follow from it."""
    if not _has_slow_link():
        return
    until_s = time.monotonic() + WAKE_S
    with suppress(MemoryError):
        buffer = communicator.allocate(BufferSpec("wake", WAKE_BYTES, "uint8"), 1)
        while _has_slow_link() and time.monotonic() < until_s:
            buffer.write(None)


def _has_slow_link() -> bool:
    return any((gpu.pcie_generation or 0) < (gpu.pcie_generation_max or 0) for gpu in nvml.gpus())


def call_overheads_s(communicator: Communicator, cases: Iterable[Planned]) -> dict[str, float]:
    """Seconds of an all_reduce on a group of one rank, by the host's clock, for each engine of the
    cases.

    Without staging if a case has none.
    """
    overheads = dict[str, float]()
    data = View("data")
    program = Program((BufferSpec("data", 1, "float32"),), (AllReduce(data, data, "sum"),))
    modes = sorted(
        (planned.case.mode for planned in cases if not planned.skip),
        key=lambda mode: mode.staging,
        reverse=True,
    )
    for engine, mode in {mode.engine: mode for mode in modes}.items():
        timer: TimerName = "host" if mode.device == "cpu" else "host_sync"
        with suppress(Unsupported, MemoryError):
            buffers = {0: {"data": communicator.allocate(program.buffers[0], 1)}}
            runner = communicator.prepare(
                {0: program}, buffers, replace(mode, sync="none", timer=timer)
            )
            overheads[engine] = median_elapsed_s(runner(CALL_REPETITIONS))
    return overheads


def copy_gb_per_s(communicator: Communicator, cases: Iterable[Planned]) -> float | None:
    """Rate of a copy within the GPU of this rank, in 10^9 B/s; None on CPUs and if it can't be
    measured."""
    modes = [
        planned.case.mode for planned in cases if planned.case.device == "cuda" and not planned.skip
    ]
    if not modes:
        return None
    mode = replace(modes[0], sync="none", timer="host_sync", staging="none")
    with suppress(Unsupported, MemoryError):
        rate = _copy_gb_per_s(communicator, mode, CACHED_COPY_BYTES)
        return rate if rate < SLOW_COPY_GB_PER_S else _copy_gb_per_s(communicator, mode, COPY_BYTES)
    return None


def _copy_gb_per_s(communicator: Communicator, mode: Mode, copy_bytes: int) -> float:
    """Raises Unsupported, MemoryError."""
    specs = tuple(BufferSpec(name, copy_bytes, "uint8") for name in ("source", "target"))
    program = Program(specs, (Copy(View("source"), View("target")),) * COPIES_PER_SAMPLE)
    buffers = {0: {spec.name: communicator.allocate(spec, 1) for spec in specs}}
    runner = communicator.prepare({0: program}, buffers, mode)
    runner(1)
    return COPIES_PER_SAMPLE * copy_bytes / median_elapsed_s(runner(COPY_REPETITIONS)) / 1e9


def core_copy_gb_per_s(cache_bytes: int) -> float | None:
    """The best rate of some copies by this core, in 10^9 B/s, of more than the caches hold; None
    where there is no memory for it."""
    size = max(LEAST_CORE_COPY_BYTES, cache_bytes)
    try:
        source = np.ones(size, np.uint8)
        target = np.ones(size, np.uint8)
    except MemoryError:
        return None
    return size / float(copy_times(target, source, CORE_COPIES).min()) / 1e9


def copy_times(target: NDArray[np.uint8], source: NDArray[np.uint8], copies: int) -> Series:
    """Seconds of each of some copies by this core; the first ones load the memory into the
    cache."""
    stamps = [now_ns()]
    for _ in range(copies):
        np.copyto(target, source)
        stamps.append(now_ns())
    return np.diff(np.array(stamps)) * 1e-9


def median_elapsed_s(stamps: NDArray[np.int64]) -> float:
    return float(np.median(stamps[0, :, 1] - stamps[0, :, 0])) * 1e-9
