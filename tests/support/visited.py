"""Records of cases, with visits as the recorder adds them."""

from __future__ import annotations

from datetime import datetime, timezone

from commbench.core.case import Planned
from commbench.measure.row_samples import row_samples
from commbench.measure.samples import Samples
from commbench.measure.visits import KEPT_TIMES, CaseRecord, Visit
from commbench.stats.series import Z95

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def add_visit(
    record: CaseRecord,
    planned: Planned,
    samples: Samples,
    launch: int = 0,
    z: float = Z95,
    kept: int = KEPT_TIMES,
) -> None:
    """Add the visit of a case with one row."""
    (part,) = row_samples(planned, samples, "run", 1)
    record.add(Visit.of(part.times, launch, z, kept).measured(part, samples, STARTED, 1.0))
