"""What replayed jobs add to a report; see cli.annexes.ReportPart."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.replay.section import replay_sections
from commbench.report.section import Section
from commbench.report.summary import Results


def sections(paths: Sequence[str], results: Results) -> Sequence[Section]:
    return replay_sections(results)
