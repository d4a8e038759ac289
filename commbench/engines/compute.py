"""Computation of a program on the host, on memory of its own, as calls from Python."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from commbench.core.program import Compute, Matmul, MemoryStream, Sleep

from .lowered import Call

NS_PER_S = 1e9


def compute_call(step: Compute) -> Call:
    """numpy's calls release Python's lock, so the threads of a library go on beside them."""
    match step:
        case Sleep(duration_ns):
            return Call(time.sleep, (duration_ns / NS_PER_S,))
        case MemoryStream(size_bytes):
            return Call(np.copyto, (np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)))
        case Matmul(size, repetitions):
            return Call(_multiply, (*matrices(size), repetitions))


def matrices(size: int) -> tuple[Any, Any, Any]:
    """Two factors and their product, of float32."""
    return tuple(np.ones((size, size), np.float32) for _ in range(3))  # type: ignore[return-value]


def _multiply(first: Any, second: Any, product: Any, repetitions: int) -> None:
    for _ in range(repetitions):
        np.matmul(first, second, out=product)
