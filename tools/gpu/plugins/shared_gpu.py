"""NCCL with several ranks on one GPU, for checks only: every rank claims to be a host of its own.

NCCL refuses two ranks with the same host and PCI bus id (init.cc, "Duplicate GPU detected"), and
NCCL_HOSTID replaces the host's name (misc/utils.cc, getHostHash; both in 2.28.9). Ranks then talk
over NET/Socket on the loopback, and their kernels take turns on the GPU: payloads and order are
those of NCCL, the times mean nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from commbench.backends.torch.nccl import Nccl
from commbench.core.case import World
from commbench.core.protocols import Control
from commbench.core.variables import Device
from commbench.features.cupy.backend import CupyNccl

ONE_HOST_EACH = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
LOGS = "GPU_CHECK_LOGS"  # folder for NCCL's log of each rank


@dataclass(frozen=True)
class SharedNccl(Nccl):
    """See Backend."""

    name: ClassVar[str] = "shared_nccl"

    def sharing_refusal(self, environ: Mapping[str, str]) -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        claim_a_host(world.rank)
        return keep_log(super().open(world, control, device), world.rank)


@dataclass(frozen=True)
class SharedCupy(CupyNccl):
    """See Backend."""

    name: ClassVar[str] = "shared_cupy"

    def sharing_refusal(self, environ: Mapping[str, str]) -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        claim_a_host(world.rank)
        return keep_log(super().open(world, control, device), world.rank)


def claim_a_host(rank: int) -> None:
    """Before NCCL's first call: it reads its variables once."""
    os.environ.update(ONE_HOST_EACH, NCCL_HOSTID=f"commbench-rank-{rank}")


def keep_log(communicator: Any, rank: int) -> Any:
    """The communicator, which writes NCCL's log into the folder of the checks when it is closed."""
    close = communicator.close
    folder = os.environ.get(LOGS)

    def closed(abort: bool = False) -> None:
        text = communicator.facts().get("nccl_log")
        if folder is not None and text:
            Path(folder, f"nccl-rank{rank}.log").write_text(text)
        close(abort)

    communicator.close = closed
    return communicator
