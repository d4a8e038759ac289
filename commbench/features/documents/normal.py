"""Whether a number is normal for its machine, by the values of reference.py."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from commbench.analysis.families import WHOSE
from commbench.core.units import format_bytes, plural
from commbench.results.flags import UNUSABLE
from commbench.results.row import Row
from commbench.stats.thresholds import FAR_FROM_NORMAL

from .reference import UNITS, VERSION, Point, Reference, library_version, references

NORMAL = "normal"
FAST = "faster"
SLOW = "slower"
NO_VALUE = "no value for this kind of machine"
OF_A_GUESS = "{} than a guess"  # the verdict on a value that nobody measured
OF_DOUBT = "{} than a doubtful value"
OF_ANOTHER_TIMER = "{} than with another timer"
IN_PLACE = {True: "in place", False: "out of place"}
UNPINNED = "ranks that are not pinned, "  # no cause where ranks are bound
CAUSES = {
    ("median_s", SLOW): (
        f"another interface or transport than expected, a loaded or throttled machine, {UNPINNED}"
        "several threads on one core, a virtual network"
    ),
    ("median_s", FAST): "both ranks on one node (shared memory), or a newer library or machine",
    ("rate", SLOW): (
        "one connection where several are needed, a link that is negotiated down (PCIe width,"
        " Ethernet), the wrong interface, small MTU, a message below the steady size, other traffic"
    ),
    ("rate", FAST): (
        "data that stays in a cache, both ranks on one node, NVLink SHARP (bus bandwidth above the"
        " link), or a newer machine"
    ),
}
JUDGED_COLUMNS = ("median_s", "algbw_gb_per_s", "busbw_gb_per_s")
PLACE = ("backend", "engine", "layout")
_place = attrgetter(*PLACE, *WHOSE)


@dataclass(frozen=True)
class Judged:
    """A measured case with a value of its machine. `expected`: "published 60 us .. 160 us".

    `ratio`: ours over the value, 1 within a range. `differences`: how we measured otherwise.
    `decides`: whether a run can miss it.
    """

    reference: Reference
    row: Row
    point: Point
    case: str
    measured: str
    expected: str
    ratio: float
    verdict: str
    causes: str
    differences: tuple[str, ...]
    decides: bool

    @property
    def value(self) -> str:
        """`335 GB/s`, `363 GB/s .. 480 GB/s`."""
        return self.point.text(self.reference.write)


def judge(
    cases: Iterable[Row],
    hardware: Iterable[str],
    bound_runs: Collection[str] = (),
    known: Iterable[Reference] | None = None,
) -> list[Judged]:
    """Compare the largest size of each backend, layout and WHOSE with all values of this hardware,
    and the smallest with those of a single size.

    `hardware`: texts that describe the machines, and the labels of the runs; `bound_runs`: the
    run_id of those whose ranks have cores of their own; `known`: the values, all where none are
    given. Values far from the published range come
    first.
    """
    texts = list(hardware)
    judged: dict[tuple[str, ...], Judged] = {}
    values = references() if known is None else known
    rows = sorted(cases, key=lambda row: row.message_bytes)
    for reference in values:
        if reference.column not in JUDGED_COLUMNS or not reference.is_of(texts):
            continue
        alike = [
            (row, point)
            for row in rows
            if reference.is_comparable(row) and (point := reference.point_of(row.message_bytes))
        ]
        last = {_place(row): (row, point) for row, point in alike}
        first = {_place(row): (row, point) for row, point in reversed(alike) if point.message_bytes}
        rows_of = [row for row, _ in last.values()]
        differing = [name for name in WHOSE if len({getattr(row, name) for row in rows_of}) > 1]
        for row, point in (*last.values(), *first.values()):
            if not set(row.warnings) & UNUSABLE:
                case = _judged_case(reference, row, point, differing, row.run_id in bound_runs)
                # two experiments of one document may have the same value
                judged.setdefault((case.case, case.expected, reference.source), case)
    return sorted(judged.values(), key=lambda case: case.verdict == NORMAL)


def _judged_case(
    reference: Reference, row: Row, point: Point, differing: Sequence[str], is_bound: bool
) -> Judged:
    """`differing`: further variables that the name of the case needs; `is_bound`: whether ranks had
    cores of their own."""
    ours = float(getattr(row, reference.column)) / UNITS[reference.unit]
    seconds = reference.column == "median_s"
    above, below = (SLOW, FAST) if seconds else (FAST, SLOW)
    beyond = point.beyond(ours)
    far = 1.0 if point.is_threshold else FAR_FROM_NORMAL
    verdict = NORMAL
    if beyond > far:
        verdict = above
    elif beyond < 1 / far:
        verdict = below
    where = " ".join(str(getattr(row, name)) for name in (*PLACE, *differing) if getattr(row, name))
    causes = "" if verdict == NORMAL else CAUSES["median_s" if seconds else "rate", verdict]
    if is_bound:
        causes = causes.replace(UNPINNED, "")
    doubt = _doubt(reference, row)
    return Judged(
        reference,
        row,
        point,
        case=f"{row.benchmark} {format_bytes(row.message_bytes)}, {where}",
        measured=reference.write(ours),
        expected=f"{_origin(reference)} {point.text(reference.write)}",
        ratio=beyond,
        verdict=doubt.format(verdict) if doubt and verdict != NORMAL else verdict,
        causes=causes,
        differences=tuple(_differences(reference, row)),
        decides=not doubt,
    )


def _origin(reference: Reference) -> str:
    if reference.is_own:
        return f"measured by commbench on {reference.date}:"
    if reference.file:
        return f"your own of {reference.date}:" if reference.date else "your own:"
    return "a guess:" if reference.guess else "published"


def _doubt(reference: Reference, row: Row) -> str:
    """Words around a verdict that decides nothing; empty where it decides. A short time that was
    taken in another way is another time: it has the launches of kernels, or not."""
    if reference.guess:
        return OF_A_GUESS
    if reference.sure == "low":
        return OF_DOUBT
    if reference.column == "median_s" and _is_other(row.timer, reference.way.get("timer")):
        return OF_ANOTHER_TIMER
    return ""


def _differences(reference: Reference, row: Row) -> Iterator[str]:
    """`in place`, `timer host_sync`, `NCCL 2.27.5`: ours, where the document has another."""
    if _is_other(row.in_place, reference.way.get("in_place")):
        yield IN_PLACE[bool(row.in_place)]
    if reference.column == "median_s" and _is_other(row.timer, reference.way.get("timer")):
        yield f"timer {row.timer}"
    named = re.match(rf"([A-Za-z][\w ]*?) ({VERSION})", reference.library)
    if named and _is_other(ours := library_version(row, named[1]), named[2]):
        yield f"{named[1]} {ours}"


def _is_other(ours: object, theirs: object) -> bool:
    """Whether both are known, and not the same."""
    return ours is not None and theirs is not None and ours != theirs


def reference_note(judged: Sequence[Judged]) -> str:
    """How many known values apply."""
    if judged:
        own = sum(case.reference.is_own for case in judged)
        yours = sum(bool(case.reference.file) for case in judged)
        guesses = sum(case.reference.guess for case in judged)
        others = len(judged) - own - yours - guesses
        counts = [f"{others} published"] if others else []
        counts += [f"{own} measured by commbench itself"] if own else []
        counts += [f"{yours} of your own"] if yours else []
        counts += [plural(guesses, "guess", "guesses")] if guesses else []
        return (
            f"Known values of this kind of machine: {', '.join(counts)}; far is beyond a factor of"
            f" {FAR_FROM_NORMAL}, or beyond the threshold of a check."
        )
    machines = {each.machine for each in references()}
    return (
        f"There is {NO_VALUE} and these cases; {len(references())} values of {len(machines)} kinds"
        " are known."
    )
