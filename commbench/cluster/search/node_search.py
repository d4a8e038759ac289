"""A search for slow nodes (`pairs=search`): rounds of random pairs, further ones if there are
suspects, and at the end who is slow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from commbench.cluster.search.bad_nodes import findings_of
from commbench.cluster.search.node_rounds import FIRST_VISITS, Meetings, search_refusal
from commbench.cluster.search.pair_times import Cluster, PairTimes
from commbench.cluster.search.search_power import FURTHER_VISITS
from commbench.cluster.search.slurm_switches import slurm_switches
from commbench.cluster.search.suspect_table import Places, Search
from commbench.config.settings import Settings
from commbench.core.case import Planned, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout, Pair, pairs_text
from commbench.core.terminal import print_error
from commbench.core.units import about_duration
from commbench.measure.further_rounds import SearchResult
from commbench.measure.plan import duration_s, plan, plan_round, setup_s
from commbench.measure.plan_facts import PlanFacts
from commbench.results.row import Measured, Row


def check_search(layout: Layout) -> None:
    """See measure.further_rounds.PairSearch."""
    refusal = search_refusal(layout)
    if refusal is not None:
        raise ConfigError(refusal, shared=True)


def cluster_of(switches: Mapping[str, str], places: Places) -> Cluster:
    """The nodes with the switches of their hosts, or the ranks of a single node."""
    layout = places.layout
    if layout.nodes == 1:
        return Cluster(layout.size)
    of_nodes = tuple(map(switches.get, places.judged))
    return Cluster(layout.nodes, layout.ranks_per_node, of_nodes)


CASES = 3  # of a round: one way, the other way, latency


def pair_times(rows: Iterable[Row], meetings: Meetings, visits: int) -> PairTimes:
    """The measured pairs. A pair has so many visits in its first round and one in each later round
    of the same pairs."""
    ways = {
        ends: (number, way)
        for number in range(meetings.period)
        for pair in meetings.pairs(number)
        for way, ends in enumerate((pair, pair[::-1]))
    }
    entries = []
    for row in rows:
        if not isinstance(row, Measured) or row.source is None or row.destination is None:
            continue
        ends = row.source, row.destination
        number, way = ways[ends]
        is_latency = row.window is None
        for visit, median_s in enumerate(row.visit_medians_s or ()):
            again = max(visit + 1 - visits, 0)
            case = CASES * (number + again * meetings.period) + (2 if is_latency else way)
            entries.append((case, is_latency, *ends, median_s))
    case, is_latency, source, destination, medians_s = np.array(entries or np.empty((0, 5))).T
    return PairTimes(
        case.astype(np.int64),
        is_latency.astype(bool),
        source.astype(np.int64),
        destination.astype(np.int64),
        np.log(medians_s),
    )


def node_search(
    settings: Settings, world: World, facts: PlanFacts, first_order: int
) -> SearchRounds:
    """See measure.further_rounds.PairSearch."""
    rounds = SearchRounds(settings, world, facts, first_order)
    if world.rank == 0:
        print_error(rounds.rounds_text())
    return rounds


def rounds_s(settings: Settings, least_s: float, most_s: float) -> list[float]:
    """See measure.further_rounds.PairSearch."""
    meetings = Meetings(settings.layouts[0], settings.seed)
    first = meetings.rounds(FIRST_VISITS)
    pairs = min(first, meetings.period)
    return [least_s / pairs * first, most_s / pairs * _most_rounds(meetings)]


def _most_rounds(meetings: Meetings) -> int:
    return meetings.rounds(FIRST_VISITS) + meetings.rounds(FURTHER_VISITS[-1])


def first_pairs(layout: Layout, seed: int) -> list[tuple[Pair, ...]]:
    """See measure.further_rounds.PairSearch."""
    meetings = Meetings(layout, seed)
    count = min(meetings.rounds(FIRST_VISITS), meetings.period)
    return [meetings.pairs(number) for number in range(count)]


class SearchRounds:
    """See measure.further_rounds.FurtherRounds."""

    def __init__(
        self, settings: Settings, world: World, facts: PlanFacts, first_order: int
    ) -> None:
        """`first_order` is that of the first case behind those of `first_pairs`."""
        self._settings = settings
        self._world = world
        self._facts = facts
        self._layout = settings.layouts[0]
        self._meetings = Meetings(self._layout, settings.seed)
        self._first_rounds = self._meetings.rounds(FIRST_VISITS)
        self.count = min(self._first_rounds, self._meetings.period)
        self._next_order = first_order
        self._planned: dict[int, tuple[Planned, ...]] = {}  # by round, of the first period
        self._switches: Mapping[str, str] | None = None  # of the hosts, once they are needed

    def rounds_text(self) -> str:
        """How many rounds the search has, with their time as planned."""
        planned = plan_round(
            self._settings, self._world, self._facts, self._meetings.pairs(0), first_order=0
        )
        round_s = sum(duration_s(self._settings, each) for each in planned)
        first = self._first_rounds
        most = _most_rounds(self._meetings)
        again = f", {self.count} of different pairs" if self.count < first else ""
        least = ""
        if self._settings.timing.repetitions is not None:  # whose time is not known
            least_s = first * sum(setup_s(self._settings, each) for each in planned)
            least = f"{about_duration(least_s)} to "
        return (
            f"{first} rounds{again}: about {least}{about_duration(first * round_s)}; up to {most}"
            f" rounds, {about_duration(most * round_s)}, if a {Places(self._layout, ()).noun} is in"
            " doubt"
        )

    def choose(self, result: SearchResult | None) -> int:
        """The first rounds, and as many as suspects need. These are known from the first alone;
        their time is that of the first, and said."""
        if not isinstance(result, Search):
            return self.count
        if self.count < self._first_rounds:
            return self._first_rounds
        further = self._meetings.rounds(result.findings.further_visits)
        if further and self.count == self._first_rounds:
            print_error(result.further_text(further))
        return self._first_rounds + further

    def following(self, rounds: int, library: str | None) -> tuple[Planned, ...]:
        """See measure.further_rounds.FurtherRounds."""
        return self._new(rounds, library) or self._repeated(rounds, library)

    def begun(self, rows: Iterable[Row]) -> int:
        """See measure.further_rounds.FurtherRounds."""
        return int(self._times(rows).case.max(initial=-1)) // CASES + 1

    def go_on_after(self, rounds: int, library: str | None) -> tuple[Planned, ...]:
        """See measure.further_rounds.FurtherRounds."""
        cases = self._new(rounds, library)
        self.count = max(self.count, rounds)
        return cases

    def result(self, rows: Iterable[Row], hosts: Sequence[str], spent_s: float) -> Search | None:
        """See measure.further_rounds.FurtherRounds."""
        times = self._times(rows)
        if not len(times):
            return None
        nodes = len(self._world.nodes)
        # simulated nodes are on one host
        names = hosts if len(hosts) >= nodes else [f"node{node}" for node in range(nodes)]
        members = self._layout.members(self._world)
        places = Places(self._layout, tuple(names[self._world.node_of(rank)] for rank in members))
        if self._switches is None:
            self._switches = self._settings.search.switches or slurm_switches(names, os.environ)
        slowdown = self._settings.search.slowdown
        is_first = times.case < CASES * self._first_rounds
        findings = findings_of(
            times.chosen(is_first),
            times.chosen(~is_first),
            cluster_of(self._switches, places),
            slowdown,
        )
        return Search(places, slowdown, times, findings, self.count, spent_s)

    def _new(self, rounds: int, library: str | None) -> tuple[Planned, ...]:
        """Those that no round had before."""
        new = range(self.count, min(rounds, self._meetings.period))
        for number in new:
            pairs = self._meetings.pairs(number)
            planned = plan_round(self._settings, self._world, self._facts, pairs, self._next_order)
            self._planned[number] = _with_library(planned, library)
            self._next_order += len(planned)
            self.count += 1
        return tuple(planned for number in new for planned in self._planned[number])

    def _repeated(self, rounds: int, library: str | None) -> tuple[Planned, ...]:
        """Where there are no such: those that earlier rounds had."""
        period = self._meetings.period
        again = range(self.count, min(rounds, self.count + period))
        self.count += len(again)
        if again and 0 not in self._planned:
            self._add_first(library)
        return tuple(planned for number in again for planned in self._planned[number % period])

    def _times(self, rows: Iterable[Row]) -> PairTimes:
        return pair_times(rows, self._meetings, self._settings.timing.visits)

    def _add_first(self, library: str | None) -> None:
        """The cases that were planned before the run, by round."""
        planned = _with_library(plan(self._settings, self._world, self._facts), library)
        for number, pairs in enumerate(first_pairs(self._layout, self._settings.seed)):
            texts = {pairs_text(pairs), pairs_text(pair[::-1] for pair in pairs)}
            self._planned[number] = tuple(each for each in planned if each.case.pair in texts)


def _with_library(cases: Iterable[Planned], library: str | None) -> tuple[Planned, ...]:
    return tuple(replace(each, case=replace(each.case, library=library)) for each in cases)
