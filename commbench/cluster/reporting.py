"""What an acceptance adds to a report."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.cluster.acceptance.node_verdicts import read_acceptance, stage_of
from commbench.cluster.acceptance.verdict_text import acceptance_section
from commbench.report.reporting import Reporting
from commbench.report.section import Section
from commbench.report.summary import Summary


def _sections(summary: Summary) -> Sequence[Section]:
    """The verdict of each node."""
    if not any(map(stage_of, summary.results.records)):
        return ()
    acceptance = read_acceptance([*summary.results.folders.values()])
    return () if acceptance is None else (acceptance_section(acceptance),)


REPORTING = Reporting(sections={"verdict": _sections})
