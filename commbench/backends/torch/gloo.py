"""gloo through torch.distributed: TCP between processes; GPU memory is copied through host
memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from commbench.core.case import World
from commbench.core.errors import ConfigError, Unconnected, process_limit
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToAllV,
    Barrier,
    Broadcast,
    Gather,
    OwnStep,
    Program,
    Reduce,
    ReduceScatter,
    Scatter,
    WaitAll,
    operation_name,
)
from commbench.core.protocols import Backend, Control
from commbench.core.variables import Case, Device, Ipc, Staging
from commbench.engines.lowered import form_missing, reduction_missing, reductions
from commbench.hardware.network import interface_at, interface_name, network_advice
from commbench.results.network_cards import interface_rails
from commbench.runtime.rendezvous import address_for_peers

from .cuda import CudaDevice, cuda_missing
from .distributed import TORCH_UNSUPPORTED, CudaCommunicator, TorchCommunicator, start_group

# torch 2.8 brought averages (pull request 149781); until then reduce_scatter summed whatever the
# operation (149869)
SINCE_2_8 = {
    (AllReduce, "avg"),
    (Reduce, "avg"),
    *((ReduceScatter, reduction) for reduction in ("avg", "prod", "min", "max")),
}
# ProcessGroupGloo copies these between the GPU and pinned memory itself. Its send and recv hand the
# pointer to the socket as it is, so commbench copies for them.
COPIED_BY_GLOO = (
    AllGather, AllReduce, AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter
)  # fmt: skip
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
torch_version = cache(partial(version, "torch"))


@dataclass(frozen=True)
class Gloo(Backend):
    """See Backend."""

    name = "gloo"
    has_profiler = True
    devices = ("cpu", "cuda")
    # the caller, two workers per group, an event loop per device (ProcessGroupGloo)
    threads_per_rank = 4
    library: str = "auto"

    def missing(self, device: Device = "cpu") -> str | None:
        return None if device == "cpu" else cuda_missing("take device=cpu")

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        if any(first == second for first, second in case.pairs):
            return "gloo can't send a message to the same rank"
        if case.device == "cuda" and case.timer != "host_sync":
            return f"gloo copies on the host, so timer={case.timer} would not time all of it"
        if case.device == "cuda" and case.staging == "none" and self.staging(program) != "none":
            return "gloo can't send GPU memory directly; use staging=auto or staging=pinned"
        reason = form_missing(TORCH_UNSUPPORTED, program) or reduction_missing("gloo", program)
        return reason or _too_old_for(program)

    def staging(self, program: Program) -> Staging:
        """A program with a step that gloo does not copy is copied by commbench as a whole."""
        moving = [
            step for step in program.from_lead if not isinstance(step, Barrier | WaitAll | OwnStep)
        ]
        if not moving:
            return "none"
        copied = all(isinstance(step, COPIED_BY_GLOO) for step in moving)
        return "library" if copied else "pinned"

    def rails(self, facts: Mapping[str, Any]) -> list[str]:
        return [f"interface={name}" for name in interface_rails(facts)]

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        return {} if interface is None else {GLOO_INTERFACE: interface_name(interface)}

    def open(self, world: World, control: Control, device: Device = "cpu") -> TorchCommunicator:
        """Raises Unconnected where gloo can't connect the ranks."""
        gpu = None if device == "cpu" else CudaDevice.of(world)
        choose_interface(world, control)
        try:
            group = start_group(Gloo.name, world, control)
        except RuntimeError as error:
            if process_limit(error) is not None:  # the network is not to blame
                raise
            seen = f"gloo can't connect rank {world.rank} to the others"
            first_line = str(error).partition("\n")[0]
            raise Unconnected(network_advice(f"{seen} ({first_line})")) from error
        if gpu is None:
            return TorchCommunicator(Gloo.name, *group)
        return CudaCommunicator(Gloo.name, *group, gpu)


def _too_old_for(program: Program) -> str | None:
    """Why this torch's gloo lacks a reduction of the program; None if it has all."""
    release = torch_version()
    if tuple(map(int, release.split(".")[:2])) >= (2, 8):
        return None
    for each in reductions(program):
        if (each.operation, each.name) in SINCE_2_8:
            name = operation_name(each.operation)
            return f"gloo has no {name} with {each.name} before torch 2.8; this is {release}"
    return None


def choose_interface(world: World, control: Control) -> None:
    """Give gloo the interface on the route to the other hosts, unless the user has chosen one.

    By itself it takes the address of the host's name, which is 127.0.1.1 on many hosts.
    """
    if len(world.nodes) == 1 or os.environ.get(GLOO_INTERFACE):
        return
    with suppress(ConfigError, OSError):  # then gloo may still know better
        name = interface_at(address_for_peers(None, world, control.store))
        os.environ.update({GLOO_INTERFACE: name} if name else {})
