"""What replayed jobs add to a report."""

from __future__ import annotations

from commbench.report.reporting import Reporting
from commbench_replay.section import replay_sections

REPORTING = Reporting(sections={"answers": lambda summary: replay_sections(summary.results)})
