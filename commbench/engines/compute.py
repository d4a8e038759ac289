"""Computation of a program on the host, on memory of its own, as calls from Python."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from commbench.core.program import Compute, Matmul, MatmulFor, MemoryStream, Sleep

from .lowered import Call, now_ns

NANOSECONDS = 1e9


def compute_call(step: Compute) -> Call:
    """numpy's calls release Python's lock, so the threads of a library go on beside them."""
    match step:
        case Sleep(duration_ns):
            return Call(time.sleep, (duration_ns / NANOSECONDS,))
        case MemoryStream(size_bytes):
            return Call(np.copyto, (np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)))
        case Matmul(size, repetitions):
            return Call(_multiply, (*square_matrices(size), repetitions))
        case MatmulFor(size, duration_ns):
            return Call(_multiply_for, (*square_matrices(size), duration_ns))


def square_matrices(size: int) -> tuple[Any, Any, Any]:
    """Two factors and their product, of float32."""
    return tuple(np.ones((size, size), np.float32) for _ in range(3))  # type: ignore[return-value]


def _multiply(first: Any, second: Any, product: Any, repetitions: int) -> None:
    for _ in range(repetitions):
        np.matmul(first, second, out=product)


def _multiply_for(first: Any, second: Any, product: Any, duration_ns: int) -> None:
    end_ns = now_ns() + duration_ns
    while now_ns() < end_ns:
        np.matmul(first, second, out=product)
