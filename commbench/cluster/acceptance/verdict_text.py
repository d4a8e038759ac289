"""The section of an acceptance: the nodes, the worst first, those alike in one line, the evidence,
and what the operations of all nodes reach."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from commbench.cluster.acceptance.machine_facts import other_differences
from commbench.cluster.acceptance.node_names import names_text
from commbench.cluster.acceptance.node_verdicts import Acceptance
from commbench.cluster.acceptance.verdict import (
    STAGE_NAMES,
    NodeVerdict,
    StageName,
)
from commbench.cluster.search.suspect_table import exclude_lines
from commbench.core.layout import Layout
from commbench.core.units import format_number, plural
from commbench.report.section import Section
from commbench.report.table import Table
from commbench.results.columns import grouped
from commbench.results.row import Measured
from commbench.stats.thresholds import FALSE_ALARMS
from commbench.stats.verdict import GATES, Gate

MOST_LINES = 64  # of the table; the rest is counted
MOST_EVIDENCE = 4  # lines of a node and stage
MOST_NAMED = 8  # facts in a line
SCALING_HEADS = ("scaling", "message\nB", "nodes", "time\nus", "busbw\nGB/s")


def acceptance_section(acceptance: Acceptance) -> Section:
    verdicts = sorted(acceptance.verdicts, key=lambda verdict: GATES.index(verdict.answer))
    alike = [*grouped(verdicts, _stage_answers).values()]
    counts = Counter(verdict.answer for verdict in verdicts)
    counted = ", ".join(f"{counts[name]} {name}" for name in ("PASS", "FAIL", "UNDECIDED"))
    return Section(
        f"Acceptance of {plural(len(verdicts), 'node', 'nodes')}: {counted}",
        headline=[_nodes_table(alike[:MOST_LINES])],
        tables=_scaling_tables(acceptance),
        sentences=[*_hidden_line(alike[MOST_LINES:]), *_evidence_lines(verdicts)],
        notes=[
            *_missing_lines(verdicts),
            *_notes(acceptance),
        ],
    )


def _nodes_table(alike: Sequence[Sequence[NodeVerdict]]) -> Table:
    """A line for all nodes whose stages say the same: `node0-9,11-31: PASS`."""
    cells = [
        [f"{names_text(each.name for each in nodes)}: {nodes[0].answer}", *_stage_answers(nodes[0])]
        for nodes in alike
    ]
    colors = {row: "red" for row, nodes in enumerate(alike) if nodes[0].answer == "FAIL"}
    return Table.of(("nodes", *STAGE_NAMES), cells, colors=colors)


def _stage_answers(verdict: NodeVerdict) -> tuple[str, ...]:
    return tuple(verdict.stages[stage].answer or "-" for stage in STAGE_NAMES)


def _hidden_line(alike: Sequence[Sequence[NodeVerdict]]) -> Iterator[str]:
    verdicts = [verdict for nodes in alike for verdict in nodes]
    if verdicts:
        counts = Counter(verdict.answer for verdict in verdicts)
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        yield f"... and {len(verdicts)} more nodes: {listed}"


def _scaling_tables(acceptance: Acceptance) -> list[Table]:
    """What the operations of all nodes reach on 1, 2, 4 ... nodes."""
    alike = grouped(
        (row for row in acceptance.rows_of("scaling") if isinstance(row, Measured)),
        lambda row: (row.benchmark, Layout.parse(row.layout).nodes),
    )
    # by the place of a size among those of its layout: a message may be rounded down there
    places = [
        (benchmark, place, nodes, row)
        for (benchmark, nodes), same in alike.items()
        for place, row in enumerate(sorted(same, key=lambda row: row.message_bytes or 0))
    ]
    cells = [
        [
            benchmark,
            str(row.message_bytes),
            str(nodes),
            format_number(row.median_s * 1e6),
            format_number(row.busbw_gb_per_s or 0.0),
        ]
        for benchmark, _, nodes, row in sorted(places, key=lambda each: each[:3])
    ]
    return [Table.of(SCALING_HEADS, cells)] if cells else []


def _evidence_lines(verdicts: Sequence[NodeVerdict]) -> Iterator[str]:
    """Of each failed stage."""
    for verdict in verdicts:
        for stage, result in verdict.stages.items():
            if result.answer != "FAIL":
                continue
            for line in result.lines[:MOST_EVIDENCE]:
                yield f"{verdict.name} fails {stage}: {line}"
            if len(result.lines) > MOST_EVIDENCE:
                more = len(result.lines) - MOST_EVIDENCE
                yield f"{verdict.name} fails {stage}: ... and {more} more"


def _missing_lines(verdicts: Sequence[NodeVerdict]) -> Iterator[str]:
    """Why a stage says nothing, each reason once with its nodes."""
    names: dict[tuple[Gate | None, StageName, str], list[str]] = defaultdict(list)
    for verdict in verdicts:
        for stage, result in verdict.stages.items():
            if result.answer in ("UNDECIDED", None):
                names[result.answer, stage, result.lines[0]].append(verdict.name)
    for (answer, stage, line), own in names.items():
        who = "all nodes" if len(own) == len(verdicts) else names_text(own)
        word = "does not apply" if answer is None else "UNDECIDED"
        yield f"{stage} {word} on {who}: {line}"


def _notes(acceptance: Acceptance) -> Iterator[str]:
    """How the nodes differ without consequence, and what leaves bad nodes out of a job."""
    others = other_differences(acceptance.records, acceptance.facts)
    if acceptance.facts and others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        yield f"the nodes also differ in: {', '.join(others[:MOST_NAMED])}{more} (run.json)"
    if any(verdict.stages["alone"].answer == "FAIL" for verdict in acceptance.verdicts):
        yield (
            f"a node fails alone if it takes {100 * acceptance.slowdown:g} % longer than the median"
            f" node, and by so much that only {100 * FALSE_ALARMS:g} of 100 healthy clusters has"
            " such a node"
        )
    failed = [verdict.name for verdict in acceptance.verdicts if verdict.answer == "FAIL"]
    yield from exclude_lines(failed, acceptance.names)
