"""Pools of memory that NCCL registers, on the host: who registers what, and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class HostPools:
    """What torch's ProcessGroupNCCL has of them; each pool is registered once and ended once."""

    mem_allocator = None

    def __init__(self) -> None:
        self.registered: list[Any] = []

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        assert pool.closed and not self.registered, "after all buffers, one case at a time"
        self.registered.append(pool)

    def deregister_mem_pool(self, pool: Any) -> None:
        self.registered.remove(pool)


class HostPool:
    def __init__(self, allocator: Any) -> None:
        self.closed = False


@contextmanager
def use_host_pool(pool: HostPool) -> Iterator[None]:
    yield
    pool.closed = True
