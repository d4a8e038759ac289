"""The end of an acceptance: PASS, FAIL or NOT MEASURED for each node, from the runs of its stages.

A node passes if it passes each stage. A stage that says nothing about a node, because it was
skipped, ended early or has too few nodes to compare, makes it NOT MEASURED, never PASS.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from commbench.analysis.machines import Record
from commbench.analysis.slow_pairs import UNUSABLE
from commbench.cluster.acceptance.node_outliers import LEAST_NODES, NodeTimes, slow_nodes
from commbench.cluster.search.bad_nodes import Decision
from commbench.cluster.search.node_rounds import search_refusal
from commbench.cluster.search.suspect_table import BAD_NODE, GOOD_NODE, exclude_lines
from commbench.core.layout import Layout
from commbench.core.states import STAGES, Row, Stage, case_status, status_of_run
from commbench.core.units import format_number, plural
from commbench.core.variables import NAMES
from commbench.report.section import Section, Table
from commbench.results.columns import case_text, grouped, hashable
from commbench.results.fact_scopes import MISSING, scope_of
from commbench.results.flags import warnings_of
from commbench.results.load import Paths, frame_of, read_cases, row_dicts
from commbench.results.network_cards import interface_rails, port_rails
from commbench.stats.thresholds import FALSE_ALARMS

if TYPE_CHECKING:
    from commbench.results.load import CaseSource

StageOutcome = Literal["FAIL", "NOT MEASURED", "PASS", "-"]  # the worst first; -: does not apply
STAGE_OUTCOMES: tuple[StageOutcome, ...] = get_args(StageOutcome)
StageName = Literal["machine"] | Stage
STAGE_NAMES: tuple[StageName, ...] = ("machine", *STAGES)
MOST_NODES = 64  # rows of the table; the rest is counted
MOST_EVIDENCE = 4  # lines of a node and stage
MOST_FACTS = 8  # named in the line of those that decide nothing
# facts that must be equal on all nodes, beside those that end a run (scope `error`)
DECIDING_FACTS = (
    "host.cpu_model",
    "host.cpu_physical_cores",
    "host.cpu_sockets",
    "host.numa_nodes",
    "gpu.",
    "network.interface.",
    "network.rdma.",
)
# of these facts, those that say how good a card is, not which one it is
DECIDING_ENDINGS = (
    *("speed_mbit_per_s", "rate_gbit_per_s", "mtu_bytes", "fw_ver", "firmware", ".state"),
    *(".name", "memory_total_bytes", "driver_version", "count", "power_limit_w"),
)
# of GPUs that have them (hardware/gpu_health.py)
RIGHT_GPU_FACTS = {
    "remapping_failed": False,
    "fabric_state": "completed",
    "fabric_health": "healthy",
}
MEMORY = "host.memory_total_bytes"
MEMORY_SHARE = 0.02  # by which the memory of equal nodes may differ
READ_COLUMNS = (
    *NAMES,
    *("run_id", "case_id", "status", "reason", "median_s", "ci_low_s", "warnings", "stop_reason"),
    "busbw_gb_per_s",
)
SCALING_HEADS = ("scaling", "message\nB", "nodes", "time\nus", "busbw\nGB/s")


@dataclass(frozen=True)
class StageResult:
    """What a stage says about a node; `lines` are its evidence, or why it says nothing."""

    outcome: StageOutcome
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeVerdict:
    name: str
    stages: Mapping[StageName, StageResult]

    @property
    def outcome(self) -> StageOutcome:
        """The worst of its stages."""
        worst = min((result.outcome for result in self.stages.values()), key=STAGE_OUTCOMES.index)
        return "NOT MEASURED" if worst == "-" else worst


@dataclass(frozen=True)
class Acceptance:
    """The runs of an acceptance by stage, and their rows by run."""

    runs: Mapping[Stage, Sequence[Record]]
    rows: Mapping[str, Sequence[Row]]

    @classmethod
    def of(cls, sources: Sequence[CaseSource], records: Sequence[Record]) -> Acceptance | None:
        """The newest acceptance among these runs; None if there is none."""
        staged = [record for record in records if stage_of(record) is not None]
        if not staged:
            return None
        newest = max(staged, key=lambda record: str(record.get("started_at")))
        own = [record for record in staged if record.get("sweep_id") == newest.get("sweep_id")]
        by_stage = grouped(own, stage_of)
        runs = {stage: by_stage[stage] for stage in STAGES if stage in by_stage}
        frame = frame_of([source.cases for source in sources]) if sources else None
        rows = [] if frame is None else row_dicts(frame)
        return cls(runs, grouped(rows, lambda row: str(row["run_id"])))

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
            "machine": list(_machine_results(self.facts, self.layout.nodes)),
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

    # ------------------------------------------------------------ stages

    def _alone(self) -> Iterator[StageResult]:
        """Each node against the others at the same work."""
        nodes = range(self.layout.nodes)
        rows = [row for record in self.runs.get("alone", ()) for row in self._rows_of(record)]
        by_node = grouped(rows, lambda row: row["node"])
        slow = slow_nodes(_node_times(rows), self._slowdown)
        for node in nodes:
            early = self._ended_early("alone", node)
            own = by_node.get(str(node), [])
            wrong = [
                f"{_title_of_case(row)}: {row['reason']}"
                for row in own
                if case_status(row) == "invalid"
            ]
            flags = set().union(*(warnings_of(row) & UNUSABLE for row in own))
            marked = f" (flags: {', '.join(sorted(flags))})" if flags else ""
            evidence = [f"{each.text}{marked}" for each in slow if each.node == node]
            if wrong or evidence:
                yield StageResult("FAIL", (*wrong, *evidence))
            elif early is not None:
                yield early
            elif problem := _first_unmeasured([*own, *(by_node.get(None, []))]):
                yield StageResult("NOT MEASURED", (problem,))
            elif len(nodes) < LEAST_NODES:
                yield StageResult("NOT MEASURED", (_too_few(len(nodes)),))
            else:
                yield StageResult("PASS")

    def _pairs(self, stage: Stage) -> Iterator[StageResult]:
        """What the searches of a stage say: one, or one for each network card."""
        nodes = self.layout.nodes
        searched = self.runs.get(stage, ())
        for node in range(nodes):
            results = [self._searched(record, node) for record in searched]
            bad = [result for result in results if result.outcome == "FAIL"]
            early = self._ended_early(stage, node)
            if bad:
                yield StageResult("FAIL", tuple(line for result in bad for line in result.lines))
            elif stage == "rails" and not searched and (reason := self._no_rails(node)):
                yield StageResult("-", (reason,))
            elif not searched and (refusal := search_refusal(self.layout)):
                yield StageResult("NOT MEASURED", (refusal,))
            elif early is not None:
                yield early
            else:
                yield min(results, key=lambda result: STAGE_OUTCOMES.index(result.outcome))

    def _searched(self, record: Record, node: int) -> StageResult:
        search = record.get("search") or {}
        decisions: Sequence[Decision] = search.get("nodes") or []
        if node >= len(decisions):
            return StageResult("NOT MEASURED", ("no pair was measured",))
        where = _rail_of(record)
        if decisions[node] == GOOD_NODE:
            return StageResult("PASS")
        suspects = [
            suspect
            for suspect in search.get("suspects") or []
            if node in suspect.get("nodes", ()) and suspect.get("decision") == decisions[node]
        ]
        lines = tuple(
            f"{where}{suspect['who']}: {suspect['what_is_slow']} take {suspect['longer_by']} longer"
            f" than typical ({suspect['between']}), in {suspect['pairs']} measured pairs"
            for suspect in suspects
        )
        if decisions[node] == BAD_NODE:
            return StageResult("FAIL", lines or (f"{where}its pairs are slow",))
        undecided = tuple(f"undecided: {line}" for line in lines)
        return StageResult("NOT MEASURED", undecided or ("its pairs decide nothing",))

    def _of_all_nodes(self, stage: Stage) -> Iterator[StageResult]:
        """Operations of all nodes: they name no node, but a node was in each of them, or not."""
        rows = [row for record in self.runs.get(stage, ()) for row in self._rows_of(record)]
        for node in range(self.layout.nodes):
            early = self._ended_early(stage, node)
            own = [row for row in rows if Layout.parse(row["layout"]).nodes > node]
            if early is not None:
                yield early
            elif problem := _first_unmeasured(own):
                yield StageResult("NOT MEASURED", (problem,))
            else:
                yield StageResult("PASS")

    def _ended_early(self, stage: Stage, node: int) -> StageResult | None:
        """Of a stage that was not run or not finished: FAIL for the node that its reason names."""
        records = self.runs.get(stage, ())
        if not records:
            return StageResult("NOT MEASURED", ("the stage was not run",))
        name = self.names[node]
        for record in records:
            reasons = [str(text) for text in (record.get("broken_reasons") or {}).values()]
            reasons += [str(record["reason"])] if record.get("reason") else []
            whole_name = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
            named = [text for text in reasons if whole_name.search(text)]
            if named:
                return StageResult("FAIL", (named[0],))
            if status_of_run(record) != "done":
                reason = record.get("reason") or "it did not end"
                return StageResult("NOT MEASURED", (f"the stage ended early: {reason}",))
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

    @property
    def _slowdown(self) -> float:
        config = self.runs["alone"][0]["config"] if self.runs.get("alone") else {}
        return float(config.get("search", {}).get("slowdown", 0.1))

    def _rows_of(self, record: Record) -> Sequence[Row]:
        return self.rows.get(str(record.get("run_id")), ())

    # ------------------------------------------------------------ text

    @property
    def exit_status(self) -> int:
        """0 if all nodes pass."""
        return 0 if all(verdict.outcome == "PASS" for verdict in self.verdicts) else 1

    def section(self) -> Section:
        """The table of the nodes, the worst first, and the evidence."""
        verdicts = sorted(self.verdicts, key=lambda verdict: STAGE_OUTCOMES.index(verdict.outcome))
        counts = Counter(verdict.outcome for verdict in verdicts)
        counted = ", ".join(f"{counts[name]} {name}" for name in ("PASS", "FAIL", "NOT MEASURED"))
        shown = verdicts[:MOST_NODES]
        cells = [
            [each.name, each.outcome, *(each.stages[stage].outcome for stage in STAGE_NAMES)]
            for each in shown
        ]
        colors = {row: "red" for row, each in enumerate(shown) if each.outcome == "FAIL"}
        nodes = Table(("node", "verdict", *STAGE_NAMES), cells, colors=colors)
        return Section(
            f"Acceptance of {plural(len(verdicts), 'node', 'nodes')}: {counted}",
            tables=[nodes, *self._scaling_table()],
            notes=[
                *self._hidden(verdicts[MOST_NODES:]),
                *_evidence_lines(verdicts),
                *self._notes(),
            ],
        )

    def _hidden(self, verdicts: Sequence[NodeVerdict]) -> Iterator[str]:
        if verdicts:
            counts = Counter(verdict.outcome for verdict in verdicts)
            listed = ", ".join(f"{count} {name}" for name, count in counts.items())
            yield f"... and {len(verdicts)} more nodes: {listed}"

    def _notes(self) -> Iterator[str]:
        """How the nodes differ without consequence, and what leaves bad nodes out of a job."""
        others = sorted(
            {key for record in self.records for key in _recorded_differences(record)}
            - set(_deciding(self.facts))
        )
        if self.facts and others:
            more = f" and {len(others) - MOST_FACTS} more" if len(others) > MOST_FACTS else ""
            yield f"the nodes also differ in: {', '.join(others[:MOST_FACTS])}{more} (run.json)"
        if any(verdict.stages["alone"].outcome == "FAIL" for verdict in self.verdicts):
            yield (
                f"a node fails alone if it takes {100 * self._slowdown:g} % longer than the median"
                " of all nodes, and by more spreads (1.48 median deviations) than the slowest node"
                f" has in {100 * (1 - FALSE_ALARMS):g} % of healthy clusters"
            )
        failed = [verdict.name for verdict in self.verdicts if verdict.outcome == "FAIL"]
        yield from exclude_lines(failed, self.names)

    def _scaling_table(self) -> list[Table]:
        """What the operations of all nodes reach on 1, 2, 4 ... nodes."""
        rows = [row for record in self.runs.get("scaling", ()) for row in self._rows_of(record)]
        alike = grouped(
            (row for row in rows if case_status(row) == "ok"),
            lambda row: (row["benchmark"], Layout.parse(row["layout"]).nodes),
        )
        # by the place of a size among those of its layout: a message may be rounded down there
        places = [
            (benchmark, place, nodes, row)
            for (benchmark, nodes), same in alike.items()
            for place, row in enumerate(sorted(same, key=lambda row: row["message_bytes"]))
        ]
        measured = [row for *_, row in sorted(places, key=lambda each: each[:3])]
        cells = [
            [
                row["benchmark"],
                str(row["message_bytes"]),
                str(Layout.parse(row["layout"]).nodes),
                format_number(row["median_s"] * 1e6),
                format_number(row["busbw_gb_per_s"]),
            ]
            for row in measured
        ]
        return [Table(SCALING_HEADS, cells)] if cells else []


def stage_of(record: Record) -> Stage | None:
    """The stage of a run; None if it belongs to no acceptance."""
    config = record.get("config")
    name = config.get("stage") if isinstance(config, Mapping) else None
    return next((stage for stage in STAGES if stage == name), None)


def read_acceptance(paths: Sequence[Paths]) -> Acceptance | None:
    """The newest acceptance below the folders; None if there is none."""
    sources, _ = read_cases(paths, READ_COLUMNS)
    return Acceptance.of(sources, [record for source in sources for record in source.records])


# ---------------------------------------------------------------- machines


def _machine_results(facts: Sequence[Record], nodes: int) -> Iterator[StageResult]:
    """Each node against the majority of the nodes."""
    if not facts:
        yield from [StageResult("-", ("the nodes are simulated on one machine",))] * nodes
        return
    deciding = _deciding(facts)
    for node in range(nodes):
        lines = gpu_problems(facts[node])
        undecided = []
        for key, values in deciding.items():
            usual, count = Counter(values).most_common(1)[0]
            if 2 * count <= len(values):
                undecided.append(f"{key} is {values[node]} here; no value has a majority")
            elif values[node] != usual:
                lines.append(f"{key} is {values[node]}, and {usual} on {count} of {nodes} nodes")
        if lines:
            yield StageResult("FAIL", tuple(lines))
        elif undecided:
            yield StageResult("NOT MEASURED", tuple(undecided))
        else:
            yield StageResult("PASS")


def _deciding(facts: Sequence[Record]) -> dict[str, list[str]]:
    """The values by node of each fact that differs, and should not."""
    keys = sorted({key for node in facts for key in node if _is_deciding(key)})
    deciding = {}
    for key in keys:
        values = [str(node.get(key, MISSING)) for node in facts]
        # a card that few nodes have is no fault of theirs
        is_common = 2 * values.count(MISSING) < len(values)
        if is_common and len(set(values)) > 1:
            deciding[key] = values
    memory = [node.get(MEMORY) for node in facts]
    known = [value for value in memory if isinstance(value, int)]
    if known and max(known) - min(known) > MEMORY_SHARE * max(known):
        deciding[MEMORY] = [str(value) for value in memory]
    return deciding


def gpu_problems(facts: Mapping[str, Any]) -> list[str]:
    """What is wrong with the GPUs of a node by its facts `gpu.<index>.*`, a line each."""
    problems = []
    for key, value in facts.items():
        right = RIGHT_GPU_FACTS.get(key.rpartition(".")[2])
        if key.startswith("gpu.") and right is not None and value != right:
            problems.append(f"{key} is {value}, and must be {right}")
    return problems


def _is_deciding(key: str) -> bool:
    scope = scope_of(key)
    if scope.ranks == "error":
        return True
    if not key.startswith(DECIDING_FACTS) or key.startswith("network.interface.lo."):
        return False
    return key.startswith("host.") or key.endswith(DECIDING_ENDINGS)


def _recorded_differences(record: Record) -> Mapping[str, Any]:
    differences: Mapping[str, Any] = (record.get("provenance") or {}).get("differences") or {}
    return {
        key: value
        for key, value in differences.items()
        if scope_of(key).ranks == "record" and not key.endswith(".address")
    }


# ---------------------------------------------------------------- rows


def _node_times(rows: Sequence[Row]) -> list[NodeTimes]:
    """The times of each case on the nodes. Flags do not count: what they say of all nodes does not
    change their order, and a node that alone is throttled is to be found."""

    def case_without_node(row: Row) -> tuple[object, ...]:
        return tuple(hashable(row[name]) for name in NAMES if name != "node")

    cases = []
    for same in grouped(rows, case_without_node).values():
        usable = [row for row in same if case_status(row) == "ok" and row["node"]]
        if len(usable) >= LEAST_NODES:
            where = f"{_title_of_case(usable[0])} within the node"
            median_s = {int(row["node"]): float(row["median_s"]) for row in usable}
            low_s = {int(row["node"]): float(row["ci_low_s"] or row["median_s"]) for row in usable}
            cases.append(NodeTimes(where, median_s, low_s))
    return cases


def _title_of_case(row: Row) -> str:
    return case_text({**row, "node": None})


def _first_unmeasured(rows: Sequence[Row]) -> str | None:
    """Why a case of these has no number that can be used; None if all have one."""
    if not rows:
        return "no case was measured"
    for row in rows:
        if case_status(row) != "ok":
            return f"{_title_of_case(row)} {row['status']}: {row['reason']}"
    return None


def _rail_of(record: Record) -> str:
    """`eth1: `, the network card that a search was made on; empty for a search on all."""
    config = record.get("config") or {}
    if stage_of(record) != "rails":
        return ""
    card = config.get("interface") or (config.get("env") or {}).get("NCCL_IB_HCA", "")
    return f"{str(card).lstrip('=')}: "


def _too_few(nodes: int) -> str:
    return f"{plural(nodes, 'node', 'nodes')} can't be ranked: at least {LEAST_NODES} are needed"


def _evidence_lines(verdicts: Sequence[NodeVerdict]) -> Iterator[str]:
    """The evidence of each failed stage, and each reason for a missing one with its nodes."""
    for verdict in verdicts:
        for stage, result in verdict.stages.items():
            if result.outcome != "FAIL":
                continue
            for line in result.lines[:MOST_EVIDENCE]:
                yield f"{verdict.name} fails {stage}: {line}"
            if len(result.lines) > MOST_EVIDENCE:
                more = len(result.lines) - MOST_EVIDENCE
                yield f"{verdict.name} fails {stage}: ... and {more} more"
    reasons: dict[tuple[StageOutcome, StageName, str], list[str]] = {}
    for verdict in verdicts:
        for stage, result in verdict.stages.items():
            if result.outcome in ("NOT MEASURED", "-") and result.lines:
                key = result.outcome, stage, result.lines[0]
                reasons.setdefault(key, []).append(verdict.name)
    for (outcome, stage, line), names in reasons.items():
        who = "all nodes" if len(names) == len(verdicts) else ", ".join(names[:MOST_FACTS])
        word = "does not apply" if outcome == "-" else "not measured"
        yield f"{stage} {word} on {who}: {line}"
