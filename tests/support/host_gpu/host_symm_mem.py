"""torch's symmetric memory on torch's CPU tensors, moved by gloo: what torch.ops.symm_mem checks
and computes, without its kernels."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

from host_gpu import HostGpu

from commbench.backends.torch import nccl
from commbench.core.case import World
from commbench.core.protocols import Control
from commbench.core.variables import Device
from commbench.features.symm_mem.backend import SymmMem

NAME = "torch.distributed._symmetric_memory"
ADDED = ("float32", "bfloat16")


class HostSymmetricMemory(ModuleType):
    """What torch.distributed._symmetric_memory has of it, from torch 2.9 on. `most`: for how many
    allocations this GPU has memory."""

    def __init__(self, multicast: bool, refused: str | None, most: float) -> None:
        super().__init__(NAME)
        self.multicast = multicast
        self.refused = refused
        self.most = most
        self.allocations = 0
        self.chosen: str | None = None
        self.sizes: dict[int, int] = {}  # bytes of each allocation, by address
        self.joined: set[tuple[int, str]] = set()  # addresses, and groups that reach them

    def is_nvshmem_available(self) -> bool:
        return True

    def set_backend(self, name: str) -> None:
        assert not self.sizes, "after the first allocation torch refuses it"
        if name == self.refused:
            raise RuntimeError(f"SymmetricMemory has no allocator {name}\nof a C++ file")
        self.chosen = name

    def empty(self, *size: int, dtype: Any, device: Any) -> Any:
        import torch

        assert self.chosen in ("CUDA", "NCCL", "NVSHMEM")
        self.allocations += 1
        if self.allocations > self.most:
            raise RuntimeError("CUDA driver error: out of memory\nof a C++ file")
        memory = torch.empty(*size, dtype=dtype, device=device)
        self.sizes[memory.data_ptr()] = memory.nbytes
        return memory

    def rendezvous(self, tensor: Any, group: Any) -> Any:
        """All ranks: they compare the sizes, as the handles of their memory are exchanged."""
        import torch.distributed as dist

        sizes = [None] * group.size()
        dist.all_gather_object(sizes, self.sizes[tensor.data_ptr()], group=group)
        if len(set(sizes)) > 1:
            raise RuntimeError(f"the allocations have other sizes: {sizes}")
        self.joined.add((tensor.data_ptr(), group.group_name))
        return SimpleNamespace(multicast_ptr=int(self.multicast))

    def check(self, tensor: Any, group: str) -> int:
        """Bytes that a thread moves at once. Raises as the operations do."""
        start = tensor.untyped_storage().data_ptr()
        if (start, group) not in self.joined:
            raise RuntimeError("input must be allocated with empty_strided_p2p()")
        if not tensor.is_contiguous():
            raise RuntimeError("input must be contiguous")
        offset = tensor.data_ptr() - start
        return min(aligned(offset, tensor), aligned(tensor.nbytes, tensor))


def aligned(size: int, tensor: Any) -> int:
    found = next((each for each in (16, 8, 4, 2, 1) if size % each == 0), 1)
    if found < max(4, tensor.element_size()):
        raise RuntimeError(f"{size} must be at least 4-byte aligned")
    return found


class HostOperations:
    """torch.ops.symm_mem: each operation ends on all ranks before it returns on one."""

    def __init__(self, memory: HostSymmetricMemory) -> None:
        self.memory = memory
        self.called: list[str] = []

    def one_shot_all_reduce_out(self, data: Any, reduction: str, group: str, out: Any) -> Any:
        assert not same(data, out), "other ranks still read what is written"
        return self._reduced("one_shot_all_reduce_out", data, reduction, group, out)

    def one_shot_all_reduce_copy_out(
        self, shared: Any, data: Any, reduction: str, group: str, out: Any
    ) -> Any:
        assert not same(shared, data) and shared.shape == data.shape
        shared.copy_(data)
        return self._reduced("one_shot_all_reduce_copy_out", shared, reduction, group, out)

    def two_shot_all_reduce_(self, data: Any, reduction: str, group: str) -> Any:
        return self._reduced("two_shot_all_reduce_", data, reduction, group, data)

    def multimem_all_reduce_(self, data: Any, reduction: str, group: str) -> Any:
        assert self.memory.multicast
        return self._reduced("multimem_all_reduce_", data, reduction, group, data)

    def multimem_one_shot_all_reduce_out(
        self, data: Any, reduction: str, group: str, out: Any
    ) -> Any:
        assert self.memory.multicast and not same(data, out)
        return self._reduced("multimem_one_shot_all_reduce_out", data, reduction, group, out)

    def multimem_all_gather_out(self, data: Any, group: str, out: Any) -> Any:
        assert self.memory.multicast
        at_once = self.memory.check(out, group)
        assert data.nbytes % at_once == 0, "it would write into the block of the next rank"
        self.called.append("multimem_all_gather_out")
        out.copy_(together(data, group).flatten())
        return out

    def reduce_scatter_out(self, data: Any, group: str, by_last: bool, out: Any) -> Any:
        assert by_last is False and data.dim() == out.dim() == 1
        at_once = self.memory.check(data, group)
        ranks = resolved(group).size()
        if ranks not in (2, 4, 8):
            raise RuntimeError(f"Not implemented for world_size={ranks}")
        if data.numel() % (ranks * (at_once // data.element_size())):
            raise RuntimeError("expected number of elements to be divisible")
        self.called.append("reduce_scatter_out")
        blocks = summed(data, group).chunk(ranks)
        out.copy_(blocks[resolved(group).rank()])
        return out

    def nvshmem_all_to_all(self, data: Any, out: Any, group: str) -> Any:
        assert self.memory.chosen == "NVSHMEM" and not same(data, out)
        self.called.append("nvshmem_all_to_all")
        own = resolved(group).rank()
        blocks = [each.chunk(resolved(group).size())[own] for each in together(data, group)]
        for block, target in zip(blocks, out.chunk(len(blocks)), strict=True):
            target.copy_(block)
        return out

    def _reduced(self, name: str, data: Any, reduction: str, group: str, out: Any) -> Any:
        if reduction != "sum":
            raise RuntimeError(f"{name}: only sum is supported for now.")
        self.memory.check(data, group)
        self.called.append(name)
        out.copy_(summed(data, group))
        return out


def same(first: Any, second: Any) -> bool:
    return bool(first.data_ptr() == second.data_ptr())


def resolved(group: str) -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]


def together(data: Any, group: str) -> Any:
    """[ranks, elements]: what all ranks have."""
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(data) for _ in range(resolved(group).size())]
    dist.all_gather(parts, data.clone(), group=resolved(group))
    return torch.stack(parts)


def summed(data: Any, group: str) -> Any:
    assert str(data.dtype).removeprefix("torch.") in ADDED
    return together(data, group).float().sum(0).to(data.dtype)


@dataclass(frozen=True)
class HostSymmMem(SymmMem):
    """See Backend. `refused`: a memory that this torch does not have; `full`: a rank whose GPU has
    memory for so many `allocations`."""

    name: ClassVar[str] = "host_symm_mem"
    multicast: bool = True
    refused: str | None = None
    full: int | None = None
    allocations: int = 1

    def missing(self, device: Device = "cuda") -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        import torch
        import torch.distributed as dist

        nccl.built_for = lambda: "2.28.9"
        most = self.allocations if world.rank == self.full else math.inf
        memory = HostSymmetricMemory(self.multicast, self.refused, most)
        sys.modules[NAME] = memory
        torch.ops.symm_mem = HostOperations(memory)  # type: ignore[assignment]
        start: Callable[..., Any] = dist.init_process_group

        def without_nccl(backend: str, device_id: Any = None, **given: Any) -> None:
            assert backend == "nccl"
            start("gloo", **given)

        module = "commbench.features.symm_mem.backend"
        with (
            patch.object(dist, "init_process_group", without_nccl),
            patch(f"{module}.CudaDevice.of", lambda world: HostGpu()),
        ):
            return super().open(world, control, device)
