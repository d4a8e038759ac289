"""What is told beside the times: floors of calls, the machine's wires and GPUs, what the library says it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commbench import contracts as c
from commbench.clock import ClockCost
from commbench.evidence import LogReader, carriers, gathered
from commbench.floor import copy_gb_per_s, floors_s
from commbench.ipc_memory import CudaExporter
from commbench.ipc_probe import probe
from commbench.plan import Facts
from commbench.preflight import MEETING_S, wires
from commbench.rows import Circumstances
from commbench.settings import Settings


class Witness:
    """Of an opened library. All ranks have one and make its calls together; only rank 0's `run` is written down."""

    def __init__(
        self, settings: Settings, world: c.World, control: c.Control, run: dict[str, Any], communicator: c.Communicator
    ) -> None:
        self._settings, self._world, self._control, self._run = settings, world, control, run
        self._communicator, self._log = communicator, LogReader()
        self._log.look(communicator.facts(), range(world.size))

    def subset(self, members: tuple[int, ...]) -> c.Communicator | None:
        """A communicator of these ranks; what it says when it connects is theirs."""
        made = self._communicator.subset(members)
        if self._log.there:
            self._log.look(self._communicator.facts(), members)
        return made

    def around(
        self, alone: c.Communicator | None, jobs: Sequence[c.Planned], clock: ClockCost, facts: Facts
    ) -> Circumstances:
        """`alone` is the group of rank 0, None on the others. What only rank 0 knows is empty on the others, too."""
        library, floors = self._communicator.facts(), dict[str, float]()
        evidence = gathered(self._world, self._control, library, self._run, self._log, MEETING_S)
        if self._settings.device == "cuda" and "ipc_probe" not in library:
            found = probe(CudaExporter, self._world, self._control, MEETING_S)
            self._run |= {"ipc_probe": found} if self._run else {}
        if alone is not None and len(self._world.hosted) == 1:
            floors = floors_s(alone, jobs)
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

    def heard(self, around: Circumstances, job: c.Planned, inner: c.Control, deadline_s: float) -> Circumstances:
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
