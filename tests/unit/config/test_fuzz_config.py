"""Any value for any key: a job, or one line that says what was seen; never another exception, never
a wait."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commbench.config.compose import ConfigComposer, resolved
from commbench.config.keys import KEYS
from commbench.config.settings import job_of
from commbench.core.errors import ConfigError
from commbench.core.terminal import LONGEST_LINE, printable

BACKENDS = ("gloo", "mpi", "tcp", "simulated")
LONGEST_S = 1.0
# no shrinking: each attempt composes a configuration, and what failed is short anyway
fuzzed = settings(
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

TRAPS = (
    "auto",
    "all",
    "1x2",
    "1KiB",
    "nan",
    "1e999",
    "-0",
    "${seed}",
    "${oc.env:HOME}",
    "${hydra:runtime.cwd}",
    "???",
    "x" * 3000,
    "9" * 5000,
    "commbench.core.protocols.os.system",
    "../../x",
    "\x1b[31m",
    "\u202e",
    "'",
    '"',
    "\\",
    "${",
    "}",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 100),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(TRAPS),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab_0-.\n$", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def composer() -> Iterator[ConfigComposer]:
    with ConfigComposer() as opened:
        yield opened


@pytest.fixture(scope="module")
def configs(composer: ConfigComposer) -> list[dict[str, Any]]:
    """A composed configuration of every backend, one of them a soak."""
    timings = ("default", "soak", "fixed", "quick")
    nodes = [
        composer.config([f"backend={backend}", f"timing={timing}"])
        for backend, timing in zip(BACKENDS, timings, strict=True)
    ]
    return [OmegaConf.to_container(node) for node in nodes]  # type: ignore[misc]


def paths(config: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key at every depth."""
    for name, value in config.items():
        yield (*above, str(name))
        if isinstance(value, dict):
            yield from paths(value, (*above, str(name)))


def replaced(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    whole = copy.deepcopy(config)
    node = whole
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    return whole


def check_refusal(error: ConfigError) -> None:
    text = str(error)
    assert text.strip() and len(text.splitlines()) == 1 and len(text) < LONGEST_LINE + 10
    assert printable(text) == text


@fuzzed
@given(data=st.data(), value=VALUES)
def test_any_value_of_any_key_is_a_job_or_a_refusal(
    data: st.DataObject, value: Any, configs: list[dict[str, Any]]
) -> None:
    config = data.draw(st.sampled_from(configs))
    path = data.draw(
        st.sampled_from(
            sorted({*paths(config), *((key,) for key in KEYS), ("env", "X"), ("allow",)})
        )
    )
    try:
        node = OmegaConf.create(replaced(config, path, value))
    except (OmegaConfBaseException, ValueError):  # no YAML could say so either
        return
    begin = time.process_time()
    try:
        job = job_of(resolved(node), ())
    except ConfigError as error:
        check_refusal(error)
    else:
        json.dumps(job.config)
        assert len(job.digest) == 16 and job.settings.case_s > 0
    assert time.process_time() - begin < LONGEST_S


@pytest.mark.parametrize("key", ["part", "scale"])
def test_a_long_value_is_refused_in_a_short_line(key: str, configs: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=r"is unknown|belongs to an experiment") as refusal:
        job_of(replaced(configs[0], (key,), "x" * 3000), ())
    check_refusal(refusal.value)


NAMES = (
    *KEYS,
    "benchmark",
    "writer",
    "experiment",
    "env.X",
    "timing.target",
    "backend.library",
    "hydra.mode",
    "",
)
WORDS = (
    st.text(max_size=30)
    | st.tuples(
        st.sampled_from(("", "+", "++", "~")), st.sampled_from(NAMES), st.text(max_size=12)
    ).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}")
    | st.tuples(st.sampled_from(NAMES), st.sampled_from(TRAPS)).map("=".join)
)


@fuzzed
@given(words=st.lists(WORDS, min_size=1, max_size=3), multirun=st.booleans())
def test_any_words_are_jobs_or_a_refusal(
    words: list[str], multirun: bool, composer: ConfigComposer
) -> None:
    begin = time.process_time()
    try:
        composer.jobs(words, multirun)
    except ConfigError as error:
        check_refusal(error)
    assert time.process_time() - begin < LONGEST_S * max(1, len(words))
