"""An experiment's numbers beside those of its document: tables, and curves for the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from commbench.core.texts import size_text, span_text
from commbench.core.units import format_factor, format_number, format_seconds, plural
from commbench.report.plots import KnownCurve
from commbench.report.quantities import ALGBW, BUSBW, MEDIAN
from commbench.report.section import Section
from commbench.report.table import Table
from commbench.results.columns import grouped
from commbench.results.intervals import interval_note, marks_note
from commbench.results.row import Row

from .comparison import Compared
from .quiz import QUIZ, quiz_answer
from .reference import UNITS, Point, Reference, is_in_bits
from .values import Document, experiment_of

HEADS = ("ours", "published", "ours / published")
QUANTITIES = {each.column: each.name for each in (MEDIAN, ALGBW, BUSBW)} | {
    "message_rate_per_s": "messages",
    "rate_gb_per_s": ALGBW.name,
}
ANOTHER_MACHINE = "another machine"


def document_sections(documents: Iterable[Document], hardware: Sequence[str]) -> Iterator[Section]:
    """A section for each; `hardware`: texts that describe our machines, and the labels of runs."""
    for document in documents:
        curves = grouped(
            (each for each in document.compared if len(each.reference.points) > 1),
            lambda each: id(each.reference),
        )
        single = [each for each in document.compared if len(each.reference.points) == 1]
        tables = [_single_table(single, document.bytes_unit)] if single else []
        tables += [_curve_table(values) for values in curves.values()]
        yield Section(
            f"{document.experiment}: ours and published",
            tables=tables,
            notes=[*_origins(document, hardware), *_meanings(document), *_missing(document)],
        )


def quiz_sections(rows: Iterable[Row], records: Iterable[Mapping[str, Any]]) -> Iterator[Section]:
    """The answer of the MPI quiz, where runs of it are among these."""
    runs = [str(record.get("run_id")) for record in records if experiment_of(record) == QUIZ]
    answer = quiz_answer([row for row in rows if row.run_id in runs])
    if answer:
        yield Section("The quiz", answer)


def _single_table(values: Sequence[Compared], bytes_unit: str) -> Table:
    rows = []
    for each in values:
        write = partial(_written, each.reference, bytes_unit)
        rows.append((_setting(each), *_cells(each, write)))
    return Table.of(("published as", *HEADS), rows)


def _written(reference: Reference, bytes_unit: str, value: float) -> str:
    """`9.46 Gb/s`; `9.46 Gb/s (1183 MB/s)` where the document has rates in bytes beside it."""
    unit = reference.unit
    text = f"{format_number(value)} {unit}"
    if not (bytes_unit and is_in_bits(unit)):
        return text
    return f"{text} ({format_number(value * UNITS[unit] / UNITS[bytes_unit])} {bytes_unit})"


def _setting(each: Compared) -> str:
    size = f" ({size_text(each.message_bytes)})" if each.message_bytes else ""
    name = f", {each.name}" if each.name else ""
    return f"{each.reference.setting}{size}{name}{_here(each)}"


def _here(each: Compared) -> str:
    return f"; here: {each.stand_in}" if each.stand_in else ""


def _curve_table(values: Sequence[Compared]) -> Table:
    reference = values[0].reference
    is_timed = values[0].point.at_s is not None
    several = any(each.name for each in values)
    rows = [
        (
            format_seconds(each.point.at_s) if is_timed else size_text(each.message_bytes or 0),
            *([each.name] if several else []),
            *_cells(each, format_number),
        )
        for each in values
    ]
    heads = ("after" if is_timed else "size", *(["case"] if several else []), *HEADS)
    place = "" if is_timed else f" ({reference.place})"
    title = f"{reference.title_of_table}{place}{_here(values[0])}"
    return Table.of(heads, rows, f"{title}, {QUANTITIES[reference.column]} in {reference.unit}")


def _cells(each: Compared, write: Callable[[float], str]) -> tuple[str, str, str]:
    """Ours with its width, or the range of several alike cases with the mark of the least certain;
    the published value; and the factor, or of a bound whether ours is within."""
    ours = each.ours
    mark = each.least_certain.certainty if each.least_certain else ""
    width = ours.width_text() if ours.of else ""
    texts = [f"{mark}{write(ours.value)}", width, _several(each)]
    known = each.point.text(write)
    return " ".join(filter(None, texts)), known, each.answer or f"{mark}{format_factor(each.ratio)}"


def _several(each: Compared) -> str:
    """`(231 to 464, 12 cases)`, `(3 of 6 pairs not symmetric)`; empty for one case."""
    count = len(each.values)
    if each.reference.is_of_directions:
        return f"({each.asymmetric} of {plural(count, 'pair', 'pairs')} not symmetric)"
    if count == 1:
        return ""
    values = [value.value for value in each.values]
    return f"({span_text(values, format_number)}, {count} cases)"


def _origins(document: Document, hardware: Sequence[str]) -> Iterator[str]:
    """Who published the values, and whether on our kind of machine."""

    def origin(each: Reference) -> str:
        here = "this kind of machine" if each.is_of(hardware) else ANOTHER_MACHINE
        place = f", on {here}" if each.is_of_a_machine else ""
        return f"Published by {each.published}{place}"

    own = {each.reference.title: each.reference for each in document.compared}
    for text, alike in grouped(own.values(), origin).items():
        about = [each.machine for each in alike]
        about += [each.library for each in alike if each.library]
        yield f"{text}: {'; '.join(dict.fromkeys(about))}."


def _meanings(document: Document) -> Iterator[str]:
    wide = interval_note([each.ours for each in document.compared if each.ours.of])
    marks = marks_note(filter(None, (each.least_certain for each in document.compared)))
    if notes := [*filter(None, (wide, marks))]:
        yield f"{'; '.join(notes)}."
    if any(each.reference.column == "full_speed_s" for each in document.compared):
        yield "Time to full speed: to the end of its first interval, as tcpbench prints it."


def _missing(document: Document) -> list[str]:
    if not document.missing:
        return []
    return [f"Published values without a measured case: {'; '.join(document.missing)}."]


# ---------------------------------------------------------------- curves


def known_curves(documents: Iterable[Document], rows: Sequence[Row]) -> list[KnownCurve]:
    """The curves of the documents, over size and over time, that fit some of these rows."""
    references = {id(each.reference): each.reference for one in documents for each in one.compared}
    return [
        _curve(each, points)
        for each in references.values()
        if (points := _points(each)) and any(map(each.fits, rows))
    ]


def _points(reference: Reference) -> Sequence[Point]:
    """Of its curve; none where it is a single value."""
    first, *more = reference.points
    if first.at_s is not None:
        return reference.points
    sized = [point for point in reference.points if point.message_bytes]
    return sized if more and first.message_bytes else ()


def _curve(reference: Reference, points: Sequence[Point]) -> KnownCurve:
    name = f"published, {ANOTHER_MACHINE}: {reference.title_of_table}"
    at = tuple(float(point.message_bytes or point.at_s or 0) for point in points)
    scale = UNITS[reference.unit]
    return KnownCurve(name, reference.column, at, tuple(point.value * scale for point in points))
