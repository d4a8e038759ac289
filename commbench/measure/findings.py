"""Findings: what a feature finds out about a case beside its times, in repetitions that are not
timed.

A feature that does so has a module `probes`: `probe(setup, repeat)`, which all ranks of a case call
after its first visit in a launch (`case.py`), and what is below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from commbench.core.features import parts_of_case
from commbench.core.variables import Variables
from commbench.results.row import Row

Findings = Mapping[str, Any]  # values of columns, by name


class Probes(Protocol):
    """The module `probes` of a feature."""

    COLUMNS: Sequence[str]

    def columns(self, findings: Sequence[Findings]) -> Findings:
        """The columns of a row, from the findings of its launches in their order."""


def earlier_findings(row: Row) -> Findings:
    """What earlier launches of the run have found."""
    names = (name for probes in _probes_of(row) for name in probes.COLUMNS)
    return {name: getattr(row, name) for name in names}


def finding_columns(case: Variables, findings: Sequence[Findings]) -> dict[str, Any]:
    """The columns of all features of a case; `findings`: those of its visits, most of which have
    none."""
    values: dict[str, Any] = {}
    for probes in _probes_of(case):
        values |= probes.columns([each for each in findings if each])
    return values


def _probes_of(case: Variables) -> list[Probes]:
    return parts_of_case(case, "probes")
