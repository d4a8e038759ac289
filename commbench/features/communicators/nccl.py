"""Communicators of NCCL that torch opens while the clock runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from commbench.backends.torch.distributed import CALL_TIMEOUT
from commbench.backends.torch.nccl import NcclCommunicator
from commbench.core.program import Group
from commbench.engines.lowered import Call

_opened = Counter[tuple[int, ...]]()  # communicators of these ranks, in this process


class NcclOpener:
    """See Opener: a ProcessGroupNCCL that connects at once, which is ncclCommInitRank, with
    TORCH_NCCL_RANKS_PER_ROOT also ncclCommInitRankScalable; ncclCommSplit where a split is asked
    for (torch's ProcessGroupNCCL::initNCCLComm). Its id goes through torch's store.
    """

    def __init__(self, communicator: NcclCommunicator) -> None:
        self._group = communicator.group
        self._gpu = communicator.gpu
        self._ranks = communicator.ranks  # torch's numbers
        self._ones = communicator.barrier_tensor
        self._opened: Any = None

    def open(self, groups: Sequence[Group], colour: int | None) -> Call:
        return Call(self._open, (groups[colour or 0], colour))

    def _open(self, members: Group, colour: int | None) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore

        place = self._gpu.place
        _opened[self._ranks] += 1  # the id of a communicator stays in the store
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = CALL_TIMEOUT
        if colour is not None:
            options.split_from = self._group._get_backend(place)
            options.split_color = colour
        name = f"commbench/opened/{self._ranks}/{_opened[self._ranks]}/{members[0]}"
        options.group_name = name  # type: ignore[assignment]  # older torch has no GroupName
        options.global_ranks_in_group = [self._ranks[member] for member in members]
        store = PrefixStore(name, _store())
        own = members.index(self._group.rank())
        self._opened = dist.ProcessGroupNCCL(store, own, len(members), options)
        self._opened.eager_connect_single_device(place)

    def first_call(self, members: Group) -> Call:
        return Call(self._reduce)

    def _reduce(self) -> None:
        """Of one element, as NCCL has no barrier; the caller waits for the GPU."""
        self._opened.allreduce([self._ones]).wait()

    def close(self, members: Group) -> Call:
        return Call(self._close)

    def _close(self) -> None:
        self._gpu.synchronise()  # the first call may still run
        self._opened.shutdown()
        self._opened = None


def _store() -> Any:
    """That of all ranks, which torch keeps."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
