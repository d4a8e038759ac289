"""Folders of `commbench ab` in a report."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.report.showing import Comparison, Showing
from commbench.results.load import Paths


def comparisons(
    paths: Sequence[Paths], benchmark: str | None
) -> tuple[Sequence[Comparison], Sequence[str]]:
    """See Showing."""
    from .comparisons import comparisons  # it reads files, which no table of a run needs

    return comparisons(paths, benchmark)


SHOWING = Showing(comparisons=comparisons)
