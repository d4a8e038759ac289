"""Since when a case has changed, and what else changed then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watched_cases import STEADY, healthy_of

from commbench.cluster.watch.beginning import changed_facts, changed_since


def test_a_change_begins_with_the_first_run_that_shows_it() -> None:
    """Two runs were a little too fast to be noticed."""
    healthy = healthy_of(10.0, 10.1, 9.9, 10.0, 10.1, 10.9, 10.9)
    new = healthy_of(11.0, 11.1, 11.0, 10.9)
    first = changed_since("SLOWER", healthy, new, "new")
    assert first.since_run == "run005"
    assert first.ratio == pytest.approx(1.09, abs=0.01)


def test_an_old_small_shift_is_not_the_beginning_of_a_large_change() -> None:
    rng = np.random.default_rng(6)
    levels = [1.0] * 60 + [1.015] * 60
    healthy = healthy_of(*(level * rng.lognormal(0, 0.003) for level in levels))
    first = changed_since("SLOWER", healthy, healthy_of(1.1, 1.1, 1.1), "new")
    assert first.since_run == "new"
    assert first.ratio is not None and 1.07 < first.ratio < 1.11


def test_a_failure_begins_with_the_run_that_fails() -> None:
    first = changed_since("FAILED", STEADY.healthy, [], "new")
    assert (first.since_run, first.ratio) == ("new", None)


def record(driver: str, kernel: str, load: float) -> dict[str, Any]:
    node = {
        "host.hostname": "node1",
        "gpu.driver_version": driver,
        "host.kernel": kernel,
        "host.load_1min": load,
    }
    return {"provenance": {"nodes": [node]}}


def test_what_changed_with_it_are_facts_that_differ_and_did_not_vary_before() -> None:
    before = [record("550.54", "6.8", 0.1), record("550.54", "6.9", 0.2)]
    facts = changed_facts(before, [record("570.12", "6.9", 0.3)])
    assert [str(fact) for fact in facts] == ["gpu.driver_version: 550.54 -> 570.12"]
    assert changed_facts([], [record("570.12", "6.9", 0.3)]) == []
