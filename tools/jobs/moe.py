"""A job of experts: each rank sends its tokens to the ranks of their experts and gets them back,
forward and backward, as all_to_alls with uneven splits.

torchrun --standalone --nproc-per-node=2 tools/jobs/moe.py --traces traces/
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from traced import CommunicationClock, Step, run_job

HIDDEN = 512
LAYERS = 2
TOKENS = 512


class Exchanged(torch.autograd.Function):
    """Blocks of rows to and from each rank; backward, their gradients the other way."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        sent: list[int],
        received: list[int],
        clock: CommunicationClock,
    ) -> torch.Tensor:
        ctx.route = (received, sent, clock)
        return exchanged(values, sent, received, clock)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return exchanged(gradients[0], *ctx.route), None, None, None


exchanged_with_gradients: Any = Exchanged.apply


def exchanged(
    values: torch.Tensor, sent: list[int], received: list[int], clock: CommunicationClock
) -> torch.Tensor:
    result = values.new_empty((sum(received), HIDDEN))
    source = values.contiguous()
    clock.timed(lambda: dist.all_to_all_single(result, source, received, sent))
    return result


def splits(rank: int, ranks: int) -> list[int]:
    """How many of its tokens a rank sends to each: rank 0 has the experts that most want."""
    shares = [2 if peer == 0 else 1 for peer in range(ranks)]
    counts = [TOKENS * share // sum(shares) for share in shares]
    counts[(rank + 1) % ranks] += TOKENS - sum(counts)
    return counts


def experts(clock: CommunicationClock) -> Step:
    rank = dist.get_rank()
    ranks = dist.get_world_size()
    sent = splits(rank, ranks)
    received = [splits(peer, ranks)[rank] for peer in range(ranks)]
    layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))
    inputs = torch.randn(TOKENS, HIDDEN, requires_grad=True)

    def step() -> None:
        layers.zero_grad()
        values: Any = inputs
        for expert in layers:
            arrived = exchanged_with_gradients(values, sent, received, clock)
            values = exchanged_with_gradients(expert(arrived), received, sent, clock)
        values.square().mean().backward()

    return step


if __name__ == "__main__":
    run_job("moe", experts)
