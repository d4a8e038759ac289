"""`make locate`: how often `commbench locate` finds a planted slow part, names a good node, and
leaves a node undecided; rewrites the table in docs/locate.md.

`python tools/locate RUNS [WORD ...]` makes RUNS runs with each noise (default: 100), of the rows
that contain all these words. Each row is written as soon as it is known; other rows stay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import put_row
from simulated_cluster import NOISES, SimulatedCluster, searched

from commbench.cluster.search.bad_nodes import Findings
from commbench.cluster.search.pair_times import ASPECTS, RECEIVES, SENDS, Cluster
from commbench.core.layout import Layout

RUNS = 100
SPREADS = (0.02, 0.05)
BANDWIDTH = (SENDS, RECEIVES)
COLUMNS = (
    "planted",
    "layout",
    "all of it named",
    "a good node named",
    "a slow node called good",
    "a node undecided",
    "rounds, 2 % and 5 % noise",
    "runs",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


@dataclass(frozen=True)
class World:
    """`factor` is how much longer the planted nodes take, 0 for as much as a run could see.
    `is_bad` says whether they must be named, `is_switch` whether they are a named switch."""

    planted: str
    layout: str
    nodes: int = 1
    factor: float = 1.1
    aspects: tuple[int, ...] = BANDWIDTH
    is_bad: bool = True
    is_switch: bool = False

    @property
    def names(self) -> str:
        """The start of its line."""
        return f"| {self.planted} | {self.layout} | "

    @property
    def cluster(self) -> Cluster | None:
        """Where the switches are named: each has as many nodes as the planted one."""
        if not self.is_switch:
            return None
        nodes = Layout.parse(self.layout).nodes
        return Cluster(nodes, 1, tuple(f"leaf{node // self.nodes}" for node in range(nodes)))


SEEN = "one node, as slow as `could see` says"
DOUBLED = "one node, 2 x"
WORLDS = (
    World("nothing", "128x1", nodes=0),
    World("one node, 10 %", "128x1"),
    World("one node, 6 %", "128x1", factor=1.06, is_bad=False),
    World("one direction of one node, 10 %", "128x1", aspects=(RECEIVES,)),
    World("two nodes, 10 %", "128x1", nodes=2),
    World("a named switch of 16, 10 %", "128x1", nodes=16, is_switch=True),
    *(
        World("one of two named switches, 15 %", f"{2 * nodes}x1", nodes, 1.15, is_switch=True)
        for nodes in (4, 8, 32)
    ),
    *(
        World("one of three named switches, 15 %", f"{3 * nodes}x1", nodes, 1.15, is_switch=True)
        for nodes in (3, 8)
    ),
    *(World("half of the nodes, 15 %", f"{2 * nodes}x1", nodes, 1.15) for nodes in (4, 8, 32)),
    *(World("nothing", layout, nodes=0) for layout in ("3x2", "8x1")),
    *(
        World(DOUBLED, layout, factor=2.0)
        for layout in ("3x1", "4x1", "3x2", "3x4", "4x2", "4x4", "4x8")
    ),
    *(World(DOUBLED, layout, factor=2.0) for layout in ("5x4", "2x4", "2x8")),
    *(World(SEEN, layout, factor=0) for layout in ("3x1", "3x4", "4x2", "5x1", "8x1", "128x1")),
)


@dataclass(frozen=True)
class Result:
    """What a run has found."""

    is_named: bool
    false_alarm: bool
    is_called_good: bool
    is_undecided: bool
    rounds: int


def result_of(world: World, noise: str, spread: float, seed: int) -> Result:
    """A search of a cluster in which the world's part is planted at random."""
    layout = Layout.parse(world.layout)
    random = np.random.default_rng([seed, *noise.encode()])
    first = int(random.integers(layout.nodes)) // max(world.nodes, 1) * max(world.nodes, 1)
    planted = range(first, min(first + world.nodes, layout.nodes))

    def search(factor: float) -> tuple[Findings, int]:
        slowness = np.zeros((len(ASPECTS), layout.size))
        ranks = range(planted.start * layout.ranks_per_node, planted.stop * layout.ranks_per_node)
        slowness[np.ix_(world.aspects, ranks)] = np.log(factor)
        simulated = SimulatedCluster(layout, slowness, noise, spread, random)
        return searched(simulated, seed=seed, cluster=world.cluster)

    findings, rounds = search(world.factor or 1 + max(search(1.0)[0].could_see.values()))
    verdicts = findings.verdicts()
    named = {node for node, verdict in enumerate(verdicts) if verdict == "SLOWER"}
    bad = set(planted) if world.is_bad else set()
    return Result(
        bad <= named,
        bool(named - bad),
        any(verdicts[node] == "SAME" for node in bad),
        "UNDECIDED" in verdicts,
        rounds,
    )


def line_of(world: World, runs: int) -> str:
    """Its row: the share of all runs, and that with the noise in which it is worst."""
    results = {
        (noise, spread): [result_of(world, noise, spread, seed) for seed in range(runs)]
        for noise, spread in product(NOISES, SPREADS)
    }
    rounds = [
        np.mean([each.rounds for noise in NOISES for each in results[noise, spread]])
        for spread in SPREADS
    ]
    has_bad = world.is_bad and world.nodes > 0
    cells = (
        _shares(results, lambda each: each.is_named, min) if has_bad else "",
        _shares(results, lambda each: each.false_alarm, max),
        _shares(results, lambda each: each.is_called_good, max) if has_bad else "",
        _shares(results, lambda each: each.is_undecided, max),
        ", ".join(f"{mean:.0f}" for mean in rounds),
        f"{len(results)} x {runs}",
    )
    return f"{world.names}{' | '.join(cells)} |"


def _shares(
    results: dict[tuple[str, float], list[Result]],
    chosen: Callable[[Result], bool],
    worst: Callable[..., tuple[str, float]],
) -> str:
    shares = {
        noise: 100 * np.mean([chosen(each) for each in own]) for noise, own in results.items()
    }
    mean = np.mean(list(shares.values()))
    name, spread = worst(shares, key=lambda noise: shares[noise])
    if min(shares.values()) == max(shares.values()):
        return f"{mean:.1f} %"
    return f"{mean:.1f} % ({shares[name, spread]:.1f} %: {name}, {100 * spread:.0f} %)"


def main(words: Sequence[str]) -> int:
    runs = int(words[0]) if words else RUNS
    for world in WORLDS:
        if all(word in world.names for word in words[1:]):
            line = line_of(world, runs)
            print(line, flush=True)
            put_row("locate.md", "locate", HEAD, [each.names for each in WORLDS], line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
