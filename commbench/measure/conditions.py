"""The conditions recorded with each case: what a call costs, wires and GPUs, what the library reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.buffers.cuda_ipc import CudaExporter, probe_cuda_ipc
from commbench.config.settings import Settings
from commbench.core.case import Mode, Planned, World
from commbench.core.clock import ClockCost
from commbench.core.errors import Unsupported
from commbench.core.program import AllReduce, BufferSpec, Copy, Program, View
from commbench.core.protocols import Communicator, Control
from commbench.hardware.link_limits import Wire

from .plan import Facts
from .preflight import MEETING_S, wires
from .transports import LogReader, TransportEvidence, carriers, gather_evidence

CALL_REPETITIONS, COPY_REPETITIONS = 200, 20
COPIES_PER_SAMPLE = 8  # so that waiting for them is not part of the rate
COPY_BYTES = 256 * 2**20  # beyond any GPU's cache


@dataclass(frozen=True)
class Conditions:
    """What a row needs beside its case and its samples: the same for all cases of a run."""

    clock: ClockCost
    overhead_s: Mapping[str, float]  # of a call, by engine
    cores: float  # that the ranks of a node may use
    threads_per_rank: int
    cache_bytes: int
    evidence: TransportEvidence
    world: World
    wires: tuple[Wire | None, ...]  # of each node


class ConditionsReader:
    """Reads the conditions of an opened library. All ranks make its calls together; only rank 0 has a `run`."""

    def __init__(
        self, settings: Settings, world: World, control: Control, run: dict[str, Any], communicator: Communicator
    ) -> None:
        self._settings, self._world, self._control, self._run = settings, world, control, run
        self._communicator, self._log = communicator, LogReader()
        self._log.read(communicator.facts(), range(world.size))

    def subset(self, members: tuple[int, ...]) -> Communicator | None:
        """A communicator of these ranks; what the library logs meanwhile belongs to them."""
        communicator = self._communicator.subset(members)
        if self._log.available:
            self._log.read(self._communicator.facts(), members)
        return communicator

    def read(self, single: Communicator | None, jobs: Sequence[Planned], clock: ClockCost, facts: Facts) -> Conditions:
        """`single` is the group of rank 0 alone, None on other ranks, where measured values stay empty."""
        library, overhead_s = self._communicator.facts(), dict[str, float]()
        evidence = gather_evidence(self._world, self._control, library, self._run, self._log, MEETING_S)
        if self._settings.device == "cuda" and "ipc_probe" not in library:
            probed = probe_cuda_ipc(CudaExporter, self._world, self._control, MEETING_S)
            self._run |= {"ipc_probe": probed} if self._run else {}
        if single is not None and len(self._world.hosted) == 1:
            overhead_s = call_overheads_s(single, jobs)
            evidence = replace(evidence, copy_gb_per_s=copy_gb_per_s(single, jobs))
        self._control.agree(None, MEETING_S, "calibration")
        return Conditions(
            clock=clock,
            overhead_s=overhead_s,
            cores=facts.cores,
            threads_per_rank=self._settings.backend.threads_per_rank,
            cache_bytes=facts.cache_bytes,
            evidence=evidence,
            world=self._world,
            wires=carriers(wires(self._run), self._run["provenance"]["nodes"], library) if self._run else (),
        )

    def after(self, conditions: Conditions, job: Planned, control: Control, deadline_s: float) -> Conditions:
        """With what the library has logged during a case, whose ranks call it: pairs connect in their first case."""
        if not self._log.available:
            return conditions
        self._log.read(self._communicator.facts(), job.members)
        pairs = control.gather(self._log.pairs(), deadline_s, f"transports of {job.case}")
        return replace(conditions, evidence=conditions.evidence.extended(pairs, self._log.algorithms))

    def transports(self, conditions: Conditions) -> dict[str, Any]:
        """For run.json: the transports of each pair that has communicated; empty on other ranks than 0."""
        kinds = conditions.evidence.kinds.items()
        return {"transports": {f"{a}-{b}": texts for (a, b), texts in sorted(kinds)}} if self._run else {}


# ---------------------------------------------------------------- what a call costs when nothing has to travel


def call_overheads_s(communicator: Communicator, jobs: Iterable[Planned]) -> dict[str, float]:
    """Seconds per call, by the engines of the jobs that are not skipped; without staging where a job has none."""
    overheads: dict[str, float] = {}
    modes = sorted((job.case.mode for job in jobs if not job.skip), key=lambda mode: mode.staging, reverse=True)
    for engine, mode in {mode.engine: mode for mode in modes}.items():
        with suppress(Unsupported, MemoryError):
            overheads[engine] = call_overhead_s(communicator, mode)
    return overheads


def call_overhead_s(communicator: Communicator, mode: Mode) -> float:
    """Seconds of an all_reduce on a group of one rank, by the host's clock. Raises Unsupported."""
    timing_mode = "host" if mode.device == "cpu" else "host_sync"
    data = View("data")
    program = Program((BufferSpec("data", 1, "float32"),), (AllReduce(data, data, "sum"),))
    buffers = {0: {"data": communicator.allocate(program.buffers[0], 1)}}
    runner = communicator.prepare({0: program}, buffers, replace(mode, sync="none", timing_mode=timing_mode))
    return _median_elapsed_s(runner(CALL_REPETITIONS))


def copy_gb_per_s(communicator: Communicator, jobs: Iterable[Planned]) -> float | None:
    """Rate of a copy within the GPU of this rank, 10^9 B/s; None on CPUs and where it can't be measured."""
    modes = [job.case.mode for job in jobs if job.case.device == "cuda" and not job.skip]
    if not modes:
        return None
    specs = tuple(BufferSpec(name, COPY_BYTES, "uint8") for name in ("source", "target"))
    program = Program(specs, (Copy(View("source"), View("target")),) * COPIES_PER_SAMPLE)
    mode = replace(modes[0], sync="none", timing_mode="host_sync", staging="none")
    with suppress(Unsupported, MemoryError):
        buffers = {0: {spec.name: communicator.allocate(spec, 1) for spec in specs}}
        runner = communicator.prepare({0: program}, buffers, mode)
        runner(1)
        return COPIES_PER_SAMPLE * COPY_BYTES / _median_elapsed_s(runner(COPY_REPETITIONS)) / 1e9
    return None


def _median_elapsed_s(stamps: NDArray[np.int64]) -> float:
    return float(np.median(stamps[0, :, 1] - stamps[0, :, 0])) * 1e-9
