"""What replayed jobs add to a report; see cli.annexes.ReportPart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commbench.core.terminal import Terminal
from commbench.replay.answer import OPERATION_HEADS
from commbench.replay.section import replay_views
from commbench.report.page import first_rows
from commbench.report.summary import Results


def text(paths: Sequence[str], results: Results, terminal: Terminal) -> str | None:
    return None


def of_page(results: Results) -> Mapping[str, Any]:
    views = replay_views(results)
    return {
        "replay": [
            {"view": view, "table": first_rows(OPERATION_HEADS, view.cells)} for view in views
        ]
    }
