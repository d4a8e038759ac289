"""What an acceptance adds to a report; see cli.annexes.ReportPart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commbench.cluster.node_verdicts import read_acceptance, stage_of
from commbench.core.terminal import Terminal
from commbench.report.summary import Results


def text(paths: Sequence[str], results: Results, terminal: Terminal) -> str | None:
    """The verdict of each node. The cases of an acceptance are read for other columns."""
    if not any(map(stage_of, results.records)):
        return None
    acceptance = read_acceptance(paths)
    return None if acceptance is None else acceptance.text(terminal)


def of_page(results: Results) -> Mapping[str, Any]:
    return {}
