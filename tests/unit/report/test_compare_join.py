"""Values as keys: what is the same must look the same, from wherever it was read."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.errors import ConfigError
from commbench.report.compare_sides import NAMES, PAYLOAD, Difference, key_of, parse_by, plain, text

NULLS = [None, float("nan"), pd.NA, np.float64("nan"), pd.NaT]


@pytest.mark.parametrize("value", NULLS)
def test_all_nulls_are_one(value: object) -> None:
    assert plain(value) is None
    assert text(value) == "none"


@pytest.mark.parametrize("value", [8, 8.0, np.int64(8), np.float64(8)])
def test_a_whole_number_is_whole(value: object) -> None:
    assert json.dumps(plain(value)) == "8"


@pytest.mark.parametrize("value", [True, np.bool_(True)])
def test_a_flag_is_no_number(value: object) -> None:
    assert json.dumps(plain(value)) == "true"
    assert text(value) == "true"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_a_map_is_the_same_in_any_order_and_container(env: dict[str, str]) -> None:
    backwards = dict(reversed(env.items()))
    assert plain(env) == plain(backwards) == plain(list(env.items())) == plain({**env, "absent": None})
    assert text({}) == "none" and text({"B": "2", "A": "1"}) == "A=1 B=2"


@given(st.fixed_dictionaries({name: st.none() | st.integers() | st.text(max_size=5) for name in NAMES}))
def test_a_key_sees_all_variables_but_those_that_are_compared(row: dict[str, object]) -> None:
    for name in NAMES:
        other = row | {name: "another value"}
        assert key_of(row, ()) != key_of(other, ())
        assert key_of(row, [name]) == key_of(other, [name])


def test_what_may_differ_is_parsed() -> None:
    assert parse_by(["backend=gloo:mpi", " engine ", ""]) == (
        Difference("backend", "gloo", "mpi"), Difference("engine"),
    )  # fmt: skip


@given(st.text(max_size=30))
def test_any_other_word_is_refused(word: str) -> None:
    name = word.strip().partition("=")[0]
    if name in set(NAMES) - set(PAYLOAD) or not word.strip():
        return
    with pytest.raises(ConfigError, match="--by"):
        parse_by([word])
