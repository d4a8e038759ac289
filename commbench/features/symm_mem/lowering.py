"""Steps as calls of torch.ops.symm_mem; barriers and resets as on NCCL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from commbench.backends.torch.cuda import CudaDevice, view_tensors
from commbench.backends.torch.nccl import NcclLowering
from commbench.core.errors import Unsupported
from commbench.core.program import Step
from commbench.core.protocols import Buffer
from commbench.core.variables import Algorithm
from commbench.engines.lowered import Call, in_place

from .operations import CALLS

SUM = "sum"
BY_LAST_DIMENSION = False  # of reduce_scatter_out: blocks follow one another


class SymmMemLowering(NcclLowering):
    """`scratch` returns a buffer of symmetric memory like a slot of the named one, in which the
    one-shot all_reduce in place shows its input to the others."""

    def __init__(
        self,
        group: Any,
        buffers: Mapping[str, Buffer],
        barrier_tensor: Any,
        gpu: CudaDevice,
        algorithm: Algorithm | None,
        scratch: Callable[[str], Any],
    ) -> None:
        super().__init__(group, buffers, barrier_tensor, gpu)
        self._algorithm = algorithm
        self._scratch = scratch

    def call(self, step: Step) -> Call:
        """Raises Unsupported, also for a step of a group: all ranks of a case have joined its
        memory, and make scratch together."""
        if self._is_inner:
            raise Unsupported("symm_mem runs operations of all ranks only, not in a group")
        names = CALLS.get((type(step), self._algorithm))
        if names is None:
            return super().call(step)
        name = names[in_place(step)]
        return Call(call_named(name), self._arguments(name, step))

    def _arguments(self, name: str, step: Any) -> tuple[Any, ...]:
        group = self._group.group_name
        send = self._torch.tensors(step.send)
        recv = self._torch.tensors(step.recv)
        match name:
            case "one_shot_all_reduce_out" | "multimem_one_shot_all_reduce_out":
                return send, SUM, group, recv
            case "one_shot_all_reduce_copy_out":
                shown = view_tensors(self._scratch(step.send.buffer), replace(step.send, slot=0))
                return shown.values[0], send, SUM, group, recv
            case "two_shot_all_reduce_" | "multimem_all_reduce_":
                return recv, SUM, group
            case "multimem_all_gather_out":
                return send, group, recv
            case "reduce_scatter_out":
                return send, group, BY_LAST_DIMENSION, recv
            case _:
                return send, recv, group  # nvshmem_all_to_all


def call_named(name: str) -> Any:
    """As a script calls it. Raises Unsupported for one that this torch does not have."""
    import torch

    try:
        return getattr(torch.ops.symm_mem, name)
    except AttributeError:
        raise Unsupported(f"torch {torch.__version__} has no torch.ops.symm_mem.{name}") from None
