"""The cases of all runs combined, one row each, and what follows from them: names, lines over size,
the best."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from commbench.core.texts import FIRST, meant, name_of
from commbench.core.units import value_text
from commbench.core.variables import MAPS
from commbench.results.columns import grouped, operation_order
from commbench.results.row import Measured, Row

from .best import CHOSEN_SETTINGS, Best, best_backends_and_layouts
from .case_names import FAMILY_VARIABLES, SharedItems, label_notes, telling
from .combined_row import Combined
from .families import answerable, families

MOST_CASES = 20_000  # distinct cases that are compared; the others are only counted
MATRIX_PAIRS = 4  # from this number on the pairs of a case are shown as a matrix
PAIRLESS = (
    "message_bytes",
    *(name for name in FAMILY_VARIABLES if name not in ("pair", *MAPS)),
)


@dataclass(frozen=True, eq=False)
class CombinedCases:
    """`rows`: one per distinct case that is ok, one pair of each matrix; `whole`: the same
    with the whole of their maps, by which published values find theirs; `left`: how many
    exceeded MOST_CASES; `shared`: what was taken from their maps; `settings`: the variables that
    are chosen as backends are."""

    rows: Sequence[Combined]
    whole: Sequence[Combined]
    left: int
    shared: SharedItems
    settings: Sequence[str]

    @property
    def notes(self) -> list[str]:
        """What names leave out."""
        return [*self.shared.notes, *label_notes(self.rows)]

    @functools.cached_property
    def shown(self) -> Sequence[Combined]:
        """The cases of the figures; simulated ones and those of one rank only if there are no
        others."""
        return answerable(self.rows) or self.rows

    @functools.cached_property
    def distinguishing(self) -> list[str]:
        """Variables that differ within some benchmark: part of every name, so that a line has one
        name everywhere."""
        variables_of = (family.variables for family in families(self.rows))
        by_benchmark = grouped(variables_of, lambda variables: variables.benchmark)
        return list(dict.fromkeys(name for own in by_benchmark.values() for name in telling(own)))

    def name(self, row: Row, without: Sequence[str] = ()) -> str:
        """The name of a line: backend and engine, then what distinguishes it from the others."""
        told = [name for name in self.distinguishing if name not in without]
        return name_of(self.shared.taken_from(row), told)

    def lines(self) -> dict[str, dict[str, list[Combined]]]:
        """Benchmark -> name without its window -> rows by size; see operation_order."""
        rows = sorted(self.shown, key=lambda row: row.message_bytes)
        by_benchmark = grouped(rows, lambda row: row.benchmark)
        ordered = sorted(by_benchmark.values(), key=lambda own: operation_order(own[0]))
        return {
            own[0].benchmark: grouped(own, lambda row: self.name(row, without=("window",)))
            for own in ordered
        }

    def short_names(self, lines: Mapping[str, Sequence[Row]]) -> dict[str, str]:
        """The name of each line -> the same without what all lines share; a single line keeps its
        name."""
        varied = [
            name
            for name in dict.fromkeys((*FIRST, *self.distinguishing))
            if name != "window"
            and len({value_text(getattr(rows[0], name) or "") for rows in lines.values()}) > 1
        ]
        if not varied:
            return {line: line for line in lines}
        first = [name for name in varied if name in FIRST]
        usual = meant(varied[0], None)
        alone = f"{varied[0]} {usual}" if usual else f"no {varied[0]}"
        return {line: name_of(rows[0], varied, first) or alone for line, rows in lines.items()}

    @functools.cached_property
    def best(self) -> list[Best]:
        """The best backend, layout and setting at each size that at least two have."""
        return best_backends_and_layouts(self.rows, self.settings)


def combine_runs(rows: Iterable[Row], settings: Sequence[str] = CHOSEN_SETTINGS) -> CombinedCases:
    """Combine the cases of all runs. `settings`: see CombinedCases."""
    ok = (row for row in rows if isinstance(row, Measured) and row.median_s > 0)
    cases = grouped(ok, one_case)
    whole = list(map(Combined.of, cases.values()))
    shared = SharedItems.of(whole)
    distinct = list(map(shared.taken_from, whole))
    shown = [at for at, is_shown in enumerate(_one_pair_of_each_matrix(distinct)) if is_shown]
    left = max(0, len(shown) - MOST_CASES)
    chosen = shown[:MOST_CASES]
    return CombinedCases(
        [distinct[at] for at in chosen], [whole[at] for at in chosen], left, shared, settings
    )


def one_case(row: Row) -> tuple[str | None, ...]:
    """What the rows of a case have in common in all runs."""
    return row.case_id, row.library, row.label or "", row.hosts


def _one_pair_of_each_matrix(rows: Sequence[Row]) -> list[bool]:
    """Whether each row is shown: of cases with many pairs, the first pair of two ranks."""
    keys = list(map(attrgetter(*PAIRLESS), rows))
    pairs = dict[tuple[Any, ...], set[str]]()
    for key, row in zip(keys, rows, strict=True):
        if row.pair is not None:
            pairs.setdefault(key, set()).add(row.pair)
    first = {
        key: min(filter(_is_of_two_ranks, own), default="")
        for key, own in pairs.items()
        if len(own) >= MATRIX_PAIRS
    }
    return [key not in first or row.pair == first[key] for key, row in zip(keys, rows, strict=True)]


def _is_of_two_ranks(pairs: str) -> bool:
    first, _, second = pairs.partition(" ")[0].partition("-")
    return first != second
