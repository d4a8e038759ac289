"""Cases for two ranks as a real run plans them, and the proof that a side moves their data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from commbench.buffers.host import HostBuffer
from commbench.cli.doctor import facts_here
from commbench.config.compose import ConfigComposer
from commbench.core.case import Planned, World
from commbench.measure.plan import plan

Held = Mapping[str, HostBuffer]
ONE_NODE, TWO_NODES = ((0, 1),), ((0,), (1,))


def planned(words: Sequence[str], rank: int, nodes: tuple[tuple[int, ...], ...] = ONE_NODE) -> list[Planned]:
    """Smallest first; window, rotation, barriers and all. Raises ConfigError for a bad override."""
    layout = f"layout={len(nodes)}x{len(nodes[0])}"
    with ConfigComposer() as door:
        settings = door.jobs([*words, "dtype=float32", layout], multirun=False)[0].settings
    jobs = plan(settings, World(rank, 2, nodes, (rank,)), facts_here())
    assert not any(job.skip for job in jobs), [job.skip for job in jobs]
    return sorted(jobs, key=lambda job: (job.case.message_bytes, job.case.streams or 0))


def check(job: Planned, rank: int, held: Held, side: Callable[[int], Any]) -> None:
    """Every side moves the same data to the same places, in every copy."""
    for name, buffer in held.items():
        buffer.write(job.benchmark.fill(job.case, rank, job.size, name, 0))
    side(job.pool)
    for name, buffer in held.items():
        expected = job.benchmark.expected(job.case, rank, job.size, name, 0)
        wrong = 0 if expected is None else buffer.count_wrong(expected, job.pool)
        assert wrong == 0, f"{job.case}: {wrong} wrong elements in {name}"
