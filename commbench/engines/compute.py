"""Computation of a program on the host, on memory of its own, as calls from Python."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from commbench.core.program import Compute, Matmul, MatmulFor, MemoryStream, Sleep

from .lowered import Call, now_ns

NANOSECONDS = 1e9
STREAM_BYTES = 2**25  # of each of the two buffers of a MemoryStream: more than most caches hold


def compute_call(step: Compute) -> Call:
    """numpy's calls release Python's lock, so the threads of a library go on beside them."""
    match step:
        case Sleep(duration_ns):
            return Call(time.sleep, (duration_ns / NANOSECONDS,))
        case MemoryStream(size_bytes):
            return Call(CopyingStream(size_bytes))
        case Matmul(size, repetitions):
            return Call(_multiply, (*square_matrices(size), repetitions))
        case MatmulFor(size, duration_ns):
            return Call(_multiply_for, (*square_matrices(size), duration_ns))


class CopyingStream:
    """See MemoryStream: goes through `source` and `target`, and on from where it ended."""

    def __init__(self, size_bytes: int) -> None:
        self.source = np.ones(STREAM_BYTES, np.uint8)
        self.target = np.ones(STREAM_BYTES, np.uint8)
        self._size_bytes = size_bytes
        self._position = 0

    def __call__(self) -> None:
        left = self._size_bytes
        while left > 0:
            begin = self._position
            end = min(begin + left, STREAM_BYTES)
            np.copyto(self.target[begin:end], self.source[begin:end])
            left -= end - begin
            self._position = end % STREAM_BYTES


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
