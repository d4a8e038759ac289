"""Which rows of two sides belong together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_frames import QUIET, launches

from commbench.analysis.compare import compare
from commbench.analysis.joined_rows import key_of
from commbench.core.errors import ConfigError
from commbench.core.variables import NAMES
from commbench.results.row import Row


@given(
    st.fixed_dictionaries({name: st.none() | st.integers() | st.text(max_size=5) for name in NAMES})
)
def test_a_key_sees_all_variables_but_those_that_are_compared(values: dict[str, Any]) -> None:
    row = Row(**values)
    for name in NAMES:
        other = replace(row, **{name: "another value"})
        assert key_of(row, ()) != key_of(other, ())
        assert key_of(row, [name]) == key_of(other, [name])


def test_the_variable_that_keeps_all_rows_apart_is_named() -> None:
    base = pd.concat(
        [launches(QUIET, dtype="int8", root=0), launches(QUIET, dtype="float32", root=1)]
    )
    new = pd.concat(
        [launches(QUIET, dtype="int8", root=1), launches(QUIET, dtype="float32", root=0)]
    )
    with pytest.raises(ConfigError, match="they differ in: root 0, in NEW 1; name what is"):
        compare(base, new)
