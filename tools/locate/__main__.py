"""`make locate`: how often `commbench locate` finds a planted slow part of 512 nodes, and names a
good node; rewrites the table in docs/locate.md.

`python tools/locate RUNS [WORD ...]` makes RUNS runs a row (default: 400) of the rows that contain
all these words, such as `link "5 %"`. Each row is written as soon as it is known; other rows stay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from methods import (
    MEDIAN_OF_FIVE,
    bisected,
    five_partners,
    halfway,
    one_after_another,
    rare_in_health,
)
from simulated_cluster import GROUP_SIZE, Planted, Result, SimulatedCluster, located

from commbench.cluster.bad_nodes import Cluster, SearchRule

NODES = 512
RUNS = 400
NOISES = (0.02, 0.05)
KINDS = {
    "nothing": "nothing",
    "node": "slow node",
    "link": "slow link, one direction",
    "switch": f"slow switch of {GROUP_SIZE}",
}
RULE = SearchRule()
UNNAMED = Cluster((-1,) * NODES)
NAMED = Cluster(tuple(node // GROUP_SIZE for node in range(NODES)))
DOCUMENT = Path(__file__).parents[2] / "docs" / "locate.md"
BEGIN = "<!-- locate: written by tools/locate -->\n"
END = "<!-- end of locate -->\n"
COLUMNS = (
    "planted",
    "noise",
    "method",
    "all named",
    "runs with a false alarm",
    "runs with an undecided node",
    "rounds",
    "visits in turn",
    "pairs",
    "runs",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"

Method = Callable[[SimulatedCluster, int], Result]
METHODS: dict[str, Method] = {
    "commbench locate": lambda cluster, seed: located(cluster, UNNAMED, RULE, seed),
    "commbench locate, switches named": lambda cluster, seed: located(cluster, NAMED, RULE, seed),
    "bisection": lambda cluster, _: bisected(cluster, halfway(RULE.slowdown)),
    "one after another, limit halfway": lambda cluster, _: one_after_another(
        cluster, halfway(RULE.slowdown)
    ),
    "one after another, limit for 1 %": lambda cluster, _: one_after_another(
        cluster, rare_in_health(cluster.noise, 2 * NODES)
    ),
    "five partners, limit halfway": lambda cluster, _: five_partners(
        cluster, halfway(RULE.slowdown)
    ),
    "five partners, limit for 1 %": lambda cluster, _: five_partners(
        cluster, rare_in_health(MEDIAN_OF_FIVE * cluster.noise, 2 * NODES)
    ),
}


@dataclass(frozen=True)
class Row:
    """What a method did in all runs of one kind and noise."""

    names: str  # the start of its line
    planted: bool
    runs: int
    all_named: int
    false_alarms: int
    with_undecided: int
    most_rounds: int
    visits: float  # mean
    pairs: float  # mean

    def __str__(self) -> str:
        cells = (
            self._share(self.all_named) if self.planted else "",
            self._share(self.false_alarms),
            self._share(self.with_undecided),
            f"{self.most_rounds}",
            f"{self.visits:.0f}",
            f"{self.pairs:,.0f}",
            f"{self.runs}",
        )
        return f"{self.names}{' | '.join(cells)} |"

    def _share(self, count: int) -> str:
        return f"{100 * count / self.runs:.1f} %"


def row_of(names: str, results: Sequence[tuple[Planted, Result]]) -> Row:
    return Row(
        names,
        bool(results[0][0].bad),
        len(results),
        sum(planted.bad <= result.named for planted, result in results),
        sum(bool(result.named - planted.bad) for planted, result in results),
        sum(result.undecided > 0 for _, result in results),
        max(result.rounds for _, result in results),
        float(np.mean([result.visits for _, result in results])),
        float(np.mean([result.pairs for _, result in results])),
    )


def simulated(kind: str, noise: float, method: Method, seed: int) -> tuple[Planted, Result]:
    random = np.random.default_rng([seed, *kind.encode()])
    planted = Planted.of(kind, NODES, random, 1 + RULE.slowdown)
    return planted, method(SimulatedCluster(planted, noise, random), seed)


def names_of(kind: str, noise: float, method: str) -> str:
    return f"| {KINDS[kind]} | {100 * noise:.0f} % | {method} | "


def write_row(row: Row) -> None:
    """Put the row into the table of the document, in the order of the methods; other rows stay."""
    before, rest = DOCUMENT.read_text().split(BEGIN)
    table, after = rest.split(END)
    names = [names_of(*combination) for combination in product(KINDS, NOISES, METHODS)]
    known = {name: line for line in table.splitlines() for name in names if line.startswith(name)}
    known[row.names] = str(row)
    lines = "".join(f"{known[name]}\n" for name in names if name in known)
    temporary = DOCUMENT.with_suffix(".tmp")
    temporary.write_text(before + BEGIN + HEAD + lines + END + after)
    temporary.replace(DOCUMENT)


def main(words: list[str]) -> int:
    runs = int(words[0]) if words else RUNS
    for kind, noise, method in product(KINDS, NOISES, METHODS):
        names = names_of(kind, noise, method)
        if all(word in names for word in words[1:]):
            results = [simulated(kind, noise, METHODS[method], seed) for seed in range(runs)]
            row = row_of(names, results)
            print(row, flush=True)
            write_row(row)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
