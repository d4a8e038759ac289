"""Groups of torch.distributed that are opened while the clock runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from commbench.core.opening import Opening
from commbench.engines.lowered import Call


class GroupOpener:
    """See Opener: torch.distributed's new_group, which each rank of a case calls for each group, as
    a script does.

    `ranks` are torch's numbers of the ranks of the case, `rank` is the place of this one in it.
    """

    def __init__(self, ranks: tuple[int, ...], rank: int, timeout: timedelta) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._ranks = ranks
        self._rank = rank
        self._timeout = timeout
        self._opened: Any = None

    def opening(self, step: Opening) -> Call:
        groups = step.groups or (tuple(range(len(self._ranks))),)
        members = [[self._ranks[rank] for rank in group] for group in groups]
        return Call(self._open, (members, [self._rank in group for group in groups]))

    def _open(self, groups: Sequence[list[int]], own: Sequence[bool]) -> None:
        with _numbered(self._ranks):
            for members, is_own in zip(groups, own, strict=True):
                opened = self._dist.new_group(members, timeout=self._timeout)
                if is_own:
                    self._opened = opened

    def first_call(self) -> None:
        self._dist.barrier(self._opened)

    def close(self) -> None:
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
