"""A simulated world on a virtual clock with planted truth: for tests, and to try a configuration
anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from commbench.backends.buffers.memory import HostBuffer
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Backend, Buffer, Communicator, Control
from commbench.core.variables import Case, Device, Mode

from .model import Model
from .payload import Buffers
from .virtual import VirtualRunner


@dataclass(frozen=True)
class Simulated(Backend):
    """See Backend. One process hosts all ranks, so it needs no launcher."""

    name = "simulated"
    devices = ("cpu",)
    engines = ("virtual",)
    launchers = "none"
    axes = ("staging",)
    starts_copies = True
    threads_per_rank = 0
    model: Model = field(default_factory=Model)
    seed: int = 0

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """None: the model stands for a machine, and a case is the same on a slower machine."""
        return ()

    def missing(self, device: Device = "cpu") -> str | None:
        return None

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cpu") -> SimulatedCommunicator:
        for name, rank in self.model.planted_ranks:
            if rank >= world.size:
                allowed = f"the ranks of this world are 0 to {world.size - 1}"
                raise ConfigError(f"backend.model.{name} names rank {rank}; {allowed}")
        nodes = tuple(map(world.node_of, range(world.size)))
        if self.model.slow_node not in (None, *nodes):
            raise ConfigError(
                f"backend.model.slow_node names node {self.model.slow_node}; the nodes of this"
                f" world are 0 to {max(nodes)}"
            )
        return SimulatedCommunicator(self, nodes)


class SimulatedCommunicator(Communicator):
    """See Communicator. `nodes` holds the node of each of its ranks."""

    def __init__(self, backend: Simulated, nodes: tuple[int, ...]) -> None:
        self._backend = backend
        self._nodes = nodes
        self.size = len(nodes)
        self.hosted = tuple(range(len(nodes)))

    def subset(self, ranks: Sequence[int]) -> SimulatedCommunicator:
        return SimulatedCommunicator(self._backend, tuple(self._nodes[rank] for rank in ranks))

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return HostBuffer(spec, pool)

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> VirtualRunner:
        model = self._backend.model
        seed = self._noise_seed(mode)
        return VirtualRunner(programs, cast(Buffers, buffers), model, seed, self._nodes)

    def _noise_seed(self, mode: Mode) -> int:
        """Differs between visits, as noise does, and between models: one machine's noise says
        nothing about that of another."""
        text = f"{self._backend.seed}/{self._backend.model}/{mode.visit}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")

    def facts(self) -> dict[str, Any]:
        contention = "none: operations at once do not slow one another"
        return {"library": "commbench simulated", "clock": "virtual", "contention": contention}

    def close(self, abort: bool = False) -> None:
        pass
