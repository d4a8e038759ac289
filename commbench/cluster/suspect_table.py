"""The text at the end of a search: what was measured, the bad and the undecided ranks with their
evidence, and the options that leave bad nodes out of a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from commbench.core.layout import Layout
from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import format_seconds, plural

from .bad_nodes import (
    ASPECTS,
    LATENCY,
    SENDS,
    Cluster,
    Decision,
    Evidence,
    Flags,
    PairTimes,
    bad_limit,
)

MOST_SUSPECTS = 32
BAD_NODE: Decision = "bad"
UNDECIDED_NODE: Decision = "undecided"
GOOD_NODE: Decision = "good"
METRICS = ("bandwidth", "latency")
NOT_GOOD = (BAD_NODE, UNDECIDED_NODE)
# of run.json, as SUSPECT_COLUMNS
SUSPECT_KEYS = ("who", "decision", "what_is_slow", "longer_by", "pairs", "slow_pairs", "odds")
SUSPECT_COLUMNS = (
    TableColumn("who"),
    TableColumn("decision"),
    TableColumn("what is slow"),
    TableColumn("longer by", right=True),
    TableColumn("pairs", right=True),
    TableColumn("slow pairs", right=True),
    TableColumn("odds", right=True),
)


@dataclass(frozen=True)
class Places:
    """The ranks of a search: the host of each, and the groups that they belong to."""

    layout: Layout
    hosts: tuple[str, ...]
    cluster: Cluster
    groups: tuple[str, ...]

    @property
    def group_nouns(self) -> tuple[str, str]:
        """What the groups are, one and several of them."""
        return ("node", "nodes") if self.layout.ranks_per_node > 1 else ("switch", "switches")

    def node(self, place: int) -> int | None:
        """The number of the node of a rank, or of the node that a group is; None for a switch."""
        each = self.layout.ranks_per_node
        if place < self.cluster.nodes:
            return place // each
        if each == 1:
            return None
        return self.cluster.group_of.index(place - self.cluster.nodes) // each

    def name(self, place: int) -> str:
        """Of a rank, or of a group behind the ranks."""
        ranks = self.cluster.nodes
        if place >= ranks:
            return self.groups[place - ranks]
        if self.layout.ranks_per_node > 1 or self.hosts.count(self.hosts[place]) > 1:
            return f"rank {place} ({self.hosts[place]})"
        return self.hosts[place]


@dataclass(frozen=True)
class LinkClass:
    """The pairs whose links are of one kind. `median_s`: of a message of bandwidth and of latency,
    None where there is none."""

    name: str
    pairs: int
    median_s: tuple[float | None, float | None]


@dataclass(frozen=True, eq=False)
class Search:
    """A search that has ended."""

    places: Places
    times: PairTimes
    evidence: Evidence
    rounds: int
    spent_s: float

    @property
    def is_clean(self) -> bool:
        """Whether each rank is good."""
        return set(self.evidence.decisions()) <= {"good"}

    @property
    def counts_text(self) -> str:
        """`7 good, 1 bad, 0 undecided`."""
        decisions = self.evidence.decisions()
        return ", ".join(f"{decisions.count(name)} {name}" for name in (GOOD_NODE, *NOT_GOOD))

    def record(self) -> dict[str, Any]:
        """For run.json."""
        evidence = self.evidence
        decisions = evidence.decisions()
        names = [self.places.name(place) for place in range(evidence.log_ratios.shape[1])]
        return {
            "rounds": self.rounds,
            "noise": dict(zip(METRICS, evidence.noise, strict=True)),
            "least_slowdown": dict(zip(METRICS, evidence.least_slowdown, strict=True)),
            "bad": [name for name, each in zip(names, decisions, strict=False) if each == BAD_NODE],
            "undecided": [
                name for name, each in zip(names, decisions, strict=False) if each == UNDECIDED_NODE
            ],
            "link_classes": [asdict(link) for link in self.link_classes()],
            "nodes": self._decisions_by_node(),
            "suspects": [
                dict(zip(SUSPECT_KEYS, self._row(place), strict=True))
                | {"node": self.places.node(place)}
                for place in self._shown_places()
            ],
            "log10_odds": {
                aspect: dict(zip(names, np.round(ratios / math.log(10), 2).tolist(), strict=True))
                for aspect, ratios in zip(ASPECTS, evidence.log_ratios, strict=True)
            },
        }

    def link_classes(self) -> list[LinkClass]:
        """What is typical within groups and between them, where there are groups."""
        times = self.times
        cluster = self.places.cluster
        if not cluster.groups:
            return []
        group_of = np.array(cluster.group_of)
        first = group_of[times.source]
        within: Flags = (first == group_of[times.destination]) & (first >= 0)
        noun, nouns = self.places.group_nouns
        classes = []
        for name, chosen in ((f"within a {noun}", within), (f"between {nouns}", ~within)):
            own = [chosen & ~times.is_latency, chosen & times.is_latency]
            medians_s = tuple(
                float(np.exp(np.median(times.log_s[entries]))) if entries.any() else None
                for entries in own
            )
            ends = np.sort(np.stack((times.source[chosen], times.destination[chosen])), axis=0)
            if chosen.any():
                pairs = np.unique(ends, axis=1).shape[1]
                classes.append(LinkClass(name, pairs, (medians_s[0], medians_s[1])))
        return classes

    def _decisions_by_node(self) -> list[Decision]:
        """Of each node: the worst of its ranks."""
        decisions = self.evidence.decisions()
        each = self.places.layout.ranks_per_node
        by_node = [decisions[first : first + each] for first in range(0, len(decisions), each)]
        return [
            next((decision for decision in NOT_GOOD if decision in own), GOOD_NODE)
            for own in by_node
        ]

    def text(self, terminal: Terminal) -> str:
        """All of it."""
        chosen = self._shown_places()
        parts = [paragraphs(self._head(), terminal)]
        if chosen:
            table = table_text(SUSPECT_COLUMNS, [self._row(place) for place in chosen], terminal)
            parts += ["", table, ""]
        return "\n".join([*parts, paragraphs(self._ending(), terminal)])

    def _head(self) -> Iterator[str]:
        ends = np.sort(np.stack((self.times.source, self.times.destination)), axis=0)
        pairs = np.unique(ends, axis=1).shape[1]
        yield (
            f"{plural(self.places.cluster.nodes, 'rank', 'ranks')} in layout"
            f" {self.places.layout}: {self.counts_text}; {plural(self.rounds, 'round', 'rounds')},"
            f" {plural(pairs, 'pair', 'pairs')}, {format_seconds(self.spent_s)}"
        )
        for link in self.link_classes():
            texts = [
                f"{name} {format_seconds(seconds)}"
                for name, seconds in zip(METRICS, link.median_s, strict=True)
                if seconds is not None
            ]
            yield f"{link.name}: {plural(link.pairs, 'pair', 'pairs')}, typical {', '.join(texts)}"
        least = self.evidence.least_slowdown
        parts = [
            f"{name} {100 * slowdown:.0f} % (noise {100 * noise:.1f} %)"
            for name, slowdown, noise in zip(METRICS, least, self.evidence.noise, strict=True)
        ]
        yield f"looked for: what takes longer than typical by at least: {', '.join(parts)}"

    def _shown_places(self) -> list[int]:
        """Bad groups, bad ranks, then undecided ones, the most suspicious first."""
        cluster = self.places.cluster
        suspicion = self.evidence.log_ratios.max(axis=0)
        places = range(cluster.nodes + cluster.groups)
        decided = {place: self.evidence.decision(place) for place in places}
        in_bad_group = {
            rank
            for rank, group in enumerate(cluster.group_of)
            if group >= 0 and decided[cluster.nodes + group] == BAD_NODE
        }
        shown = [
            place
            for place in places
            if decided[place] == BAD_NODE
            or (
                decided[place] == UNDECIDED_NODE
                and place < cluster.nodes
                and place not in in_bad_group
            )
        ]
        shown.sort(
            key=lambda place: (decided[place] != BAD_NODE, place < cluster.nodes, -suspicion[place])
        )
        return shown[:MOST_SUSPECTS]

    def _row(self, place: int) -> list[str]:
        evidence = self.evidence
        aspects = evidence.bad_aspects(place)
        shown = [ASPECTS.index(aspect) for aspect in aspects]
        if not shown:
            shown = [int(evidence.log_ratios[:, place].argmax())]
        own = np.logical_or.reduce([self._is_about(place, aspect) for aspect in shown])
        is_latency = self.times.is_latency[own]
        least = np.log1p(np.where(is_latency, *reversed(evidence.least_slowdown)))
        excess = evidence.excess[own]
        odds = evidence.log_ratios[shown, place].max() / math.log(10)
        return [
            self.places.name(place),
            evidence.decision(place),
            ", ".join(ASPECTS[aspect] for aspect in shown),
            f"{100 * math.expm1(float(np.median(excess))):.0f} %" if len(excess) else "-",
            f"{len(excess)}",
            f"{np.count_nonzero(excess > least / 2)}",
            f"10^{odds:.0f}",
        ]

    def _is_about(self, place: int, aspect: int) -> Flags:
        """The entries whose time depends on an aspect of a rank, or of a group behind the ranks."""
        times = self.times
        ranks = self.places.cluster.nodes
        group_of = self.places.cluster.group_of
        if place < ranks:
            members = np.arange(ranks) == place
        else:
            members = np.array(group_of) == place - ranks
        either: Flags = members[times.source] | members[times.destination]
        one_way: Flags = members[times.source if aspect == SENDS else times.destination]
        return np.where(
            times.is_latency, (aspect == LATENCY) & either, (aspect != LATENCY) & one_way
        )

    def _ending(self) -> Iterator[str]:
        decisions = self.evidence.decisions()
        bad = [rank for rank, decision in enumerate(decisions) if decision == BAD_NODE]
        limit = bad_limit(self.evidence.cluster, self.evidence.rule) / math.log(10)
        false_alarm = 100 * self.evidence.rule.false_alarm
        yield (
            f"bad from odds of 10^{limit:.1f}, so that at most {false_alarm:g} % of runs name a"
            " good one"
        )
        if UNDECIDED_NODE in decisions:
            yield (
                "undecided: the times vary too much for the slowdown looked for; run it on quiet"
                " nodes, or with a larger search.slowdown"
            )
        yield from exclude_lines([self.places.hosts[rank] for rank in bad], self.places.hosts)


def exclude_lines(bad: Iterable[str], hosts: Iterable[str]) -> Iterator[str]:
    """What leaves the bad ones of several hosts out of a job."""
    names = list(dict.fromkeys(bad))
    if names and len(set(hosts)) > 1:
        yield f"Slurm: --exclude={','.join(names)}"
        yield f"Kubernetes: kubectl cordon {' '.join(names)}"
