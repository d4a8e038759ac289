"""Operations of several groups below a run and in a report."""

from __future__ import annotations

from commbench.report.showing import Showing

from .tables import derived

SHOWING = Showing(tables=(derived,))
