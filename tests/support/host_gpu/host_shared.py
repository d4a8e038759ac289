"""tools/gpu's shared_nccl on torch's CPU tensors: its own code up to the call that would start
NCCL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

from host_gpu import HostGpu, HostNcclCommunicator
from shared_gpu import SharedNccl

from commbench.core.case import World
from commbench.core.protocols import Control
from commbench.core.variables import Device


@dataclass(frozen=True)
class HostShared(SharedNccl):
    """See Backend."""

    name: ClassVar[str] = "shared_nccl"

    def missing(self, device: Device = "cuda") -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        import torch.distributed as dist

        start = dist.init_process_group

        def without_nccl(backend: str, device_id: Any = None, **given: Any) -> None:
            """torch accepts names that it knows; this one is gloo's here."""
            assert backend == "nccl" and device_id is not None
            assert os.environ["NCCL_HOSTID"] == f"commbench-rank-{world.rank}"
            start("gloo", **given)

        nccl = "commbench.backends.torch.nccl"
        with (
            patch.object(dist, "init_process_group", without_nccl),
            patch(f"{nccl}.CudaDevice.of", lambda world: HostGpu()),
            patch(f"{nccl}.NcclCommunicator", HostNcclCommunicator),
        ):
            return super().open(world, control, device)
