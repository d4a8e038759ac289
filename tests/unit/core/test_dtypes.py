"""Elements are what torch makes of them, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from commbench.core.errors import ConfigError
from commbench.core.payload import DTYPES, dtype

LARGEST_SUM = 120  # of a payload
EVERY = pytest.mark.parametrize("name", DTYPES)


@EVERY
def test_elements_are_torchs_own(name: str) -> None:
    kind = DTYPES[name]
    values = np.arange(LARGEST_SUM + 1)
    element = torch.tensor(values.tolist(), dtype=getattr(torch, name))
    assert kind.encode(values).tobytes() == element.view(torch.uint8).numpy().tobytes()
    assert kind.itemsize == element.itemsize == np.dtype(kind.word).itemsize
    assert kind.floating == element.is_floating_point()


@EVERY
def test_small_integers_survive(name: str) -> None:
    values = np.arange(DTYPES[name].most + 1)
    assert DTYPES[name].decode(DTYPES[name].encode(values)).tolist() == values.tolist()


@pytest.mark.parametrize("name", [name for name in DTYPES if DTYPES[name].floating])
def test_negative_numbers_and_fractions_survive_in_floating_types(name: str) -> None:
    values = np.array([-112.0, -0.5, 0.25, 7.0])
    assert DTYPES[name].decode(DTYPES[name].encode(values)).tolist() == values.tolist()


def test_integers_stay_integers() -> None:
    assert DTYPES["int64"].decode(np.array([2**62 + 1])).tolist() == [2**62 + 1]


def test_an_unknown_type_is_refused_with_those_that_exist() -> None:
    assert dtype("bfloat16").word == "uint16"
    with pytest.raises(
        ConfigError, match=r"did you mean int16|allowed: float64, .*bfloat16.*uint8"
    ):
        dtype("int61")


@pytest.mark.parametrize(
    ("word", "name"), [("bf16", "bfloat16"), ("fp16", "float16"), ("double", "float64")]
)
def test_a_type_has_the_names_that_people_use(word: str, name: str) -> None:
    assert dtype(word).name == name
