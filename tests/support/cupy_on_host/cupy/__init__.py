"""CuPy that is none: the names that commbench calls, on host memory, with queues for streams and
gloo for NCCL.

Worlds of backend=cupy_nccl without a GPU. That the real one has these names and takes these
arguments is compared in tests/unit/features/cupy/test_lowering.py; what it does, only GPUs can
show.
"""

from __future__ import annotations

import time
from typing import Any

from cupy import cuda

__version__ = "0.on_host"


class RawKernel:
    """Any kernel is one that waits for so many ticks of the clock."""

    def __init__(self, code: str, name: str) -> None:
        self._compiled = False

    def compile(self) -> None:
        self._compiled = True

    def __call__(self, grid: tuple[int], block: tuple[int], args: tuple[Any, ...]) -> None:
        seconds = int(args[0]) / (1e3 * cuda.runtime.CLOCK_KHZ)
        cuda.Stream.current[-1].enqueue(lambda: time.sleep(seconds))
