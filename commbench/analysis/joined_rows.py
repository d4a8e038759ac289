"""Which rows of two sides belong together: those that differ in nothing but what is compared."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from commbench.core.errors import ConfigError
from commbench.core.variables import NAMES, NO_DTYPE, Variables, brought_along, is_required
from commbench.results.columns import grouped
from commbench.results.row import Row

from .case_names import OF_BACKEND, OF_LABEL
from .sides import PAYLOAD, ComparedVariable, Side, variable_text

Key = tuple[Any, ...]  # the values of the variables, of those that are compared None
MOST_NEAREST = 50  # cases among which the nearest is looked for


class Joined(NamedTuple):
    """Key -> rows of each side."""

    base: dict[Key, list[Row]]
    new: dict[Key, list[Row]]


def joined_rows(base: Side, new: Side, by: Sequence[ComparedVariable]) -> Joined:
    """The rows that belong together; raises ConfigError where both sides have no case in common."""
    changed = changed_backends(base, new)
    given = [variable.name for variable in by if not variable.entry]
    names = (*given, *_unsaid(base), *_unsaid(new))
    # gloo has no native engine, mpi has: where nothing is in common without it, a backend brings
    # its engine
    brought = dict.fromkeys(
        more
        for name in names
        for more in (OF_LABEL if name == "label" else brought_along(name))
        if more in NAMES
    )
    for compared in (names, tuple(dict.fromkeys((*names, *brought)))):
        base_rows = rows_by_key(base, compared, changed)
        new_rows = rows_by_key(new, compared, changed)
        if base_rows.keys() & new_rows.keys():
            return Joined(base_rows, new_rows)
    reasons = []
    for name in NAMES:
        before = sorted({variable_text(getattr(row, name)) for row in base.rows})
        after = sorted({variable_text(getattr(row, name)) for row in new.rows})
        if not set(before) & set(after):
            reasons.append(f"{name} ({', '.join(before[:4])} / {', '.join(after[:4])})")
    apart = reasons_apart(base_rows, new_rows, "NEW")
    differing = "; ".join(reasons) or next(iter(apart.values()), "their combinations")
    raise ConfigError(
        f"BASE and NEW have no case in common; they differ in: {differing}; name what is"
        " compared with --by NAME"
    )


def _unsaid(side: Side) -> list[str]:
    """The variables of every case that no row of a side has, as in the results of another tool."""
    have = {name for name in NAMES for row in side.rows if getattr(row, name) is not None}
    is_typed = any(row.dtype != NO_DTYPE or not row.message_bytes for row in side.rows)
    required = [name for name in NAMES if is_required(name) and name not in have]
    return required if is_typed else [*required, "dtype"]


def key_of(row: Variables, by: Iterable[str], changed: Container[tuple[str, str]] = ()) -> Key:
    """The values of all variables, None for those of `by`; rows with equal keys are compared.

    A compared backend implies its library and options. `changed`: see changed_backends.
    """
    excluded = set(by)
    excluded |= {
        name for name in OF_BACKEND if "backend" in excluded or (row.backend, name) in changed
    }
    return tuple(None if name in excluded else getattr(row, name) for name in NAMES)


def reasons_apart(own: Iterable[Key], others: Iterable[Key], name_of_others: str) -> dict[Key, str]:
    """Key of `own` that is not in `others` -> the variables that keep it from the nearest of them
    with the same payload: `engine native, in NEW python`."""
    other_keys = set(others)
    unmatched = [key for key in own if key not in other_keys]
    if not unmatched:
        return {}
    by_payload = grouped(sorted(map(_point, other_keys)), _payload)
    reasons = {}
    for key in unmatched:
        point = _point(key)
        alike = by_payload.get(_payload(point), [])[:MOST_NEAREST]
        if not alike:
            continue
        differing = min((_differing(point, other) for other in alike), key=len)
        reasons[key] = ", ".join(
            f"{name} {value}, in {name_of_others} {other}" for name, value, other in differing
        )
    return reasons


def _point(key: Key) -> tuple[str, ...]:
    """The values of a key as texts, in the order of NAMES."""
    return tuple(map(variable_text, key))


def _payload(point: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(value for name, value in zip(NAMES, point, strict=True) if name in PAYLOAD)


def _differing(point: tuple[str, ...], other: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Name and both values of each variable in which they differ."""
    return [
        (name, value, other_value)
        for name, value, other_value in zip(NAMES, point, other, strict=True)
        if value != other_value
    ]


def changed_backends(base: Side, new: Side) -> set[tuple[str, str]]:
    """(backend, library or backend_options) with no value in common, as after an upgrade, and so
    not part of a key."""
    changed = set()
    for name in OF_BACKEND:
        before = _values_by_backend(base, name)
        after = _values_by_backend(new, name)
        changed |= {
            (backend, name)
            for backend in before.keys() & after.keys()
            if not before[backend] & after[backend]
        }
    return changed


def _values_by_backend(side: Side, name: str) -> dict[str, set[str]]:
    by_backend = grouped(side.rows, lambda row: row.backend)
    return {
        backend: {variable_text(getattr(row, name)) for row in rows}
        for backend, rows in by_backend.items()
    }


def rows_by_key(
    side: Side, by: Sequence[str], changed: Container[tuple[str, str]] = ()
) -> dict[Key, list[Row]]:
    """Key -> the rows of a side in the order of their runs, of two attempts in a run the later.

    Raises ConfigError if rows with the same key differ in what is compared.
    """
    by_key = dict[Key, dict[str, Row]]()
    for row in side.rows:
        runs = by_key.setdefault(key_of(row, by, changed), {})
        first_row = next(iter(runs.values()), row)
        for name in dict.fromkeys((*by, *OF_BACKEND)):
            first = variable_text(getattr(first_row, name))
            last = variable_text(getattr(row, name))
            if first != last:
                raise ConfigError(
                    f"{side.name} has {name} {first} and {last} for the same case; select with --by"
                    f" {name}=BASE:NEW"
                )
        runs[row.run_id] = row
    return {key: [runs[run_id] for run_id in sorted(runs)] for key, runs in by_key.items()}
