"""The groups that a communicator is split into, and the backends that open none."""

from __future__ import annotations

import pytest

from commbench.backends.torch.gloo import Gloo
from commbench.core.protocols import Backend
from commbench.features.communicators.benchmarks import neighbours
from commbench.features.communicators.steps import OpenCommunicator
from commbench.features.cuda_copy.backend import CudaCopy
from commbench.features.cupy.backend import CupyNccl
from commbench.features.simulated.backend import Simulated


def test_groups_of_neighbours_differ_by_one_rank_at_most() -> None:
    assert neighbours(7, 3) == ((0, 1), (2, 3), (4, 5, 6))
    assert neighbours(4, 1) == ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("backend", "colour", "reason"),
    [
        (Gloo(), 1, None),
        (CupyNccl(), None, None),
        (CupyNccl(), 1, "no ncclCommSplit"),
        (Simulated(), 1, None),
        (CudaCopy(), None, "cuda_copy opens no communicators; use nccl, gloo, mpi, cupy_nccl or t"),
    ],
)
def test_what_opens_no_communicator_says_so(
    backend: Backend, colour: int | None, reason: str | None
) -> None:
    told = OpenCommunicator(((0,), (1,)), colour).refusal(backend)
    assert told is None if reason is None else reason in str(told)
