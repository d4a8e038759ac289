"""Cases for two ranks as a real run plans them, and the check that a side moves their data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from commbench.backends.buffers.memory import HostBuffer
from commbench.cli.plans import facts_here
from commbench.config.compose import ConfigComposer
from commbench.core.case import Planned, World
from commbench.measure.plan import plan

Held = Mapping[str, HostBuffer]
ONE_NODE = ((0, 1),)
TWO_NODES = ((0,), (1,))


def planned(
    words: Sequence[str], rank: int, nodes: tuple[tuple[int, ...], ...] = ONE_NODE
) -> list[Planned]:
    """The planned cases, smallest message first. Raises ConfigError for an invalid override."""
    layout = f"layout={len(nodes)}x{len(nodes[0])}"
    with ConfigComposer() as composer:
        settings = composer.jobs([*words, "dtype=float32", layout], multirun=False)[0].settings
    jobs = plan(settings, World(rank, 2, nodes, (rank,)), facts_here())
    assert not any(job.skip for job in jobs), [job.skip for job in jobs]
    return sorted(jobs, key=lambda job: (job.case.message_bytes, job.case.streams or 0))


def check(job: Planned, rank: int, held: Held, side: Callable[[int], Any]) -> None:
    """Assert that a side moves the expected data to the expected places, in every copy of the
    buffers."""
    for name, buffer in held.items():
        buffer.write(job.benchmark.fill(job.case, rank, job.size, name, 0))
    side(job.pool)
    for name, buffer in held.items():
        expected = job.benchmark.expected(job.case, rank, job.size, name, 0)
        wrong = 0 if expected is None else buffer.count_wrong(expected, job.pool)
        assert wrong == 0, f"{job.case}: {wrong} wrong elements in {name}"
