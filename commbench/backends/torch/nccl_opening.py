"""Communicators of NCCL that torch opens while the clock runs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from commbench.core.opening import Opening
from commbench.engines.lowered import Call

from .cuda import CudaDevice

_opened = Counter[tuple[int, ...]]()  # communicators of these ranks, in this process


class NcclOpener:
    """See Opener: a ProcessGroupNCCL that connects at once, which is ncclCommInitRank, with
    TORCH_NCCL_RANKS_PER_ROOT also ncclCommInitRankScalable; ncclCommSplit where a split is asked
    for (torch's ProcessGroupNCCL::initNCCLComm). Its id goes through torch's store.

    `group` is that of the case, `ranks` are torch's numbers of its ranks.
    """

    def __init__(
        self, group: Any, ranks: tuple[int, ...], gpu: CudaDevice, timeout: timedelta
    ) -> None:
        import torch
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self._place = gpu.place
        self._synchronise = gpu.synchronise
        self._ranks = ranks
        self._timeout = timeout
        self._ones = torch.ones(1, device=gpu.place)
        self._opened: Any = None

    def opening(self, step: Opening) -> Call:
        members = step.members(self._group.rank(), self._group.size())
        return Call(self._open, (step, members))

    def _open(self, step: Opening, members: tuple[int, ...]) -> None:
        from torch.distributed.distributed_c10d import PrefixStore

        rank = self._group.rank()
        _opened[self._ranks] += 1  # the id of a communicator stays in the store
        options = self._dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        if step.groups:
            options.split_from = self._group._get_backend(self._place)
            options.split_color = step.colour(rank)
        name = f"commbench/opened/{self._ranks}/{_opened[self._ranks]}/{members[0]}"
        options.group_name = name  # type: ignore[assignment]  # older torch has no GroupName
        options.global_ranks_in_group = [self._ranks[member] for member in members]
        store = PrefixStore(name, _store())
        place_in_group = members.index(rank)
        self._opened = self._dist.ProcessGroupNCCL(store, place_in_group, len(members), options)
        self._opened.eager_connect_single_device(self._place)

    def first_call(self) -> None:
        """A reduction of one element, as NCCL has no barrier; the caller waits for the GPU."""
        self._opened.allreduce([self._ones]).wait()

    def close(self) -> None:
        self._synchronise()  # the first call may still run
        self._opened.shutdown()
        self._opened = None


def _store() -> Any:
    """That of all ranks, which torch keeps."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
