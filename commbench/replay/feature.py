"""What replayed jobs add to a report."""

from __future__ import annotations

from commbench.replay.section import replay_sections
from commbench.report.features import Feature

FEATURE = Feature(sections={"answers": lambda summary: replay_sections(summary.results)})
