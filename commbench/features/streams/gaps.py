"""Which soaks were interrupted: the time that passed outside of their repetitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commbench.analysis.case_names import case_names
from commbench.core.texts import span_text
from commbench.core.units import format_seconds
from commbench.results.row import Row

MOST_NAMED = 3  # soaks
GAPS_SHARE = 0.01  # of a soak that may pass outside its repetitions


def gaps(rows: Sequence[Row]) -> Iterator[str]:
    """The soaks of which more than GAPS_SHARE passed outside of their repetitions."""
    soaks = [row for row in rows if (row.unmeasured_s or 0.0) > GAPS_SHARE * (row.visits_s or 0.0)]
    gaps_s = [row.unmeasured_s or 0.0 for row in soaks]
    if len(soaks) > MOST_NAMED:
        spent = span_text(gaps_s, format_seconds)
        yield f"{len(soaks)} soaks: {spent} passed between the repetitions of each"
        return
    for gap_s, name in zip(gaps_s, case_names(soaks), strict=True):
        yield f"{name}: {format_seconds(gap_s)} passed between its repetitions"
