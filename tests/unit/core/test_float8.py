"""8-bit floats are what torch makes of them, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from commbench.core.float8 import FORMATS
from commbench.core.payload import DTYPES, LARGEST, contribution, message, reduced
from commbench.core.program import PERIOD

EVERY = pytest.mark.parametrize("name", FORMATS)


@EVERY
def test_every_byte_has_torchs_value(name: str) -> None:
    words = np.arange(256, dtype=np.uint8)
    tensor = torch.from_numpy(words).view(getattr(torch, name)).to(torch.float64)
    assert np.array_equal(DTYPES[name].decode(words), tensor.numpy(), equal_nan=True)


@EVERY
def test_numbers_are_rounded_as_torch_does(name: str) -> None:
    """Also those halfway between two, and subnormals. What is too large is no number: torch 2.13
    has the largest instead, for e4m3fn."""
    kind = DTYPES[name]
    finite = kind.decode(np.arange(256, dtype=np.uint8))
    finite = np.sort(finite[np.isfinite(finite)])
    halfway = (finite[1:] + finite[:-1]) / 2
    random = np.random.default_rng(1).normal(0, 100, 5000)
    values = np.concatenate((finite, halfway, random, random / 1e5))
    values = values[np.abs(values) <= finite[-1]]
    element = torch.from_numpy(values).to(torch.float32).to(getattr(torch, name))
    expected = kind.decode(element.view(torch.uint8).numpy())
    assert np.array_equal(kind.decode(kind.encode(values)), expected)
    assert not np.isfinite(kind.decode(kind.encode(np.array([7e4, -7e4])))).any()


@EVERY
@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_every_partial_sum_and_average_is_a_number_of_the_type(name: str, size: int) -> None:
    """So no order of additions rounds; all values that are possible do occur."""
    kind = DTYPES[name]
    total = reduced(size, 2, "sum", PERIOD, most=kind.most).segments[0].period
    own = contribution(0, size, 2, "sum", PERIOD, most=kind.most).segments[0].period
    assert set(own) == {*range(1, kind.most // 2 + 1), *((0,) if size > 2 else ())}
    assert set(total) == set(range(2, kind.most + 1))
    assert (kind.decode(kind.encode(np.arange(kind.most + 1))) == np.arange(kind.most + 1)).all()
    if size & (size - 1) == 0:
        average = total / size
        assert (kind.decode(kind.encode(average)) == average).all()


@EVERY
def test_what_is_moved_differs_by_sender_and_place(name: str) -> None:
    """e5m2 has 12 values for the integers from 1 to 15."""
    first, second = (
        DTYPES[name].encode(message(key, 0, 1000).segments[0].period) for key in (0, 1)
    )
    assert len(set(first)) == (LARGEST if name == "float8_e4m3fn" else 12)
    assert np.mean(first == second) < 0.2 and np.mean(first[1:] == first[:-1]) < 0.2
