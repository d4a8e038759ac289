"""Whether numbers are normal, in a line for each case; and where there is no value, the nearest
machine that has one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from operator import attrgetter

from commbench.analysis.families import WHOSE
from commbench.core.texts import size_text
from commbench.core.units import format_bytes, format_factor, plural
from commbench.report.quantities import ALGBW, BUSBW
from commbench.results.columns import grouped
from commbench.results.flags import UNUSABLE
from commbench.results.row import Row

from .normal import IN_PLACE, JUDGED_COLUMNS, NORMAL, PLACE, Judged
from .reference import OWN, Reference, references

QUANTITIES = {each.column: f" {each.name}" for each in (ALGBW, BUSBW)}
MOST_WITHOUT = 5  # operations without a value that are named
MOST_SIZES = 64  # of an operation, for which a value is looked for
MODEL = re.compile(r"(?:gpu\.\d+\.name|host\.cpu_model)=([^;]+)")
ADD_OWN = f"commbench reference add RUN --name 'our machines' --folder DIR; then {OWN}=DIR"
_place = attrgetter(*PLACE, *WHOSE)
_operation = attrgetter("benchmark", "backend", "layout")  # an imported file may name no layout


# ---------------------------------------------------------------- with a value


def normal_lines(judged: Sequence[Judged]) -> list[str]:
    """One for the largest and the smallest size of each operation, and one for each value that
    another is far from."""
    naming = _naming([each.row for each in judged])
    lines = []
    operations = grouped(judged, lambda each: (each.row.benchmark, *_place(each.row)))
    for of_operation in operations.values():
        by_size = grouped(of_operation, lambda each: each.row.message_bytes)
        for size, alike in sorted(by_size.items(), reverse=True):
            first, *others = sorted(alike, key=_rank)
            far = [each for each in others if each.verdict != NORMAL and each.decides]
            if size in (max(by_size), min(by_size)) or first.verdict != NORMAL:
                agreeing = [each for each in others if each.verdict == NORMAL]
                lines.append(line_of(first, naming, agreeing))
            lines += [line_of(each, naming) for each in far]
    return lines


def _naming(rows: Sequence[Row]) -> list[str]:
    """What a line has to name beside the operation and its size."""
    names = (*PLACE, *WHOSE)
    return [name for name in names if len({getattr(row, name) for row in rows}) > 1]


def _rank(judged: Judged) -> tuple[object, ...]:
    """The value that says most comes first: our own, then one that was measured as we did."""
    reference = judged.reference
    return (
        not judged.decides,
        not reference.file,
        judged.point.is_threshold,
        judged.point.low != judged.point.high,
        len(judged.differences),
        reference.machine,
    )


def line_of(judged: Judged, naming: Sequence[str] = (), agreeing: Sequence[Judged] = ()) -> str:
    """`all_gather 512 MiB: 331 GB/s busbw; normal on 8 H100 SXM: 335 GB/s (0.99 x; ...)`."""
    row = judged.row
    where = " ".join(str(getattr(row, name)) for name in naming if getattr(row, name))
    case = f"{row.benchmark} {format_bytes(row.message_bytes)}{f', {where}' if where else ''}"
    verdict = NORMAL if judged.verdict == NORMAL else f"{judged.verdict} than normal"
    if not judged.decides:
        verdict = judged.verdict
    reference = judged.reference
    parts = [
        f"{case}: {judged.measured}{QUANTITIES.get(reference.column, '')}",
        f"{verdict} on {reference.place_of_ranks}: {judged.value}"
        f" ({format_factor(judged.ratio)}; {', '.join(_how(reference))})",
    ]
    if judged.differences:
        parts.append(f"here: {', '.join(judged.differences)}")
    if agreeing:
        parts.append(f"{plural(len(agreeing), 'more value', 'more values')} within the factor")
    if judged.causes and judged.decides:
        parts.append(f"usual causes: {judged.causes}")
    return "; ".join(parts)


def _how(reference: Reference) -> Iterator[str]:
    """How the value was measured, as far as its document says it; else what the document is."""
    told = [reference.tool, reference.library]
    if "in_place" in reference.way:
        told.append(IN_PLACE[reference.way["in_place"]])
    if reference.measurements:
        told.append(_measurements(reference.measurements))
    yield from filter(None, told if reference.tool or reference.file else [reference.setting])
    if reference.sure in ("medium", "low"):
        yield f"{reference.sure} certainty"
    if reference.date and not reference.tool:
        yield reference.date


def _measurements(count: int) -> str:
    return "one measurement" if count == 1 else f"{count} measurements"


# ---------------------------------------------------------------- without one


def lines_without(
    judged: Iterable[Judged], cases: Mapping[tuple[str, ...], Sequence[Row]]
) -> list[str]:
    """A line for each operation that has no value here, and how to add one. `cases`: by the texts
    that describe their machine."""
    known = {_operation(each.row) for each in judged}
    without = [
        (operation, alike, hardware)
        for hardware, rows in cases.items()
        for operation, alike in grouped(filter(_is_usable, rows), _operation).items()
        if operation not in known and operation[-1] != "1x1"
    ]
    lines = dict.fromkeys(
        f"{' '.join(filter(None, operation))}: no value{_nearest(alike, hardware)}"
        for operation, alike, hardware in without[:MOST_WITHOUT]
    )
    more = len(without) - MOST_WITHOUT
    rest = [f"{plural(more, 'more operation', 'more operations')} without a value"]
    return [*lines, *(rest if more > 0 else []), f"Add your own: {ADD_OWN}"] if lines else []


def _is_usable(row: Row) -> bool:
    return not set(row.warnings) & UNUSABLE


def _nearest(rows: Sequence[Row], hardware: Sequence[str]) -> str:
    """Of the values of as many ranks, that of this machine or else of the one whose name is most
    like it."""
    fitting = [
        reference
        for reference in references()
        if reference.column in JUDGED_COLUMNS and reference.decides and reference.is_of_a_machine
        if any(map(reference.is_comparable, rows[:MOST_SIZES]))
    ]
    if not fitting:
        return " of any machine"
    models = [model for text in hardware for model in MODEL.findall(text)] or [*hardware]

    def likeness(reference: Reference) -> float:
        own = reference.machine.lower()
        ratios = (SequenceMatcher(None, model.lower(), own).ratio() for model in models)
        return 1.0 if reference.is_of(hardware) else max(ratios, default=0.0)

    reference = max(fitting, key=likeness)
    point = reference.points[-1]
    size = f" at {size_text(point.message_bytes)}" if point.message_bytes else ""
    known = f"{reference.place_of_ranks}: {point.text(reference.write)}{size}"
    if reference.is_of(hardware):
        return f" of these sizes; known on {known}"
    return f"; the nearest machine with one is {known}"
