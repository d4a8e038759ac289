"""The slow ranks, slow pairs and asymmetric pairs of runs, the most helpful first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

from commbench.core.layout import Layout, pairs_text
from commbench.results.load import Paths, read_case_rows
from commbench.results.row import Row

from .judgement import JudgedMatrix, judged_matrices
from .slow_ranks import by_all_pairs, by_slow_links
from .texts import asymmetry_text, matrix_name, rank_text, slow_link_text

if TYPE_CHECKING:
    import pandas as pd

FindingKind = Literal["rank", "slow", "asymmetric"]
KINDS = get_args(FindingKind)  # the most helpful first


@dataclass(frozen=True)
class Finding:
    """A slow or asymmetric pair, or a slow rank; with a ratio of 2 it takes twice as long as is
    typical.

    `pair` is None for a slow rank. `rank` is set for a slow rank and for its slow pairs.
    """

    kind: FindingKind
    run_id: str
    benchmark: str
    message_bytes: int
    pair: str | None
    rank: int | None
    ratio: float
    text: str
    layout: str

    def text_with_host(self, run: Mapping[str, Any]) -> str:
        """The text, followed by the rank's host if the run (run.json) has several and names them.
        Simulated nodes, which are on one host, have numbers."""
        if self.rank is None:
            return self.text
        ranks_per_node = Layout.parse(self.layout).ranks_per_node
        place = self.rank // ranks_per_node
        try:
            ranks_by_node = run["world"]["ranks"]
            nodes = zip(run["provenance"]["nodes"], ranks_by_node, strict=True)
            used = [node for node, ranks in nodes if len(ranks) >= ranks_per_node]
            host = used[place]["host.hostname"]
        except ValueError:
            host = f"node{place}"
        except (LookupError, TypeError, AttributeError):
            return self.text
        return f"{self.text} ({host})" if len(ranks_by_node) > 1 else self.text


def findings(rows: Iterable[Row]) -> list[Finding]:
    """See `findings_in`."""
    return findings_in(judged_matrices(rows))


def findings_in(compared: Sequence[JudgedMatrix]) -> list[Finding]:
    """Ranks first, then slow pairs, then asymmetric ones; the worst of each kind first, each at its
    worst size."""
    at_sizes = dict[tuple[Any, ...], list[Finding]]()
    for matrix in compared:
        shared = matrix.shared
        where = shared.run_id, shared.benchmark, shared.message_bytes
        name = matrix_name(matrix, compared)
        for kind, pair, rank, ratio, text in _found_in(matrix):
            said = f"{name}: {text}"
            finding = Finding(kind, *where, pair, rank, ratio, said, shared.layout)
            at_sizes.setdefault((matrix.sizes, kind, pair or rank), []).append(finding)
    worst_findings = []
    for (sizes, *_), same in at_sizes.items():
        worst = max(same, key=attrgetter("ratio"))
        text = f"{worst.text}; at {len(same)} of {len(sizes)} sizes"
        worst_findings.append(replace(worst, text=text) if len(sizes) > 1 else worst)
    return sorted(worst_findings, key=lambda finding: (KINDS.index(finding.kind), -finding.ratio))


def _found_in(
    matrix: JudgedMatrix,
) -> Iterator[tuple[FindingKind, str | None, int | None, float, str]]:
    """Kind, pair, rank, ratio and text of each finding."""
    # slow links say more than all pairs together
    ranks = by_all_pairs(matrix) | by_slow_links(matrix)
    for rank, found in sorted(ranks.items()):
        yield "rank", None, rank, found.ratio, rank_text(rank, found)
    for pair in matrix.slow:
        directions = {way: matrix.slow[way] for way in (pair, pair[::-1]) if way in matrix.slow}
        if pair == min(directions):  # each link once
            end = next((rank for rank in pair if rank in ranks), None)
            ratio = max(excess.ratio for excess in directions.values())
            yield "slow", pairs_text([pair]), end, ratio, slow_link_text(matrix, directions, ratio)
    for pair, excess in matrix.asymmetric.items():
        yield "asymmetric", pairs_text([pair]), None, excess.ratio, asymmetry_text(pair, excess)


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """Without the pairs of a slow rank, and without the directions of a slow pair."""
    slow = {_link(finding) for finding in findings if finding.kind == "slow"}
    return [
        finding
        for finding in findings
        if (finding.kind == "rank" or finding.rank is None)
        and (finding.kind != "asymmetric" or _link(finding) not in slow)
    ]


def _link(finding: Finding) -> tuple[str, str, str, frozenset[str]]:
    """The pair of a finding without its direction, in its run, layout and benchmark."""
    ends = str(finding.pair).split("-")
    return finding.run_id, finding.layout, finding.benchmark, frozenset(ends)


def slow_pairs(*paths: Paths) -> pd.DataFrame:
    """One row per finding, each run by itself; raises CommbenchError like load.

        commbench.slow_pairs("results").query("kind == 'slow'")

    Columns: kind (rank, slow, asymmetric), run_id, benchmark, message_bytes, pair, rank, ratio,
    text. The rule is in commbench/analysis/pairs/judgement.py.
    """
    import pandas as pd

    found = findings(read_case_rows(paths))
    frame = pd.DataFrame(found, columns=[field.name for field in fields(Finding)])
    return frame.astype({"rank": "Int64", "message_bytes": "int64", "ratio": "float64"})
