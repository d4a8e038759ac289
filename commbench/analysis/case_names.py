"""What tells cases apart: the variables in which they differ, and names with these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from commbench.core.texts import setting_texts
from commbench.core.units import value_text
from commbench.core.variables import MAPS, NAMES, SHOWN, SIZES, brought_along, is_usual
from commbench.results.columns import IN_CASE_TEXT, case_text, grouped
from commbench.results.row import Row

AnyRow = TypeVar("AnyRow", bound=Row)

# what the cases of a family share: all variables but the size, and whose numbers they are
FAMILY_VARIABLES = (*(name for name in NAMES if name not in SIZES), "label", "hosts")
# what a backend or a layout brings along: it differs where one of them has several
BROUGHT_BY: Mapping[str, str] = {
    name: chosen
    for chosen in ("backend", "layout")
    for name in brought_along(chosen)
    if name not in SHOWN
}
OF_BACKEND = tuple(name for name, chosen in BROUGHT_BY.items() if chosen == "backend")
# what a label may stand for, as the name of a setting
OF_LABEL = (*OF_BACKEND, "env", "cuda_ipc", "interface", "bind")


def differing(rows: Sequence[Row], names: Iterable[str] = FAMILY_VARIABLES) -> list[str]:
    """Those of the variables in which rows differ.

    Between benchmarks a variable may apply to one only. The values that titles and tables leave out
    count within a benchmark, as `late=1:400us` beside none.
    """
    return [
        name
        for name in names
        if any(_differ(own, name) for own in grouped(rows, _chosen(name)).values())
    ]


def _chosen(name: str) -> Callable[[Row], object]:
    by = BROUGHT_BY.get(name)
    return lambda row: by and getattr(row, by)


def _differ(rows: Sequence[Row], name: str) -> bool:
    values = dict[str, set[object]]()
    for row in rows:
        value = getattr(row, name)
        shown = None if is_usual(name, value) else value
        values.setdefault(row.benchmark, set()).add(shown)
    of_each = values.values()
    return any(len(own) > 1 for own in of_each) or len(set().union(*of_each) - {None}) > 1


def telling(rows: Sequence[Row], names: Iterable[str] = FAMILY_VARIABLES) -> list[str]:
    """Those of differing() that names need: labels stand for the settings that they bring along
    (label_notes)."""
    by_label = grouped(rows, lambda row: row.label or None)
    found = differing(rows, names)
    if "label" not in found or None in by_label:
        return found
    within = {name for own in by_label.values() for name in differing(own, found)}
    return [name for name in found if name not in OF_LABEL or name in within]


def label_notes(rows: Sequence[Row]) -> list[str]:
    """`label tcp: OMPI_MCA_btl=self,tcp`: the settings that labels stand for."""
    implied = [name for name in differing(rows) if name not in telling(rows)]
    by_label = grouped(rows, lambda row: row.label) if implied else {}
    texts = {label: setting_texts(own[0], implied) for label, own in by_label.items()}
    return [f"label {label}: {', '.join(parts)}" for label, parts in texts.items() if parts]


def case_names(rows: Sequence[Row]) -> list[str]:
    """`all_reduce 1x2 8 B, float32 root 3`: each case with what tells it from the others of its
    benchmark."""
    names = {
        benchmark: [name for name in telling(alike) if name not in IN_CASE_TEXT]
        for benchmark, alike in grouped(rows, lambda row: row.benchmark).items()
    }
    settings = (" ".join(unusual_texts(row, names[row.benchmark])) for row in rows)
    texts = zip(map(case_text, rows), settings, strict=True)
    return [", ".join(filter(None, parts)) for parts in texts]


def unusual_texts(row: Row, names: Iterable[str]) -> list[str]:
    """The settings with these names whose value titles and tables do not leave out."""
    return setting_texts(row, [name for name in names if not is_usual(name, getattr(row, name))])


@dataclass(frozen=True)
class SharedItems:
    """What all rows of a backend have of a map, as of their environment: it tells nothing apart."""

    by_place: Mapping[tuple[str, str], set[tuple[str, str]]]  # of a variable and a backend

    @classmethod
    def of(cls, rows: Iterable[Row]) -> SharedItems:
        shared = dict[tuple[str, str], set[tuple[str, str]]]()
        for row, name in itertools.product(rows, MAPS):
            items = set(getattr(row, name))
            place = name, row.backend
            shared[place] = shared.get(place, items) & items
        return cls(shared)

    def taken_from(self, row: AnyRow) -> AnyRow:
        """The row with the rest of its maps, as OMPI_MCA_btl_tcp_links=1."""
        shared = {name: self.by_place.get((name, row.backend), set()) for name in MAPS}
        rest: dict[str, Any] = {
            name: tuple(item for item in getattr(row, name) if item not in items)
            for name, items in shared.items()
            if items
        }
        return replace(row, **rest) if rest else row

    @property
    def notes(self) -> list[str]:
        """`mpi, all cases: env OMPI_MCA_pml=ob1`."""
        return [
            f"{backend}, all cases: env {value_text(dict(items))}"
            for (name, backend), items in sorted(self.by_place.items(), key=lambda each: each[0])
            if name == "env" and items
        ]


def without_shared(rows: Sequence[AnyRow]) -> list[AnyRow]:
    """The rows without what all of a backend have of their maps."""
    return list(map(SharedItems.of(rows).taken_from, rows))


def shown_value(row: Row, name: str) -> Any:
    """The value where others of its column have one: the case of an exchange does not name its own
    buffers."""
    value = getattr(row, name)
    is_own = name == "buffers" and value is None and row.benchmark == "exchange"
    return "own" if is_own else value
