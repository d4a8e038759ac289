"""Texts below the tables of a run, and of several side by side. A folder of `features` that has
some has a module `run_texts` with a class `RunTexts`, `is_apart` and `apart_texts`; no other code
knows it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from commbench.core.annexes import annex, part_modules
from commbench.core.terminal import Terminal
from commbench.results.row import Row

Counters = Mapping[str, Any]  # columns of counters.parquet


class RunTexts:
    """Those of all features for one run, which see its counters."""

    def __init__(self) -> None:
        self._parts = [module.RunTexts() for module in part_modules("run_texts")]

    def add(self, row: Row, counters: Callable[[], Iterable[Counters]]) -> None:
        """What was counted during a case; it is read where a feature needs it."""
        for part in self._parts:
            part.add(row, counters)

    def below(
        self, run: Mapping[str, Any], rows: Sequence[Row], terminal: Terminal, every: bool
    ) -> Iterator[str]:
        """`every`: intervals, not only some of them."""
        for part in self._parts:
            yield from part.below(run, rows, terminal, every)


def missing_texts(rows: Iterable[Row]) -> Iterator[str]:
    """What is not said of the rows, because the folder that says it is not there."""
    feature = "commbench.features.streams"
    if any(row.timing == "soak" for row in rows) and not annex(feature):
        yield f"soaks over time need {feature}, which is not there"


def is_apart(row: Row) -> bool:
    """Whether it has a line below the tables of several runs, not in one of them."""
    return any(module.is_apart(row) for module in part_modules("run_texts"))


def apart_texts(
    rows: Sequence[Row], records: Sequence[Mapping[str, Any]], terminal: Terminal
) -> Iterator[str]:
    """Below the tables of runs side by side; `rows` are apart."""
    for module in part_modules("run_texts"):
        yield from module.apart_texts(rows, records, terminal)
