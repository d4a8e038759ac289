"""gloo that leaves Flight Recorder's dump in place of a profile: `backend._target_` of a test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.backends.torch.distributed import TorchCommunicator
from commbench.backends.torch.gloo import Gloo
from commbench.core.case import World
from commbench.core.protocols import Control
from commbench.core.variables import Device


@dataclass(frozen=True)
class FlightRecordedGloo(Gloo):
    """Needs TORCH_FR_BUFFER_SIZE in the environment."""

    def open(self, world: World, control: Control, device: Device = "cpu") -> TorchCommunicator:
        communicator = super().open(world, control, device)
        communicator.profiled = dumped  # type: ignore[method-assign]
        return communicator


@contextmanager
def dumped(path: Path) -> Iterator[None]:
    """Write the calls of the block."""
    before = len(recorded()["entries"])
    yield
    dump = recorded()
    path.write_text(json.dumps({**dump, "entries": dump["entries"][before:]}))


def recorded() -> dict[str, Any]:
    import torch

    dump: dict[str, Any] = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    return {"entries": [], **dump}
