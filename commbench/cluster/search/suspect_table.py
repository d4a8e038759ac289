"""What a search has found, with the names of its nodes: as the record in run.json and as the text
at its end, with the options that leave bad nodes out of a job, the evidence, and how it was
decided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commbench.cluster.search.bad_nodes import Findings
from commbench.cluster.search.first_rounds import METRICS
from commbench.cluster.search.pair_times import ASPECTS, Flags, PairTimes
from commbench.cluster.search.search_power import QUARTILE
from commbench.core.layout import Layout
from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import about_duration, format_seconds, plural
from commbench.stats.thresholds import FALSE_ALARMS, SURE_SHARE
from commbench.stats.verdict import Verdict

MOST_SUSPECTS = 32
SUSPECT_COLUMNS = (
    TableColumn("who"),
    TableColumn("decision"),
    TableColumn("what is slow"),
    TableColumn("longer by", right=True),
    TableColumn("between", right=True),
    TableColumn("pairs", right=True),
)
# of run.json
SUSPECT_KEYS = tuple(column.heading.replace(" ", "_") for column in SUSPECT_COLUMNS)
WORST_FIRST: tuple[Verdict, ...] = ("SLOWER", "UNDECIDED", "SAME")


@dataclass(frozen=True)
class Places:
    """The layout of a search and the host of each rank. Nodes are judged, or the ranks of a single
    node."""

    layout: Layout
    hosts: tuple[str, ...]

    @property
    def noun(self) -> str:
        return "node" if self.layout.nodes > 1 else "rank"

    @property
    def judged(self) -> tuple[str, ...]:
        """The host of each node, or of each rank of a single node."""
        return self.hosts[:: self.layout.ranks_per_node if self.layout.nodes > 1 else 1]

    @property
    def names(self) -> list[str]:
        """Of the nodes, or ranks."""
        hosts = self.judged
        return [
            host if hosts.count(host) == 1 else f"{self.noun} {number} ({host})"
            for number, host in enumerate(hosts)
        ]


@dataclass(frozen=True, eq=False)
class Search:
    """A search that has ended."""

    places: Places
    slowdown: float
    times: PairTimes
    findings: Findings
    rounds: int
    spent_s: float

    @property
    def is_clean(self) -> bool:
        """Whether no node is slower."""
        return set(self.findings.verdicts()) <= {"SAME"}

    @property
    def counts_text(self) -> str:
        """`7 SAME, 1 SLOWER, 0 UNDECIDED`."""
        verdicts = self.findings.verdicts()
        return ", ".join(
            f"{verdicts.count(each)} {each}" for each in ("SAME", "SLOWER", "UNDECIDED")
        )

    def further_text(self, further: int) -> str:
        """How long the rounds so far took, and so many further ones will at their rate."""
        left_s = self.spent_s / self.rounds * further
        return (
            f"{self.rounds} rounds took {about_duration(self.spent_s)}; a {self.places.noun} is in"
            f" doubt: {further} further rounds, about {about_duration(left_s)}"
        )

    def record(self) -> dict[str, Any]:
        """For run.json."""
        values = np.expm1(self.findings.excess.value).round(4)
        return {
            "answer": list(self._answer()),
            "rounds": self.rounds,
            "could_see": self.findings.could_see,
            "bad": self._with("SLOWER", self.places.names),
            "undecided": self._with("UNDECIDED", self.places.names),
            "nodes": self._verdicts_by_node(),
            "suspects": [
                dict(zip(SUSPECT_KEYS, self._row(nodes, who), strict=True))
                | {"nodes": list(nodes) if self.places.layout.nodes > 1 else [0]}
                for nodes, who in self._shown()
            ],
            "longer_by": {
                aspect: [None if math.isnan(value) else value for value in own]
                for aspect, own in zip(ASPECTS, values.tolist(), strict=True)
            },
        }

    def text(self, terminal: Terminal) -> str:
        """All of it."""
        rows = [self._row(nodes, who) for nodes, who in self._shown()]
        parts = [paragraphs(self._answer(), terminal)]
        if rows:
            parts += ["", table_text(SUSPECT_COLUMNS, rows, terminal), ""]
        return "\n".join([*parts, paragraphs(self._how(), terminal)])

    # ------------------------------------------------------------ the answer

    def _answer(self) -> Iterator[str]:
        slower = self._with("SLOWER", self.places.names)
        undecided = self._with("UNDECIDED", self.places.names)
        count = len(self.findings.verdicts())
        if slower:
            options = exclude_lines(self._with("SLOWER", self.places.judged), self.places.hosts)
            yield "; ".join((f"SLOWER: {_listed(slower)}", *options))
        if len(undecided) == count:
            yield f"UNDECIDED: all {count} {self.places.noun}s"
        elif undecided:
            yield f"UNDECIDED: {_listed(undecided)}"
        elif not slower:
            yield (
                f"SAME: all {count} {self.places.noun}s, unless"
                f" {self.findings.cluster.unseen} or more are slow alike"
            )

    def _with(self, verdict: Verdict, words: Iterable[str]) -> list[str]:
        """Those of the nodes, or ranks, with this verdict."""
        verdicts = self.findings.verdicts()
        return [word for word, own in zip(words, verdicts, strict=True) if own == verdict]

    def _verdicts_by_node(self) -> list[Verdict]:
        """Of each node of the layout: of a single one, the worst of its ranks."""
        verdicts = self.findings.verdicts()
        if self.places.layout.nodes > 1:
            return list(verdicts)
        return [min(verdicts, key=WORST_FIRST.index)]

    # ------------------------------------------------------------ the table

    def _shown(self) -> list[tuple[Sequence[int], str]]:
        """The nodes of each line and its first word: slow switches, other slow nodes, undecided
        ones; the slowest first."""
        switches = self.findings.bad_switches()
        lines: list[tuple[Sequence[int], str]] = [
            (nodes, f"{name} ({len(nodes)} {self.places.noun}s)")
            for name, nodes in switches.items()
        ]
        in_switch = {node for nodes in switches.values() for node in nodes}
        verdicts = self.findings.verdicts()
        for verdict in WORST_FIRST[:2]:
            chosen = [
                node
                for node, own in enumerate(verdicts)
                if own == verdict and node not in in_switch and self._marked([node]).any()
            ]
            chosen.sort(key=lambda node: -self._excess_of([node])[0])
            lines += [([node], self._who(node)) for node in chosen]
        return lines[:MOST_SUSPECTS]

    def _who(self, node: int) -> str:
        """The name of a node, with its slow ranks where the others are not."""
        cluster = self.findings.cluster
        slow = np.flatnonzero(self._marked([node]).any(axis=0))
        name = self.places.names[node]
        if len(slow) == cluster.ranks or self.findings.verdicts()[node] != "SLOWER":
            return name
        word = "rank" if len(slow) == 1 else "ranks"
        return f"{name} ({word} {', '.join(str(rank) for rank in slow)})"

    def _row(self, nodes: Sequence[int], who: str) -> list[str]:
        marked = self._marked(nodes)
        value, low, high = (100 * math.expm1(log) for log in self._excess_of(nodes))
        aspects = [name for name, own in zip(ASPECTS, marked, strict=True) if own.any()]
        return [
            who,
            self.findings.verdicts()[nodes[0]],
            ", ".join(aspects),
            f"{value:.3g} %",
            f"{low:.3g} .. {high:.3g} %" if math.isfinite(high - low) else "-",
            f"{int(self.findings.excess.times[marked].sum())}",
        ]

    def _excess_of(self, nodes: Sequence[int]) -> tuple[float, float, float]:
        """The logs of how much longer the times of the marked aspects are, and the bounds: medians
        of the ranks."""
        marked = self._marked(nodes)
        excess = self.findings.excess
        value, low, high = (
            float(np.median(own[marked])) for own in (excess.value, excess.low, excess.high)
        )
        return value, low, high

    def _marked(self, nodes: Sequence[int]) -> Flags:
        """The aspects and ranks of these nodes that are bad; undecided ones where none is."""
        ranks = np.isin(np.arange(len(self.places.hosts)) // self.findings.cluster.ranks, nodes)
        bad: Flags = self.findings.is_bad & ranks
        return bad if bad.any() else self.findings.is_undecided & ranks

    # ------------------------------------------------------------ how it was decided

    def _how(self) -> Iterator[str]:
        ends = np.sort(np.stack((self.times.source, self.times.destination)), axis=0)
        pairs = np.unique(ends, axis=1).shape[1]
        nodes = plural(self.findings.cluster.nodes, self.places.noun, f"{self.places.noun}s")
        yield (
            f"{nodes} in layout {self.places.layout}: {self.counts_text};"
            f" {plural(self.rounds, 'round', 'rounds')}, {plural(pairs, 'pair', 'pairs')},"
            f" {format_seconds(self.spent_s)}"
        )
        kinds = zip(METRICS, (~self.times.is_latency, self.times.is_latency), strict=True)
        typical = [
            f"{metric} {format_seconds(float(np.exp(np.quantile(log_s, QUARTILE))))}"
            for metric, entries in kinds
            if len(log_s := self.times.log_s[entries])
        ]
        yield f"typical: {', '.join(typical)}"
        slowdown = 100 * self.slowdown
        yield (
            f"a {self.places.noun} that takes {slowdown:.3g} % longer than typical"
            f" (search.slowdown) is SLOWER, one that takes less than {SURE_SHARE * slowdown:.3g} %"
            f" longer is SAME; between these it may be called either. A good one is called SLOWER"
            f" in at most {100 * FALSE_ALARMS:g} % of runs"
        )
        seen = [
            f"{metric} {100 * least:.0f} %" for metric, least in self.findings.could_see.items()
        ]
        yield f"could see: {', '.join(seen)}"
        if "UNDECIDED" in self.findings.verdicts():
            yield f"UNDECIDED: {self._why_undecided()}"

    def _why_undecided(self) -> str:
        noun = self.places.noun
        if self.findings.cluster.nodes == 2:
            return "a slow one of two nodes is in every pair, and so is the other"
        if self.findings.is_outpaced:
            return f"a quarter of the {noun}s is faster than these: most {noun}s may be slow"
        path = ", or nothing tells it from the path between two switches"
        larger = 2 * self.slowdown
        return (
            f"noise hides it{path if self.findings.cluster.members else ''}; run it on quiet"
            f" {noun}s, or with search.slowdown={larger:g}, which lets {100 * larger:g} % pass"
        )


def evidence_text(suspect: Mapping[str, Any]) -> str:
    """One of the `suspects` of run.json."""
    between = "" if suspect["between"] == "-" else f" ({suspect['between']})"
    return (
        f"{suspect['who']}: {suspect['what_is_slow']} take {suspect['longer_by']} longer than"
        f" typical{between}, in {suspect['pairs']} measured pairs"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_SUSPECTS} more" if len(names) > MOST_SUSPECTS else ""
    return f"{', '.join(names[:MOST_SUSPECTS])}{more}"


def exclude_lines(bad: Iterable[str], hosts: Iterable[str]) -> Iterator[str]:
    """What leaves the bad ones of several hosts out of a job."""
    names = list(dict.fromkeys(bad))
    if names and len(set(hosts)) > 1:
        yield f"Slurm: --exclude={','.join(names)}"
        yield f"Kubernetes: kubectl cordon {' '.join(names)}"
