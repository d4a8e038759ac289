"""What is told beside the times: floors of calls, the machine's wires and GPUs, what the library says it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commbench.buffers.cuda_ipc import CudaExporter, probe_cuda_ipc
from commbench.config.settings import Settings
from commbench.core.case import Planned, World
from commbench.core.clock import ClockCost
from commbench.core.protocols import Communicator, Control

from .call_overhead import call_overheads_s, copy_gb_per_s
from .plan import Facts
from .preflight import MEETING_S, wires
from .rows import Circumstances
from .transports import LogReader, carriers, gathered


class Conditions:
    """Of an opened library. All ranks have one and make its calls together; only rank 0's `run` is written down."""

    def __init__(
        self, settings: Settings, world: World, control: Control, run: dict[str, Any], communicator: Communicator
    ) -> None:
        self._settings, self._world, self._control, self._run = settings, world, control, run
        self._communicator, self._log = communicator, LogReader()
        self._log.look(communicator.facts(), range(world.size))

    def subset(self, members: tuple[int, ...]) -> Communicator | None:
        """A communicator of these ranks; what it says when it connects is theirs."""
        made = self._communicator.subset(members)
        if self._log.there:
            self._log.look(self._communicator.facts(), members)
        return made

    def around(
        self, alone: Communicator | None, jobs: Sequence[Planned], clock: ClockCost, facts: Facts
    ) -> Circumstances:
        """`alone` is the group of rank 0, None on the others. What only rank 0 knows is empty on the others, too."""
        library, floors = self._communicator.facts(), dict[str, float]()
        evidence = gathered(self._world, self._control, library, self._run, self._log, MEETING_S)
        if self._settings.device == "cuda" and "ipc_probe" not in library:
            found = probe_cuda_ipc(CudaExporter, self._world, self._control, MEETING_S)
            self._run |= {"ipc_probe": found} if self._run else {}
        if alone is not None and len(self._world.hosted) == 1:
            floors = call_overheads_s(alone, jobs)
            evidence = replace(evidence, copy_gb_per_s=copy_gb_per_s(alone, jobs))
        self._control.agree(None, MEETING_S, "calibration")
        return Circumstances(
            clock=clock,
            overhead_s=floors,
            cores=facts.cores,
            threads_per_rank=self._settings.backend.threads_per_rank,
            cache_bytes=facts.cache_bytes,
            evidence=evidence,
            world=self._world,
            wires=carriers(wires(self._run), self._run["provenance"]["nodes"], library) if self._run else (),
        )

    def heard(self, around: Circumstances, job: Planned, inner: Control, deadline_s: float) -> Circumstances:
        """With what the library has said in a case; its ranks call it. Pairs connect in their first case."""
        if not self._log.there:
            return around
        self._log.look(self._communicator.facts(), job.members)
        told = inner.gather(self._log.told(), deadline_s, f"transports of {job.case}")
        return replace(around, evidence=around.evidence.knowing(told, self._log.chosen))

    def transports(self, around: Circumstances) -> dict[str, Any]:
        """For run.json: the transports of each pair that has talked; nothing on other ranks than 0."""
        kinds = around.evidence.kinds.items()
        return {"transports": {f"{a}-{b}": texts for (a, b), texts in sorted(kinds)}} if self._run else {}
