"""What replayed jobs add to a report."""

from __future__ import annotations

from commbench.report.features import Feature
from commbench_replay.section import replay_sections

FEATURE = Feature(sections={"answers": lambda summary: replay_sections(summary.results)})
