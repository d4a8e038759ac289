"""What tells cases apart: the variables in which they differ, and names with these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from commbench.core.states import Row
from commbench.core.texts import BARE, NO_VALUE
from commbench.core.units import value_text
from commbench.core.variables import SHOWN, is_usual
from commbench.results.columns import case_text, grouped, hashable

IN_CASE_TEXT = ("benchmark", "layout", "pair", "node", "overlap", "timed", "gaps", "late")


def differing(rows: Sequence[Row], names: Iterable[str] = SHOWN) -> list[str]:
    """Those of the variables in which rows differ.

    Between benchmarks a variable may apply to one only; the values that titles and tables leave out
    count within a benchmark, as `late=1:400us` beside none.
    """
    by_benchmark = grouped(rows, itemgetter("benchmark")).values()
    found = []
    for name in names:
        values = [_shown_values(alike, name) for alike in by_benchmark]
        if any(len(own) > 1 for own in values) or len(set().union(*values) - {None}) > 1:
            found.append(name)
    return found


def _shown_values(rows: Iterable[Row], name: str) -> set[object]:
    """Each once, and None for those that are left out, or that rows of few columns lack."""
    distinct = {hashable(row.get(name)) for row in rows}
    return {None if is_usual(name, value) else value for value in distinct}


def case_names(rows: Sequence[Row]) -> list[str]:
    """`all_reduce 1x2 8 B, float32 root 3`: each case with what tells it from the others of its
    benchmark."""
    names = {
        benchmark: [name for name in differing(alike) if name not in IN_CASE_TEXT]
        for benchmark, alike in grouped(rows, itemgetter("benchmark")).items()
    }
    return [", ".join([case_text(row), *_settings(row, names[row["benchmark"]])]) for row in rows]


def _settings(row: Row, names: Iterable[str]) -> list[str]:
    """One text, or none: those that have a value, a bare one without the variable's name."""
    values = {name: value_text(row[name]) for name in names if row.get(name) not in NO_VALUE}
    texts = (text if name in BARE else f"{name} {text}" for name, text in values.items())
    return [" ".join(texts)] if values else []
