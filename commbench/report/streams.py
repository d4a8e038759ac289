"""Soaks of streams: a line for each with how its rate rose. Networks count bits."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.analysis.case_names import case_names
from commbench.core.states import Row
from commbench.core.terminal import TableColumn, Terminal, table_text
from commbench.core.texts import span_text
from commbench.core.units import plural
from commbench.stats.thresholds import FULL_SPEED_SHARE

from .quantities import NO_NUMBER, Unit

MEGABITS = Unit("Mb/s", 1e-3 / 8)  # in GB/s, as the columns of cases.parquet
GIGABITS = Unit("Gb/s", 1 / 8)
RAMP = ("end_gb_per_s", "first_second_gb_per_s", "full_speed_s", "least_gb_per_s", "retransmits")
RATE_HEADS = ("rate", "at the end", "first second")
HEADS = ("full speed\nafter s", "least\nafter", "resent\nsegments")
MEANINGS = (
    "rate: all bytes over the whole time; at the end: median of the last fifth of the intervals;"
    f" full speed: {100 * FULL_SPEED_SHARE:.0f} % of that, in two intervals; least: the slowest"
    " interval after full speed"
)


def is_stream_soak(row: Row) -> bool:
    return row.get("end_gb_per_s") is not None


def repetition_bytes(row: Row) -> int:
    """Of a measured repetition: all writes between two stamps."""
    return int(row["operations_per_sample"]) * int(row["message_bytes"])


def bit_unit(soaks: Sequence[Row]) -> Unit:
    """One for all: Mb/s up to 10 Gb/s at their ends, so that a link of 1 Gb/s has its digits."""
    ends = [row["end_gb_per_s"] for row in soaks]
    return GIGABITS if max(ends, default=0.0) >= 10 * GIGABITS.size else MEGABITS


def streams_text(rows: Sequence[Row], terminal: Terminal) -> str:
    """A line for each soak of a stream; empty without any."""
    soaks = [row for row in rows if is_stream_soak(row)]
    if not soaks:
        return ""
    unit = bit_unit(soaks)
    heads = [*(f"{head}\n{unit.name}" for head in RATE_HEADS), *HEADS]
    columns = [TableColumn("stream"), *(TableColumn(head, right=True) for head in heads)]
    cells = [(name, *_cells(row, unit)) for name, row in zip(case_names(soaks), soaks, strict=True)]
    sentences = [slow_start_text(soaks, unit), MEANINGS]
    notes = [terminal.paragraph(text) for text in sentences if text]
    return "\n".join([table_text(columns, cells, terminal), *notes])


def _cells(row: Row, unit: Unit) -> tuple[str, ...]:
    after_s = row["full_speed_s"]
    resent = row["retransmits"]
    return (
        unit.text(row["algbw_gb_per_s"]),
        unit.text(row["end_gb_per_s"]),
        unit.text(row["first_second_gb_per_s"]),
        NO_NUMBER if after_s is None else f"{after_s:.1f}",
        unit.text(row["least_gb_per_s"]),
        NO_NUMBER if resent is None else str(resent),
    )


def _is_slow_at_first(row: Row) -> bool:
    first = row["first_second_gb_per_s"]
    return first is not None and first < FULL_SPEED_SHARE * row["end_gb_per_s"]


def slow_start_text(soaks: Sequence[Row], unit: Unit) -> str:
    """How many fresh connections were slower in their first second; empty where none lasted long
    enough."""
    known = [row for row in soaks if row["first_second_gb_per_s"] is not None]
    slow = [row for row in known if _is_slow_at_first(row)]
    counted = plural(len(known), "stream", "streams")
    if not slow:
        return f"The first second is no slower than the end in {counted}." if known else ""
    firsts = [row["first_second_gb_per_s"] for row in slow]
    ends = [row["end_gb_per_s"] for row in slow]
    many = len(slow) > 1
    return (
        f"The first second is slower than the end in {len(slow)} of {counted}:"
        f" {'their first seconds' if many else 'its first second'}: {_span(firsts, unit)};"
        f" {'their ends' if many else 'its end'}: {_span(ends, unit)}."
    )


def _span(rates: Sequence[float], unit: Unit) -> str:
    return f"{span_text(rates, unit.text)} {unit.name}"


def stream_sentences(soaks: Sequence[Row]) -> list[str]:
    """One for their first seconds, and one for each stream."""
    if not soaks:
        return []
    unit = bit_unit(soaks)
    lines = [
        f"{name}: {unit.text(row['end_gb_per_s'])} {unit.name} at the end{_ramp_text(row, unit)}."
        for name, row in zip(case_names(soaks), soaks, strict=True)
    ]
    return [*filter(None, [slow_start_text(soaks, unit)]), *lines]


def _ramp_text(row: Row, unit: Unit) -> str:
    first = f", {unit.text(row['first_second_gb_per_s'])} in the first second"
    after_s = row["full_speed_s"]
    full_speed = (
        "; the rate may still rise" if after_s is None else f", full speed after {after_s:.1f} s"
    )
    return f"{first if _is_slow_at_first(row) else ''}{full_speed}"
