"""A data-parallel job: DistributedDataParallel, gradients of 4 MiB in buckets of 1 MiB.

torchrun --standalone --nproc-per-node=2 tools/jobs/ddp.py --traces traces/
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from traced import CommunicationClock, Step, run_job

HIDDEN = 512
LAYERS = 4
BATCH = 64


def data_parallel(clock: CommunicationClock) -> Step:
    layers = [nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)

    def timed_all_reduce(bucket: Any) -> Any:
        gradients = bucket.buffer().div_(dist.get_world_size())
        end = clock.begin()

        def reduced(future: Any) -> Any:
            end()
            return future.value()[0]

        return dist.all_reduce(gradients, async_op=True).get_future().then(reduced)

    # torch reads a hook's annotations, and knows none that are texts
    model.register_comm_hook(None, lambda state, bucket: timed_all_reduce(bucket))
    inputs = torch.randn(BATCH, HIDDEN)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return step


if __name__ == "__main__":
    run_job("ddp", data_parallel)
