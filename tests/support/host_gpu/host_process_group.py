"""torch's ProcessGroupNCCL over gloo: what opens one eagerly, and splits one."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

asked: list[tuple[int, int, Any, Any]] = []  # rank, size, split_from, split_color of each


class HostProcessGroupNccl:
    class Options(SimpleNamespace):
        split_from: Any = None
        split_color: Any = None
        _timeout: Any = None

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self._arguments = store, rank, size
        self._options = options
        self._gloo: Any = None
        asked.append((rank, size, options.split_from, options.split_color))

    def eager_connect_single_device(self, place: Any) -> None:
        import torch.distributed as dist

        assert isinstance(self._options._timeout, timedelta)
        self._gloo = dist.ProcessGroupGloo(*self._arguments, self._options._timeout)

    def allreduce(self, tensors: list[Any]) -> Any:
        return self._gloo.allreduce(tensors)

    def shutdown(self) -> None:
        self._gloo = None
