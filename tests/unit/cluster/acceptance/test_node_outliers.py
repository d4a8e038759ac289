"""Slow nodes among equal ones: found, and rarely named where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from loops import for_each

from commbench.cluster.acceptance.node_outliers import NodeTimes, slow_nodes, spread_limit

CASES = 6


def case_of(log_s: np.ndarray, interval: float = 0.0) -> NodeTimes:
    times_s = dict(enumerate(np.exp(log_s).tolist()))
    return NodeTimes("all_reduce", times_s, {n: t * (1 - interval) for n, t in times_s.items()})


@pytest.mark.long
@for_each("nodes", [5, 8, 64])
def test_at_most_one_in_a_hundred_healthy_clusters_has_a_node_named(nodes: int) -> None:
    random = np.random.default_rng(nodes)
    runs = 1500
    # the nodes differ so much that any excess matters: only the limit keeps them from being named
    named = sum(
        bool(slow_nodes([case_of(random.normal(0, 0.5, nodes)) for _ in range(CASES)], 0.1))
        for _ in range(runs)
    )
    assert named <= 0.01 * runs + 3 * np.sqrt(0.01 * runs)


@for_each("nodes", [8, 64])
def test_a_node_that_takes_half_as_long_again_is_named_with_its_place(nodes: int) -> None:
    random = np.random.default_rng(7)
    log_s = random.normal(0, 0.01, nodes)
    log_s[3] += np.log(1.5)
    (slow,) = slow_nodes([case_of(log_s)], 0.1)
    assert (slow.node, slow.place) == (3, 1)
    assert 1.45 < slow.ratio < 1.55
    assert "takes 5" in slow.text or "takes 4" in slow.text
    assert "the slowest" in slow.text


def test_a_difference_that_does_not_matter_or_is_not_sure_names_nobody() -> None:
    equal = np.zeros(16)
    equal[3] = np.log(1.05)
    assert slow_nodes([case_of(equal)], 0.1) == []
    equal[3] = np.log(1.3)
    assert len(slow_nodes([case_of(equal)], 0.1)) == 1
    assert slow_nodes([case_of(equal, interval=0.2)], 0.1) == []


def test_few_nodes_need_a_larger_difference_than_many() -> None:
    assert spread_limit(5, 0.01) > spread_limit(8, 0.01) > spread_limit(64, 0.01) > 3
