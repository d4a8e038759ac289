"""Copies through CUDA IPC: one process opens the GPU memory of another and copies into it, with no library between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from commbench.buffers.cuda_ipc import CudaExporter, Exporter, probe_cuda_ipc, probe_refusals
from commbench.core.case import Case, World
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend, Control
from commbench.hardware.cuda_driver import CudaError, driver_missing

from .communicator import MEETING_S, Desk, IpcCommunicator
from .handshake import NO_COLLECTIVES
from .mailbox import Mailbox, create

CONTRADICTION = "cuda_ipc=off contradicts backend=ipc_copy, which is a copy through CUDA IPC; leave it at auto or on"
HOST_CLOCK = "ipc_copy tells its receiver from the host, so only timing_mode=host_sync times a message"


@dataclass(frozen=True)
class IpcCopy(Backend):
    """See Backend. A pair of a rank with itself is a copy inside the process: what the same GPU does without IPC."""

    name: ClassVar[str] = "ipc_copy"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    launchers: ClassVar[str] = "any"
    library: str = "auto"

    def missing(self, device: str = "cuda") -> str | None:
        reason = driver_missing()
        return None if reason is None else f"{reason}; CUDA IPC needs an NVIDIA GPU"

    def supports(self, case: Case, size: int) -> str | None:
        if any(value is not None for value in (case.reduction, case.root, case.in_place)):
            return NO_COLLECTIVES
        if case.timing_mode in ("device_event", "graph", "throughput"):
            return HOST_CLOCK
        if case.staging != "none":
            return f"ipc_copy copies from GPU memory to GPU memory; staging={case.staging} would be another transport"
        return CONTRADICTION if case.cuda_ipc == "off" else None

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        """Nothing. Raises ConfigError for what it can't be without."""
        if cuda_ipc == "off":
            raise ConfigError(CONTRADICTION)
        return {}

    def exporter(self, place: int) -> Exporter:
        """Of the GPU for this place in the node. Raises CudaError."""
        return CudaExporter(place)

    def open(self, world: World, control: Control, device: str = "cuda") -> IpcCommunicator:
        """Every rank makes its exporter, the first of each node the mailbox; then all try IPC, and remember.

        Raises ConfigError where a rank has no GPU or the node no shared memory.
        """
        here = world.nodes[world.node_of(world.rank)]
        exporter, path, problem = None, None, None
        try:
            exporter = self.exporter(here.index(world.rank))
            path = create(len(here)) if world.rank == here[0] else None
        except (CudaError, OSError) as error:
            problem = f"rank {world.rank} can't copy through CUDA IPC: {error}"
        gathered = control.gather([problem, path and str(path)], MEETING_S, "IPC mailbox")
        told = control.decide(gathered or None, MEETING_S, "IPC mailbox")
        reason = next((one for one, _ in told if one is not None), None)
        if exporter is None or reason is not None:
            _unlink(path)
            raise ConfigError(str(reason))
        mailbox = self._opened(Path(told[here[0]][1]), path, world, control)
        made = exporter
        found = probe_cuda_ipc(lambda _: made, world, control, MEETING_S)
        desk = Desk(world.rank, tuple(here), exporter, mailbox, _told(found))
        return IpcCommunicator(desk, control, tuple(range(world.size)))

    def _opened(self, shared: Path, own: Path | None, world: World, control: Control) -> Mailbox:
        """The node's mailbox, whose name is gone once all have it. Raises ConfigError."""
        mailbox, problem, here = None, None, world.nodes[world.node_of(world.rank)]
        try:
            mailbox = Mailbox(shared, len(here))
        except OSError as error:
            problem = f"rank {world.rank} does not see the shared memory of rank {here[0]}, its neighbour: {error}"
        problem = control.agree(problem, MEETING_S, "IPC mailbox")
        _unlink(own)
        if mailbox is None or problem is not None:
            raise ConfigError(str(problem))
        return mailbox


def _told(found: dict[str, str]) -> dict[str, Any]:
    """The probe's answers, and what was refused; nothing is known where no rank has a neighbour."""
    refused = probe_refusals(found)
    effective = {"cuda_ipc_effective": "off" if refused else "on"} if found else {}
    return {"ipc_probe": found, **effective, **({"ipc_refused": refused} if refused else {})}


def _unlink(path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)
