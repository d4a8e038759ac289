"""Overrides from Python are texts as on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commbench.config.compose import ConfigComposer
from commbench.config.overrides import override_texts
from commbench.core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"backend": "gloo", "sizes": [8, "1KiB"]}, ["backend=gloo", "sizes=[8,1KiB]"]),
        (
            {"timing.visits": 2, "interface": None, "verbose": True},
            ["timing.visits=2", "interface=null", "verbose=true"],
        ),
        ({"env": {"A": "b c", "D": "it's"}}, ["env.A='b c'", "env.D='it\\'s'"]),
        (
            {"sizes": "[8,16]", "label": "", "output": Path("/a b")},
            ["sizes=[8,16]", "label=''", "output='/a b'"],
        ),
        ("layout=1x2", ["layout=1x2"]),
        ({"sizes": np.array([8, 64])}, ["sizes=[8,64]"]),
        ({"sizes": pd.Series([8, 64])}, ["sizes=[8,64]"]),
        ({"sizes": [np.int64(8)], "verbose": np.bool_(True)}, ["sizes=[8]", "verbose=true"]),
    ],
    ids=str,
)
def test_overrides_from_python_are_those_of_the_command_line(given: Any, texts: list[str]) -> None:
    assert override_texts(given) == texts
    with ConfigComposer() as composer:
        composer.jobs(override_texts(given), multirun=False)


@pytest.mark.parametrize(
    ("given", "words"), [(3, "not an override"), ({1: 2}, "not a key"), ({"seed": {1}}, "is a set")]
)
def test_a_word_that_is_no_override_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        override_texts(given)


@pytest.mark.parametrize(
    "given",
    [
        "search.switches={n-1: leaf1, n2.cluster: 12}",
        {"search.switches": {"n-1": "leaf1", "n2.cluster": 12}},
    ],
    ids=str,
)
def test_hosts_have_switches_without_being_known(given: Any) -> None:
    with ConfigComposer() as composer:
        (job,) = composer.jobs(override_texts(given), multirun=False)
    assert job.settings.search.switches == {"n-1": "leaf1", "n2.cluster": "12"}
