"""Pairs that are chosen while a run measures (`pairs=search`): the protocol of what chooses them.

`measure` imports nothing that decides about nodes. The one who does is named in PAIR_SEARCH.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from commbench.config.settings import Settings
from commbench.core.annexes import needed_annex
from commbench.core.case import Planned, World
from commbench.core.layout import Layout, Pair
from commbench.core.terminal import Terminal
from commbench.results.row import Row

from .plan_facts import PlanFacts

PAIR_SEARCH = "commbench.cluster.search.node_search"


class SearchResult(Protocol):
    """What the rows say about the ranks."""

    @property
    def is_clean(self) -> bool: ...

    @property
    def counts_text(self) -> str: ...

    def record(self) -> dict[str, Any]:
        """For run.json."""

    def text(self, terminal: Terminal) -> str: ...


class FurtherRounds(Protocol):
    """The rounds of a run, the same on all ranks; rank 0 decides how many."""

    def choose(self, result: SearchResult | None) -> int:
        """How many rounds the run has, on rank 0."""

    def following(self, rounds: int, library: str | None) -> tuple[Planned, ...]:
        """The cases of the next of so many rounds: new cases; if there are none, the earlier ones
        again."""

    def begun(self, rows: Iterable[Row]) -> int:
        """How many rounds earlier starts have measured, on rank 0."""

    def go_on_after(self, rounds: int, library: str | None) -> tuple[Planned, ...]:
        """The cases of these that were not planned before the run."""

    def result(
        self, rows: Iterable[Row], hosts: Sequence[str], spent_s: float
    ) -> SearchResult | None:
        """What the rows say; None if no pair could be measured. `hosts` are those of the nodes."""


class PairSearch(Protocol):
    """The module named in PAIR_SEARCH."""

    def check_search(self, layout: Layout) -> None:
        """Raises ConfigError for too few ranks."""

    def first_pairs(self, layout: Layout, seed: int) -> list[tuple[Pair, ...]]:
        """The pairs of each round that is known before the run."""

    def rounds_s(self, settings: Settings, least_s: float, most_s: float) -> list[float]:
        """Least time of the first rounds, and most of all rounds, from that of their pairs."""

    def node_search(
        self, settings: Settings, world: World, facts: PlanFacts, first_order: int
    ) -> FurtherRounds:
        """`first_order` is that of the first case behind those of the first rounds."""


def pair_search() -> PairSearch:
    """Raises ConfigError where the package is not there."""
    search: PairSearch = needed_annex(PAIR_SEARCH, "pairs=search")
    return search
