"""Whether a number is normal for its machine, by the values of reference.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from commbench.analysis.fit import WHOSE
from commbench.analysis.slow_pairs import UNUSABLE
from commbench.core.units import format_bytes, format_number, format_seconds, plural
from commbench.results.row import Row
from commbench.stats.thresholds import FAR_FROM_NORMAL

from .reference import UNITS, Reference, references

NORMAL = "normal"
FAST = "faster"
SLOW = "slower"
NO_VALUE = "no value for this kind of machine"
OF_A_GUESS = "{} than a guess"  # the verdict on a value that nobody measured
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
    """A measured case with a value of its machine. `expected`: "published 60 us .. 160 us"."""

    reference: Reference
    case: str
    measured: str
    expected: str
    verdict: str
    causes: str


def judge(
    cases: Iterable[Row], hardware: Iterable[str], bound_runs: Collection[str] = ()
) -> list[Judged]:
    """Compare the largest size of each backend, layout and WHOSE with all values of this hardware.

    `hardware`: texts that describe the machines, and the labels of the runs; `bound_runs`: the
    run_id of those whose ranks have cores of their own. Values far from the published range come
    first.
    """
    texts = list(hardware)
    judged: dict[tuple[str, ...], Judged] = {}
    known = [each for each in references() if each.column in JUDGED_COLUMNS and each.is_of(texts)]
    rows = sorted(cases, key=lambda row: row.message_bytes)
    for reference in known:
        alike = [
            row
            for row in rows
            if reference.is_comparable(row) and reference.point_of(row.message_bytes)
        ]
        last = {_place(row): row for row in alike}.values()
        differing = [name for name in WHOSE if len({getattr(row, name) for row in last}) > 1]
        for row in last:
            if not set(row.warnings) & UNUSABLE:
                case = _judged_case(reference, row, differing, row.run_id in bound_runs)
                # two experiments of one document may have the same value
                judged.setdefault((case.case, case.expected, reference.source), case)
    return sorted(judged.values(), key=lambda case: case.verdict == NORMAL)


def _judged_case(
    reference: Reference, row: Row, differing: Sequence[str], is_bound: bool
) -> Judged:
    """`differing`: further variables that the name of the case needs; `is_bound`: whether ranks had
    cores of their own."""
    point = reference.point_of(row.message_bytes)
    assert point is not None
    value = float(getattr(row, reference.column))
    scale = UNITS[reference.unit]
    seconds = reference.column == "median_s"
    above, below = (SLOW, FAST) if seconds else (FAST, SLOW)
    beyond = point.beyond(value / scale)
    far = 1.0 if point.is_threshold else FAR_FROM_NORMAL
    verdict = NORMAL
    if beyond > far:
        verdict = above
    elif beyond < 1 / far:
        verdict = below
    write = format_seconds if seconds else lambda rate: f"{format_number(rate)} GB/s"
    where = " ".join(str(getattr(row, name)) for name in (*PLACE, *differing) if getattr(row, name))
    case = f"{row.benchmark} {format_bytes(row.message_bytes)}, {where}"
    causes = "" if verdict == NORMAL else CAUSES["median_s" if seconds else "rate", verdict]
    if is_bound:
        causes = causes.replace(UNPINNED, "")
    if reference.guess and verdict != NORMAL:
        verdict = OF_A_GUESS.format(verdict)
    origin = "published"
    if reference.is_own:
        origin = f"measured by commbench on {reference.date}:"
    elif reference.guess:
        origin = "a guess:"
    ends = point.text(lambda number: write(number * scale))
    return Judged(reference, case, write(value), f"{origin} {ends}", verdict, causes)


def reference_note(judged: Sequence[Judged]) -> str:
    """How many known values apply."""
    if judged:
        own = sum(case.reference.is_own for case in judged)
        guesses = sum(case.reference.guess for case in judged)
        others = len(judged) - own - guesses
        counts = [f"{others} published"] if others else []
        counts += [f"{own} measured by commbench itself"] if own else []
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
