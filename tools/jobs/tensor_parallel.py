"""A tensor-parallel job: each layer's two matrices are divided among all ranks, so its output and
the gradient of its input are all_reduces of 512 KiB.

torchrun --standalone --nproc-per-node=2 tools/jobs/tensor_parallel.py --traces traces/
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from traced import CommunicationClock, Step, run_job

HIDDEN = 512
LAYERS = 4
TOKENS = 256


class Copied(torch.autograd.Function):
    """The input of a divided layer: its gradients are summed."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, clock: CommunicationClock) -> torch.Tensor:
        ctx.clock = clock
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        summed = gradients[0].contiguous()
        ctx.clock.timed(lambda: dist.all_reduce(summed))
        return summed, None


class Summed(torch.autograd.Function):
    """The output of a divided layer."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, clock: CommunicationClock) -> torch.Tensor:
        summed = values.contiguous()
        clock.timed(lambda: dist.all_reduce(summed))
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


copied: Any = Copied.apply
all_summed: Any = Summed.apply


class DividedLayer(nn.Module):
    def __init__(self, clock: CommunicationClock) -> None:
        super().__init__()
        own = HIDDEN // dist.get_world_size()
        self.columns = nn.Linear(HIDDEN, own, bias=False)
        self.rows = nn.Linear(own, HIDDEN, bias=False)
        self.clock = clock

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        inner = self.columns(copied(values, self.clock))
        summed: torch.Tensor = all_summed(self.rows(inner), self.clock)
        return summed


def tensor_parallel(clock: CommunicationClock) -> Step:
    model = nn.Sequential(*(DividedLayer(clock) for _ in range(LAYERS)))
    inputs = torch.randn(TOKENS, HIDDEN, requires_grad=True)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return step


if __name__ == "__main__":
    run_job("tensor_parallel", tensor_parallel)
