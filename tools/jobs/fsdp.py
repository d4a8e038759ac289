"""A sharded job: FSDP2 (fully_shard), layers of 1 MiB.

torchrun --standalone --nproc-per-node=2 tools/jobs/fsdp.py --traces traces/
python tools/jobs/fsdp.py --fake-ranks 64 --traces traces/    the calls of 64 ranks, without them
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from traced import CommunicationClock, Step, record_steps, run_job

HIDDEN = 512
LAYERS = 4
BATCH = 64
FAKE_RANKS = "--fake-ranks"


class TimedGather:
    """FSDP's all_gather, which ends before it returns."""

    def __init__(self, clock: CommunicationClock) -> None:
        self._clock = clock

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False
    ) -> None:
        # newer torch renamed its calls on one tensor, and warns about the old names
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._clock.timed(lambda: gather(output_tensor, input_tensor, group=group))


class TimedScatter(TimedGather):
    """FSDP's reduce_scatter, likewise."""

    def __call__(  # type: ignore[override]
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        self._clock.timed(lambda: scatter(output_tensor, input_tensor, op=op, group=group))


def sharded(clock: CommunicationClock | None) -> Step:
    """Without a clock, FSDP's own calls."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)))
    for layer in model:
        sharded_layer: Any = fully_shard(layer, mesh=mesh)
        if clock is not None:
            sharded_layer.set_custom_all_gather(TimedGather(clock))
            sharded_layer.set_custom_reduce_scatter(TimedScatter(clock))
    fully_shard(model, mesh=mesh)
    inputs = torch.randn(BATCH, HIDDEN)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return step


def record_fake_ranks(ranks: int, folder: Path) -> None:
    """One rank after another in a world that is not there: its collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)  # of a step that nobody times
    for rank in range(ranks):
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        record_steps(sharded(None), 1, folder / f"rank{rank}.json.gz")
        dist.destroy_process_group()


if __name__ == "__main__":
    if FAKE_RANKS in sys.argv:
        words = sys.argv[1:]
        record_fake_ranks(
            int(words[words.index(FAKE_RANKS) + 1]), Path(words[words.index("--traces") + 1])
        )
    else:
        run_job("fsdp", sharded)
