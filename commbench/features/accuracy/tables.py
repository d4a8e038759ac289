"""How far sums are from the exact ones, and where their bits are the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commbench.analysis.case_names import telling, unusual_texts
from commbench.core.terminal import TableColumn
from commbench.core.texts import span_text
from commbench.core.units import NO_NUMBER, format_number, word_list
from commbench.core.variables import NAMES
from commbench.report.showing import DerivedTable
from commbench.report.table import Table
from commbench.results.columns import case_text, grouped, row_order
from commbench.results.row import Row

HEADS = (
    "operation", "backend", "type", "error max\nulp", "rms\nulp", "same bits", "other bits",
)  # fmt: skip
MEANING = (
    "error: distance from the exact sum, in units in the last place of its type; other bits: the"
    " share of the elements; again: in three more calls; in two halves: of each block, one after"
    " the other; beside: half of the ranks, while the others reduce, too"
)
IN_CELLS = ("benchmark", "layout", "message_bytes", "elements", "backend", "dtype", "payload")
Shares = dict[str, float]  # of the elements with other bits, by kind; without those not compared


@dataclass(frozen=True)
class Sums:
    """What all launches of a case have found. `hashes`: one for each."""

    row: Row
    error_ulp_max: float
    error_ulp_rms: float
    shares: Shares
    hashes: tuple[str, ...]


def derived(rows: Iterable[Row]) -> DerivedTable:
    found = sums_of(rows)
    names = [name for name in telling([each.row for each in found]) if name not in IN_CELLS]
    columns = [
        TableColumn(head, right=head.endswith("ulp"), prose=head in ("same bits", "other bits"))
        for head in HEADS
    ]
    table = Table(columns, [_cells(each, names) for each in found])
    return DerivedTable("Accuracy and bits", table, "\n".join((*sentences(found), MEANING)))


def sums_of(rows: Iterable[Row]) -> list[Sums]:
    """Of each case, its runs together."""
    measured = [row for row in rows if row.error_ulp_max is not None]
    ordered = sorted(measured, key=row_order)
    cases = grouped(ordered, lambda row: tuple(getattr(row, name) for name in NAMES))
    return [_sums(own) for own in cases.values()]


def _sums(rows: Sequence[Row]) -> Sums:
    by_kind = {
        "again": [row.other_bits_again for row in rows],
        "on all ranks": [row.other_bits_on_ranks for row in rows],
        "in and out of place": [row.other_bits_in_place for row in rows],
        "in two halves": [row.other_bits_in_halves for row in rows],
        "beside another group": [row.other_bits_beside for row in rows],
    }
    known = {
        kind: [share for share in shares if share is not None] for kind, shares in by_kind.items()
    }
    return Sums(
        rows[0],
        max(row.error_ulp_max or 0.0 for row in rows),
        max(row.error_ulp_rms or 0.0 for row in rows),
        {kind: max(shares) for kind, shares in known.items() if shares},
        tuple(text for row in rows for text in row.launch_hashes or ()),
    )


def _cells(sums: Sums, names: Sequence[str]) -> tuple[str, ...]:
    """By HEADS."""
    row = sums.row
    more = unusual_texts(row, names)
    return (
        ", ".join((case_text(row), *more)),
        row.backend,
        row.dtype,
        format_number(sums.error_ulp_max),
        format_number(sums.error_ulp_rms),
        ", ".join(same_bits([sums])) or NO_NUMBER,
        ", ".join(other_bits([sums])) or NO_NUMBER,
    )


def sentences(found: Sequence[Sums]) -> list[str]:
    """One for each operation, backend, layout and type, over all sizes."""
    alike = grouped(
        found, lambda each: (each.row.benchmark, each.row.backend, each.row.layout, each.row.dtype)
    )
    return [f"{', '.join(subject)}: {_said(own)}" for subject, own in alike.items()]


def _said(found: Sequence[Sums]) -> str:
    same = same_bits(found)
    listed = word_list(same, "and") if len(same) > 1 else "".join(same)
    worst = max(each.error_ulp_max for each in found)
    parts = (
        f"same bits {listed}" if same else "",
        *(f"other bits {text}" for text in other_bits(found)),
        f"error at most {format_number(worst)} ulp",
    )
    return "; ".join(filter(None, parts))


def same_bits(found: Sequence[Sums]) -> list[str]:
    """In what no element of these differs."""
    same = [kind for kind, shares in _by_kind(found).items() if not any(shares)]
    launches = {len(each.hashes) for each in found}
    if max(launches) > 1 and all(len(set(each.hashes)) == 1 for each in found):
        same.append(f"in {span_text(launches)} launches")
    return same


def other_bits(found: Sequence[Sums]) -> list[str]:
    """In what elements differ, and how many."""
    other = [
        f"{kind} {span_text(shares, share_text)}"
        for kind, shares in _by_kind(found).items()
        if any(shares)
    ]
    most_unlike = max((each.hashes for each in found), key=lambda hashes: len(set(hashes)))
    if len(set(most_unlike)) > 1:
        other.append(f"in launches ({len(set(most_unlike))} different of {len(most_unlike)})")
    return other


def _by_kind(found: Sequence[Sums]) -> dict[str, list[float]]:
    kinds = dict.fromkeys(kind for each in found for kind in each.shares)
    return {kind: [each.shares[kind] for each in found if kind in each.shares] for kind in kinds}


def share_text(share: float) -> str:
    """`33 %`; `< 0.1 %` of a few elements."""
    return f"{100 * share:.2g} %" if share == 0 or share >= 0.001 else "< 0.1 %"
