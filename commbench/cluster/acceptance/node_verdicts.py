"""The end of an acceptance: PASS, FAIL or UNDECIDED for each node, from the runs of its stages.

A node passes if it passes each stage. A stage that says nothing about a node, because it was
skipped, ended early or has too few nodes to compare, makes it UNDECIDED, never PASS.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commbench.analysis.machines import Record
from commbench.cluster.acceptance.machine_facts import machine_results
from commbench.cluster.acceptance.verdict import STAGE_NAMES, NodeVerdict, StageName, StageResult
from commbench.cluster.search.node_rounds import search_refusal
from commbench.cluster.search.suspect_table import evidence_text
from commbench.core.layout import Layout
from commbench.core.states import STAGES, Stage, status_of_run
from commbench.core.units import plural
from commbench.core.variables import NAMES
from commbench.results.columns import case_text, grouped
from commbench.results.flags import UNUSABLE
from commbench.results.load import Paths, newest_rows, read_cases
from commbench.results.network_cards import interface_rails, port_rails
from commbench.results.row import Measured, Row
from commbench.stats.interval import Interval
from commbench.stats.outliers import LEAST_PARTS, slow_parts
from commbench.stats.thresholds import SLOWDOWN
from commbench.stats.verdict import Gate

# what a search says of a node; the second line: in runs of 2026
GATE_OF: Mapping[str, Gate] = {
    **{"SLOWER": "FAIL", "SAME": "PASS"},
    **{"bad": "FAIL", "good": "PASS"},
}


@dataclass(frozen=True)
class Acceptance:
    """The runs of an acceptance by stage, and their rows by run."""

    runs: Mapping[Stage, Sequence[Record]]
    rows: Mapping[str, Sequence[Row]]

    @functools.cached_property
    def records(self) -> list[Record]:
        return [record for records in self.runs.values() for record in records]

    @functools.cached_property
    def layout(self) -> Layout:
        """The largest of all stages."""
        names = [str(name) for record in self.records for name in record.get("layouts", ())]
        return Layout.around([Layout.parse(name) for name in names])

    @functools.cached_property
    def facts(self) -> list[Record]:
        """The facts of each node; empty where the nodes are simulated on one machine."""
        for record in self.records:
            nodes = (record.get("provenance") or {}).get("nodes") or []
            if len(nodes) >= self.layout.nodes:
                return list(nodes[: self.layout.nodes])
        return []

    @functools.cached_property
    def names(self) -> list[str]:
        """The host of each node."""
        hosts = [str(node.get("host.hostname", "?")) for node in self.facts]
        if len(set(hosts)) == self.layout.nodes:
            return hosts
        return [f"node{number}" for number in range(self.layout.nodes)]

    @functools.cached_property
    def verdicts(self) -> list[NodeVerdict]:
        """Of each node, in the order of the layout."""
        results: dict[StageName, list[StageResult]] = {
            "machine": list(machine_results(self.facts, self.layout.nodes)),
            "alone": list(self._alone()),
            "pairs": list(self._pairs("pairs")),
            "rails": list(self._pairs("rails")),
            "scaling": list(self._of_all_nodes("scaling")),
            "soak": list(self._of_all_nodes("soak")),
        }
        return [
            NodeVerdict(name, {stage: results[stage][node] for stage in STAGE_NAMES})
            for node, name in enumerate(self.names)
        ]

    @property
    def exit_status(self) -> int:
        """0 if all nodes pass."""
        return 0 if all(verdict.answer == "PASS" for verdict in self.verdicts) else 1

    @property
    def slowdown(self) -> float:
        """By how much a node is slower that fails alone, 0.1 is 10 %."""
        config = self.runs["alone"][0]["config"] if self.runs.get("alone") else {}
        return float(config.get("search", {}).get("slowdown", SLOWDOWN))

    def rows_of(self, stage: Stage) -> list[Row]:
        return [
            row
            for record in self.runs.get(stage, ())
            for row in self.rows.get(str(record.get("run_id")), ())
        ]

    # ------------------------------------------------------------ stages

    def _alone(self) -> Iterator[StageResult]:
        """Each node against the others at the same work."""
        nodes = self.layout.nodes
        rows = self.rows_of("alone")
        by_node = grouped(rows, lambda row: row.node)
        slow = _slower_than_others(rows, self.slowdown)
        too_few = (
            f"{plural(nodes, 'node', 'nodes')} can't be ranked: at least {LEAST_PARTS} are needed"
        )
        for node in range(nodes):
            own = by_node.get(str(node), [])
            wrong = [
                f"{_title_of_case(row)}: {row.reason}" for row in own if row.status == "invalid"
            ]
            flags = set().union(*(UNUSABLE.intersection(row.warnings) for row in own))
            marked = f" (flags: {', '.join(sorted(flags))})" if flags else ""
            faults = [*wrong, *(f"{text}{marked}" for text in slow.get(node, ()))]
            early = self._ended_early("alone", node)
            if early is not None and not faults:
                yield early
                continue
            doubts = _unmeasured([*own, *by_node.get(None, [])])
            if nodes < LEAST_PARTS:
                doubts.append(too_few)
            yield StageResult.of(faults, doubts[:1])

    def _pairs(self, stage: Stage) -> Iterator[StageResult]:
        """What the searches of a stage say: one, or one for each network card."""
        searched = self.runs.get(stage, ())
        for node in range(self.layout.nodes):
            results = [_searched(record, node) for record in searched]
            faults = [line for each in results if each.answer == "FAIL" for line in each.lines]
            early = self._ended_early(stage, node)
            if faults:
                yield StageResult("FAIL", tuple(faults))
            elif stage == "rails" and not searched and (reason := self._no_rails(node)):
                yield StageResult(None, (reason,))
            elif not searched and (refusal := search_refusal(self.layout)):
                yield StageResult("UNDECIDED", (refusal,))
            elif early is not None:
                yield early
            else:
                yield min(results, key=lambda result: result.answer != "UNDECIDED")

    def _of_all_nodes(self, stage: Stage) -> Iterator[StageResult]:
        """Operations of all nodes: they name no node, but a node was in each of them, or not."""
        rows = self.rows_of(stage)
        for node in range(self.layout.nodes):
            own = [row for row in rows if Layout.parse(row.layout).nodes > node]
            yield self._ended_early(stage, node) or StageResult.of(doubts=_unmeasured(own))

    def _ended_early(self, stage: Stage, node: int) -> StageResult | None:
        """Of a stage that was not run or not finished: FAIL for the node that its reason names."""
        records = self.runs.get(stage, ())
        if not records:
            return StageResult("UNDECIDED", ("the stage was not run",))
        name = re.escape(self.names[node])
        whole_name = re.compile(rf"(?<![\w.-]){name}(?![\w-])")
        for record in records:
            reasons = [str(text) for text in (record.get("broken_reasons") or {}).values()]
            reasons += [str(record["reason"])] if record.get("reason") else []
            named = [text for text in reasons if whole_name.search(text)]
            if named:
                return StageResult("FAIL", (named[0],))
            if status_of_run(record) != "done":
                reason = record.get("reason") or "it did not end"
                return StageResult("UNDECIDED", (f"the stage ended early: {reason}",))
        return None

    def _no_rails(self, node: int) -> str | None:
        """Why there are no network cards to compare on a node; None if there are several."""
        if not self.facts:
            return "the nodes are simulated and have no network cards"
        interfaces = [(record.get("config") or {}).get("interface") for record in self.records]
        given = {str(interface) for interface in interfaces if interface is not None}
        if given:
            return f"all stages used interface={', '.join(sorted(given))}, as the user gave it"
        cards = port_rails(self.facts[node]) or interface_rails(self.facts[node])
        if len(cards) > 1:
            return None
        return f"each node has one network card ({cards[0]})" if cards else "no network card is up"


def stage_of(record: Record) -> Stage | None:
    """The stage of a run; None if it belongs to no acceptance."""
    config = record.get("config")
    name = config.get("stage") if isinstance(config, Mapping) else None
    return next((stage for stage in STAGES if stage == name), None)


def read_acceptance(paths: Sequence[Paths]) -> Acceptance | None:
    """The newest acceptance below the folders; None if there is none."""
    sources, _ = read_cases(paths)
    runs = newest_runs([record for source in sources for record in source.records])
    if not runs:
        return None
    rows = newest_rows(source.cases for source in sources)
    return Acceptance(runs, grouped(rows, lambda row: row.run_id))


def newest_runs(records: Sequence[Record]) -> dict[Stage, list[Record]]:
    """The runs of the newest acceptance among these, by stage; empty if there is none."""
    staged = [record for record in records if stage_of(record) is not None]
    if not staged:
        return {}
    newest = max(staged, key=lambda record: str(record.get("run_id")))
    own = [record for record in staged if record.get("sweep_id") == newest.get("sweep_id")]
    by_stage = grouped(own, stage_of)
    return {stage: by_stage[stage] for stage in STAGES if stage in by_stage}


# ---------------------------------------------------------------- searches


def _searched(record: Record, node: int) -> StageResult:
    """What the search of a run says about a node."""
    search = record.get("search") or {}
    verdicts = search.get("nodes") or []
    if node >= len(verdicts):
        return StageResult("UNDECIDED", ("no pair was measured",))
    answer = GATE_OF.get(verdicts[node], "UNDECIDED")
    if answer == "PASS":
        return StageResult(answer)
    where = _rail_of(record)
    lines = tuple(
        f"{where}{evidence_text(suspect)}"
        for suspect in search.get("suspects") or []
        if node in suspect.get("nodes", ()) and suspect.get("decision") == verdicts[node]
    )
    nothing = "its pairs are slow" if answer == "FAIL" else "its pairs decide nothing"
    return StageResult(answer, lines or (f"{where}{nothing}",))


def _rail_of(record: Record) -> str:
    """`eth1: `, the network card that a search was made on; empty for a search on all."""
    config = record.get("config") or {}
    if stage_of(record) != "rails":
        return ""
    card = config.get("interface") or (config.get("env") or {}).get("NCCL_IB_HCA", "")
    return f"{str(card).lstrip('=')}: "


# ---------------------------------------------------------------- rows


def _slower_than_others(rows: Sequence[Row], slowdown: float) -> dict[int, list[str]]:
    """What is slow on each slow node. Flags do not count: what they say of all nodes does not
    change their order, and a node that alone is throttled is to be found."""

    def case_without_node(row: Row) -> tuple[object, ...]:
        return tuple(getattr(row, name) for name in NAMES if name != "node")

    cases = []
    for same in grouped(rows, case_without_node).values():
        times = {
            int(row.node): Interval(row.median_s, row.ci_low_s or row.median_s)
            for row in same
            if isinstance(row, Measured) and row.node
        }
        if len(times) >= LEAST_PARTS:
            cases.append((_title_of_case(same[0]), times))
    texts: dict[int, list[str]] = {}
    for title, times in cases:
        for node, slow in slow_parts(times, slowdown, len(cases)).items():
            place = "the slowest" if slow.place == 1 else f"the {slow.place}. slowest"
            texts.setdefault(node, []).append(
                f"{title} within the node takes {100 * (slow.ratio - 1):.0f} % longer than on the"
                f" median node, {place}; {slow.spreads:.1f} spreads of the nodes, the limit is"
                f" {slow.limit:.1f}"
            )
    return texts


def _title_of_case(row: Row) -> str:
    return case_text(replace(row, node=None))


def _unmeasured(rows: Sequence[Row]) -> list[str]:
    """Why the first case of these that has no usable number has none; empty if all have one."""
    if not rows:
        return ["no case was measured"]
    problems = [row for row in rows if row.status != "ok"]
    return [f"{_title_of_case(row)} {row.status}: {row.reason}" for row in problems[:1]]
