"""A search for slow ranks (`pairs=search`): after each round of pairs rank 0 chooses the next from
the rows so far, and says at the end who is slow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from commbench.cluster.bad_nodes import (
    LEAST_NODES,
    Cluster,
    Evidence,
    PairTimes,
    SearchRule,
    evidence_of,
)
from commbench.cluster.node_rounds import Round, next_round, random_rounds
from commbench.cluster.slurm_switches import slurm_switches
from commbench.cluster.suspect_table import Places, Search
from commbench.config.settings import Settings
from commbench.core.case import Planned, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout, Pair
from commbench.core.states import Row, case_status
from commbench.measure.further_rounds import SearchResult
from commbench.measure.plan import plan_round
from commbench.measure.plan_facts import PlanFacts


def check_search(layout: Layout) -> None:
    """Raises ConfigError for too few ranks."""
    if layout.size < LEAST_NODES:
        raise ConfigError(
            f"layout={layout} has {layout.size} ranks; a search compares them with each other and"
            f" needs at least {LEAST_NODES}",
            shared=True,
        )


def places_of(switches: Mapping[str, str], layout: Layout, hosts: Sequence[str]) -> Places:
    """The ranks of the layout with their hosts and groups: the nodes, if these have several ranks;
    else the switches of the hosts. `hosts` are those of the ranks."""
    if layout.nodes == 1:
        groups: list[str | None] = [None] * layout.size
    elif layout.ranks_per_node > 1:
        groups = [
            f"{hosts[rank]} (node {rank // layout.ranks_per_node})" for rank in range(layout.size)
        ]
    else:
        groups = [switches.get(host) for host in hosts]
    cluster, names = Cluster.of_names(groups)
    return Places(layout, tuple(hosts), cluster, names)


def pair_times(rows: Iterable[Row]) -> PairTimes:
    """The measured pairs. Those of one case run at the same time, so they share what is typical."""
    entries = [
        (
            row["order"],
            row["window"] is None,
            row["source"],
            row["destination"],
            float(np.mean(np.log(row["visit_medians_s"]))),
            len(row["visit_medians_s"]),
        )
        for row in rows
        if case_status(row) == "ok" and row["source"] is not None
    ]
    columns = list(zip(*entries, strict=True)) or [()] * 6
    return PairTimes(
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=bool),
        np.array(columns[2], dtype=np.int64),
        np.array(columns[3], dtype=np.int64),
        np.array(columns[4], dtype=np.float64),
        np.array(columns[5], dtype=np.int64),
    )


def search_of(
    rows: Iterable[Row], places: Places, slowdown: float, rounds: int, spent_s: float
) -> Search | None:
    """What the rows say about the ranks; None if no pair could be measured."""
    times = pair_times(rows)
    if not len(times):
        return None
    evidence = evidence_of(times, places.cluster, SearchRule(slowdown=slowdown))
    return Search(places, times, evidence, rounds, spent_s)


def node_search(settings: Settings, world: World, facts: PlanFacts, first_order: int) -> NodeSearch:
    """See measure.further_rounds.PairSearch."""
    return NodeSearch(SearchRounds(settings, world, facts, first_order), settings, world)


def first_pairs(layout: Layout, seed: int) -> list[tuple[Pair, ...]]:
    """See measure.further_rounds.PairSearch."""
    return [each.pairs for each in random_rounds(layout.size, seed, layout.ranks_per_node)]


class NodeSearch:
    """See measure.further_rounds.FurtherRounds."""

    def __init__(self, rounds: SearchRounds, settings: Settings, world: World) -> None:
        self._rounds = rounds
        self._settings = settings
        self._world = world
        self._switches: Mapping[str, str] | None = None  # of the hosts, once they are needed

    def repeated(self) -> tuple[Planned, ...]:
        return self._rounds.repeated()

    def choose(self, result: SearchResult | None) -> Any:
        evidence = result.evidence if isinstance(result, Search) else None
        return self._rounds.choose(evidence).plain()

    def further(self, decided: Any, library: str | None) -> tuple[Planned, ...]:
        return self._rounds.further(Round.of_plain(decided), library)

    def of_rows(self, rows: Iterable[Row]) -> list[Any]:
        return [each.plain() for each in self._rounds.of_rows(rows)]

    def go_on_after(self, decided: Sequence[Any], library: str | None) -> tuple[Planned, ...]:
        return self._rounds.go_on_after([Round.of_plain(each) for each in decided], library)

    def result(self, rows: Iterable[Row], hosts: Sequence[str], spent_s: float) -> Search | None:
        layout = self._settings.layouts[0]
        nodes = len(self._world.nodes)
        # simulated nodes are on one host
        names = hosts if len(hosts) >= nodes else [f"node{node}" for node in range(nodes)]
        of_ranks = [names[self._world.node_of(rank)] for rank in layout.members(self._world)]
        if self._switches is None:
            named = self._settings.search.switches
            self._switches = named or slurm_switches(names, os.environ)
        places = places_of(self._switches, layout, of_ranks)
        slowdown = self._settings.search.slowdown
        return search_of(rows, places, slowdown, self._rounds.count, spent_s)


class SearchRounds:
    """The rounds so far, the same on all ranks. A round with several visits is several passes."""

    def __init__(
        self, settings: Settings, world: World, facts: PlanFacts, first_order: int
    ) -> None:
        """`first_order` is that of the first case behind those of the random rounds."""
        self._first_order = first_order
        self._next_order = first_order
        self._settings = settings
        self._world = world
        self._facts = facts
        self._layout = settings.layouts[0]
        self._rounds = random_rounds(self._layout.size, settings.seed, self._layout.ranks_per_node)
        self._cases: tuple[Planned, ...] = ()
        self._visits_left = 0

    @property
    def count(self) -> int:
        return len(self._rounds)

    def repeated(self) -> tuple[Planned, ...]:
        """The cases of the last round if it has visits left."""
        if self._visits_left == 0:
            return ()
        self._visits_left -= 1
        return self._cases

    def choose(self, evidence: Evidence | None) -> Round:
        """The next round, on rank 0."""
        return next_round(
            self._rounds,
            evidence,
            self._layout.size,
            self._settings.seed,
            self._layout.ranks_per_node,
        )

    def further(self, decided: Round, library: str | None) -> tuple[Planned, ...]:
        """The cases of the round that rank 0 has decided on."""
        if not decided.pairs:
            return ()
        self._rounds.append(decided)
        self._visits_left = decided.visits - 1
        planned = self._plan(decided, self._next_order)
        self._next_order += len(planned)
        self._cases = tuple(
            replace(each, case=replace(each.case, library=library)) for each in planned
        )
        return self._cases

    def of_rows(self, rows: Iterable[Row]) -> list[Round]:
        """The further rounds of earlier starts, on rank 0, from what they have recorded: the pairs
        of each, and the visits that it had. A pair that has met again is in the later round."""
        trial = self._plan(Round(((0, 1),), 1), 0)
        turned = [planned.case.pair != "0-1" for planned in trial]
        met: dict[int, dict[Pair, int]] = {}
        for row in rows:
            number, place = divmod(row["order"] - self._first_order, len(trial))
            if number < 0 or row["source"] is None:
                continue
            pair = row["source"], row["destination"]
            pairs = met.setdefault(number, {})
            key = pair[::-1] if turned[place] else pair
            pairs[key] = max(pairs.get(key, 1), len(row["visit_medians_s"] or ()))
        return [
            Round(tuple(pairs), max(pairs.values()))
            for pairs in (met.get(number, {}) for number in range(max(met, default=-1) + 1))
            if pairs
        ]

    def go_on_after(self, rounds: Sequence[Round], library: str | None) -> tuple[Planned, ...]:
        """The cases of the further rounds of earlier starts, of which no visit is left."""
        cases = [planned for each in rounds for planned in self.further(each, library)]
        self._visits_left = 0
        return tuple(cases)

    def _plan(self, decided: Round, first_order: int) -> tuple[Planned, ...]:
        return plan_round(self._settings, self._world, self._facts, decided.pairs, first_order)
