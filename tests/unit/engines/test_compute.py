"""Computations of a program: the amount of work is what the step says, in every engine."""

from __future__ import annotations

import time

import numpy as np
import pytest

from commbench.core.program import Compute, Matmul, MemoryStream, Sleep
from commbench.engines.compute import compute_call
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
    native, (target, source) = native_compute(MemoryStream(100_001))
    source[:] = 7
    NativeRunner(Lowered((native,)), 1, keep=None)(1)
    assert len(target) == 100_001 and (target == 7).all()
    copy = compute_call(MemoryStream(100_001))
    assert [len(each) for each in copy.args] == [100_001, 100_001]


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
