"""Groups of torch.distributed that are opened while the clock runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from commbench.backends.torch.distributed import CALL_TIMEOUT, TorchCommunicator
from commbench.core.program import Group
from commbench.engines.lowered import Call


class GroupOpener:
    """See Opener: torch.distributed's new_group, which each rank of a case calls for each group, as
    a script does."""

    def __init__(self, communicator: TorchCommunicator) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._ranks = communicator.ranks  # torch's numbers
        self._opened: Any = None

    def open(self, groups: Sequence[Group], colour: int | None) -> Call:
        members = [[self._ranks[rank] for rank in group] for group in groups]
        return Call(self._open, (members, colour or 0))

    def _open(self, groups: Sequence[list[int]], own: int) -> None:
        with _numbered(self._ranks):
            opened = [self._dist.new_group(group, timeout=CALL_TIMEOUT) for group in groups]
        self._opened = opened[own]

    def first_call(self, members: Group) -> Call:
        return Call(self._barrier)

    def _barrier(self) -> None:
        self._dist.barrier(self._opened)

    def close(self, members: Group) -> Call:
        return Call(self._close)

    def _close(self) -> None:
        """Its threads and connections end here, outside of what is timed."""
        self._dist.destroy_process_group(self._opened)
        self._opened = None


_numbers: dict[tuple[int, ...], int] = {}  # of the last group that these ranks have opened


@contextmanager
def _numbered(ranks: tuple[int, ...]) -> Iterator[None]:
    """Let torch number the groups of these ranks by themselves.

    It names a group by the number of groups that a process has opened, which must be equal on the
    members: other ranks of the world open none of these. Names must differ, too, as the addresses
    of a group stay in the store.
    """
    from torch.distributed import distributed_c10d

    torch_world: Any = distributed_c10d._world
    count = torch_world.group_count
    torch_world.group_count = _numbers.get(ranks) or _first_number(ranks)
    try:
        yield
    finally:
        _numbers[ranks] = torch_world.group_count
        torch_world.group_count = count


def _first_number(ranks: tuple[int, ...]) -> int:
    """Far from those of other ranks, and from torch's own."""
    text = ",".join(map(str, ranks))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") << 24
