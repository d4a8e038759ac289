"""Computations of a program: the amount of work is what the step says, in every engine."""

from __future__ import annotations

import time

import numpy as np
import pytest

from commbench.core.program import Compute, Matmul, MemoryStream, Sleep
from commbench.engines.compute import STREAM_BYTES, CopyingStream, compute_call
from commbench.engines.lowered import Lowered, PythonRunner
from commbench.engines.native import NativeRunner, native_compute


def test_the_python_and_the_native_engine_multiply_the_same_matrices() -> None:
    size = 33
    call = compute_call(Matmul(size, 2))
    call.function(*call.args)
    native, (first, second, product) = native_compute(Matmul(size, 1))
    first[:] = np.arange(size * size).reshape(size, size) % 7
    second[:] = np.arange(size * size).reshape(size, size) % 5
    product[:] = -1
    NativeRunner(Lowered((native,)), 1, keep=None)(1)
    assert (product == first @ second).all()
    assert (call.args[2] == size).all(), "of ones"


def test_a_stream_copies_all_of_its_bytes() -> None:
    size_bytes = STREAM_BYTES // 2 + 1
    native, (native_target, native_source, _) = native_compute(MemoryStream(size_bytes))
    stream = CopyingStream(size_bytes)
    for target, source in ((native_target, native_source), (stream.target, stream.source)):
        source[:] = 7
        target[:] = 1
    for number in (1, 2):
        NativeRunner(Lowered((native,)), 1, keep=None)(1)
        stream()
        copied = min(number * size_bytes, STREAM_BYTES)
        for target in (native_target, stream.target):
            assert (target[:copied] == 7).all(), "on from where the last one ended"
            assert (target[copied:] == 1).all()


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_sleep_lasts_as_long_as_it_says(engine: str) -> None:
    step: Compute = Sleep(20_000_000)
    begin_s = time.monotonic()
    if engine == "python":
        PythonRunner(Lowered((compute_call(step),)), 1)(2)
    else:
        call, memory = native_compute(step)
        NativeRunner(Lowered((call,)), 1, keep=memory)(2)
    assert time.monotonic() - begin_s >= 0.04
