"""The list of sections of a report: verdicts first, then figures, then numbers and what they rest
on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np

from commbench.analysis.best import BEST_CELLS, best_rows
from commbench.analysis.case_names import case_names, without_shared
from commbench.analysis.combined_row import Combined
from commbench.analysis.effective_settings import settings_texts
from commbench.analysis.headline import certainty_text, scope_text
from commbench.analysis.pairs.matrix import CLASSES, Matrix
from commbench.analysis.pairs.symmetry import symmetry_text
from commbench.core.annexes import registered
from commbench.core.layout import pairs_text
from commbench.core.texts import message_text
from commbench.core.units import format_seconds, natural_key, plural
from commbench.results.flags import flag_named
from commbench.results.row import Row

from . import plots
from .distributions import RawData, RowId
from .numbers import headline_table, lines_by_window, number_sections
from .quantities import MEDIAN, has_bandwidth, in_full, quoted, text_with_unit
from .reporting import Reporting, added_sections, curves_beside
from .section import Figure, Section, no_figures
from .showing import derived_tables, disturbances_text
from .summary import GROUP_HEADS, LOST_HEADS, MOST_SENTENCES, Summary
from .table import Table

ANSWERS = "Answers"
MOST_ANSWERS = 5
MOST_MACHINES = 8
MOST_MATRICES = 12
LARGEST_MATRIX = 64  # ranks; of a larger matrix only the classes are named
MATRIX_NOTE = (
    "Dark (on a dark page: bright) is slow for its class of links; a frame marks a slow pair."
)
PRIORITIES = {  # of columns that a narrow terminal may lack; the page has them all
    "takes": 2,
    "second": 3,
    "based on": 4,
    "timing": 1,
    "labels": 2,
    "runs": 3,
    "CUDA IPC": 4,
    "what to do": 1,
    "which": 1,
}
FLAG_HEADS = ("flag", "cases", "meaning", "what to do")
CASE_HEADS = ("case", "time", "bandwidth", "limit GB/s", "flags", "runs")


def sections(summary: Summary, raw: RawData) -> list[Section]:
    """All sections that have something to show."""
    added = partial(added_sections, summary=summary)
    every = chain(
        added("verdict"),
        _answers(summary),
        added("answers"),
        (each.section for each in summary.results.comparisons),
        added("comparisons"),
        _pairs(summary),
        _figures(summary),
        added("figures"),
        _choices(summary),
        number_sections(summary.combined),
        added("numbers"),
        (
            Section(each.title, tables=[each.table], notes=each.meaning.splitlines())
            for each in derived_tables(summary.results.rows)
        ),
        added("checks"),
        _origins(summary),
        added("costs"),
        _details(summary, raw),
    )
    return [section for section in every if _has_content(section)]


def _has_content(section: Section) -> bool:
    has_rows = any(table.rows for table in (*section.headline, *section.tables))
    return bool(section.sentences or has_rows or section.texts or section.figures is not no_figures)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> list[Table]:
    """A table of texts; none without rows."""
    cells = [tuple(map(str, row)) for row in rows]
    return [Table.of(heads, cells, title, priorities=PRIORITIES)] if cells else []


def _answers(summary: Summary) -> Iterator[Section]:
    """What to know first: the numbers of each benchmark, what they say, and how well they are
    known."""
    sentences = answers(summary)
    headline = headline_table(summary.combined)
    notes = [
        *dict.fromkeys((*summary.combined.notes, *summary.soaks.notes)),
        scope_text(summary.combined),
        certainty_text(summary.combined.rows),
        disturbances_text(summary.results.records, summary.results.rows),
        summary.interval_note(),
    ]
    yield Section(
        ANSWERS,
        sentences[:MOST_ANSWERS],
        headline=[headline] if headline.rows else [],
        texts=[summary.again] if summary.again else [],
        notes=list(filter(None, notes)),
    )
    yield Section("More answers", sentences[MOST_ANSWERS:], is_folded=True)


def answers(summary: Summary) -> list[str]:
    """Verdicts, doubts, what pairs say and what features know, then what to choose, and what such a
    choice rests on."""
    features = registered(Reporting)
    return [
        *summary.unfinished,
        *(each.answer for each in summary.results.comparisons),
        *summary.doubts(chain.from_iterable(each.doubts(summary) for each in features)),
        *[*_on_matrices(summary)][:MOST_SENTENCES],
        *chain.from_iterable(each.answers(summary) for each in features),
        *chain.from_iterable(each.choices(summary) for each in features),
        *summary.basis_of_choices(),
    ]


def _on_matrices(summary: Summary) -> Iterator[str]:
    """Whether the two directions of the pairs are equally fast, and what features know of them."""
    for matrix, name in summary.matrix_names.items():
        if both := symmetry_text(matrix):
            yield f"{name}: {both}."
        for each in registered(Reporting):
            yield from each.on_matrix(matrix)


# ---------------------------------------------------------------- figures


def _figures(summary: Summary) -> Iterator[Section]:
    lines = ((each.benchmark, each.rows) for each in lines_by_window(summary.combined))
    curves = plots.curves_of(lines)
    for number, benchmark in enumerate(curves.rows):
        yield Section(
            benchmark,
            figures=partial(_of_benchmark, summary, curves, benchmark),
            notes=_left_lines(len(curves.rows[benchmark])),
            is_folded=number >= 3,
            is_on_terminal=False,
        )
    yield from added_sections("curves", summary)
    if len({row.layout for row in summary.combined.rows}) > 1:
        draw = partial(plots.by_layout, curves)
        yield Section("Layouts (nodes x ranks per node)", figures=draw, is_on_terminal=False)


def _of_benchmark(summary: Summary, curves: plots.Curves, benchmark: str) -> Sequence[Figure]:
    """Time and rate over size with what was published, and the share of the limit."""
    rows = curves.of_benchmark(benchmark)
    shown = dict.fromkeys((MEDIAN, *in_full(rows)))
    known = curves_beside(summary, rows)
    over_size = (plots.over_size(curves, benchmark, quantity, known) for quantity in shown)
    return [*chain.from_iterable(over_size), *plots.share_of_limit(curves, benchmark)]


def _left_lines(lines: int) -> list[str]:
    hollow = (
        "Bands are confidence intervals of the medians; hollow points are known to no better than"
        " 30 %."
    )
    left = (
        [f"{lines} lines were measured; the first {plots.MOST_LINES} by name are drawn."]
        if lines > plots.MOST_LINES
        else []
    )
    return [hollow, *left]


def _pairs(summary: Summary) -> Iterator[Section]:
    """The matrices of the newest runs."""
    shown = summary.matrices[:MOST_MATRICES]
    names = summary.matrix_names
    drawn = [matrix for matrix in shown if len(matrix.ranks) <= LARGEST_MATRIX and matrix.classes]
    left = len(summary.matrices) - len(shown)
    if shown:
        yield Section(
            "All pairs",
            [text for matrix in shown for text in _class_sentences(matrix, names[matrix])],
            figures=lambda: [
                figure for matrix in drawn for figure in plots.pair_matrix(matrix, names[matrix])
            ],
            notes=[MATRIX_NOTE] + [f"{left} more matrices are not drawn."] * (left > 0),
            is_on_terminal=False,
        )


def _class_sentences(matrix: Matrix, head: str) -> Iterator[str]:
    """`p2p_latency 8 B: 12 pairs between nodes: 74.1 us, 70.2 us (0-1) to 80.3 us (2-3)`."""
    for name, medians in matrix.classes.items():
        fastest, middle, slowest = matrix.extremes(name)
        yield (
            f"{head}: {plural(len(medians), 'pair', 'pairs')} {CLASSES[name]}:"
            f" {matrix.number_with_unit(middle)},"
            f" {matrix.number_with_unit(fastest)} ({pairs_text([fastest])})"
            f" to {matrix.number_with_unit(slowest)} ({pairs_text([slowest])})"
        )


# ---------------------------------------------------------------- tables


def _choices(summary: Summary) -> Iterator[Section]:
    best = best_rows(summary.combined.best)
    yield Section("Best backend and layout for each size", tables=table(tuple(BEST_CELLS), best))


def _origins(summary: Summary) -> Iterator[Section]:
    """Flags, what was not measured, and the machines."""
    measured = (row for row in summary.results.rows if row.status == "ok")
    counts = Counter(flag for row in measured for flag in sorted(row.warnings))
    flags = [(name, count, *flag_named(name)) for name, count in counts.most_common()]
    yield Section("Flags", tables=table(FLAG_HEADS, flags))
    left = [f"Left out: {line}" for line in summary.left_out()]
    if summary.combined.left:
        left.append(f"{summary.combined.left} more distinct cases were not compared")
    yield Section("Not measured", left, table(LOST_HEADS, summary.lost))
    machines = summary.machines[:MOST_MACHINES]
    names = _machine_names([machine.hosts for machine in machines])
    facts = [dict(machine.facts) for machine in machines]
    titles = dict.fromkeys(title for machine in machines for title, _ in machine.facts)
    rows = [(title, *(values.get(title, "-") for values in facts)) for title in titles]
    rows.sort(key=lambda row: len(set(row[1:])) == 1)  # what differs comes first
    topologies = [
        f"topology of {name}\n{machine.topology}"
        for name, machine in zip(names, machines, strict=True)
        if machine.topology
    ]
    reasons = dict.fromkeys(
        machine.topology_reason for machine in machines if machine.topology_reason
    )
    yield Section(
        "Machines",
        settings_texts(summary.results.records, summary.results.rows),
        tables=[
            *table(GROUP_HEADS, summary.groups),
            *table(("fact", *names), rows),
            *table(("fact that differs", "value", "ranks"), summary.differences),
        ],
        texts=topologies,
        notes=[f"No topology matrix: {reason}." for reason in reasons],
    )


def _machine_names(hosts: Sequence[Sequence[str]]) -> list[str]:
    """The hosts of each kind of machine, with a number where two have the same."""
    names = [", ".join(each[:4]) + (" ..." if len(each) > 4 else "") for each in hosts]
    return [
        f"{name} ({number})" if names.count(name) > 1 else name
        for number, name in enumerate(names, start=1)
    ]


# ---------------------------------------------------------------- details


def _details(summary: Summary, raw: RawData) -> Iterator[Section]:
    hidden = partial(Section, is_folded=True, is_on_terminal=False)
    if raw.distributions:
        yield hidden(
            plural(len(raw.distributions), "distribution", "distributions"),
            figures=partial(_distributions, summary, raw),
            notes=raw.notes,
        )
    cases = _case_rows(summary)
    yield hidden(
        plural(len(cases), "distinct measured case", "distinct measured cases"),
        tables=table(CASE_HEADS, cases),
    )


def _distributions(summary: Summary, raw: RawData) -> list[Figure]:
    firsts = [(launches[0][0], case_id) for (case_id, _), launches in raw.distributions.items()]
    titles = row_titles(summary, firsts)
    figures = []
    for first, launches in zip(firsts, raw.distributions.values(), strict=True):
        ends = " .. ".join(map(format_seconds, np.quantile(launches[0][1], (0, 0.5, 1)).tolist()))
        repetitions = sum(times.size for _, times in launches)
        title = f"{titles[first]}: {ends} (minimum, median, maximum; n = {repetitions})"
        figures += plots.distribution(title, launches)
    return figures


def row_titles(summary: Summary, wanted: Sequence[RowId]) -> Mapping[RowId, str]:
    """The names of these rows; of several launches of a case with trial and run."""
    by_id = {(row.run_id, row.case_id): row for row in summary.results.rows}
    rows = without_shared([by_id[each] for each in wanted])
    names = case_names(rows)
    counts = Counter(names)
    backends = {row.backend for row in rows}
    only = f"{backends.pop()}, " if len(backends) == 1 else ""
    titles = {}
    for each, name, row in zip(wanted, names, rows, strict=True):
        launch = f", trial {row.trial} of run {row.run_id}" if counts[name] > 1 else ""
        titles[each] = f"{only}{name}{launch}"
    return titles


def _case_title(summary: Summary, row: Row) -> str:
    pair = f", ranks {row.pair}" if row.pair and len(row.pair) < 20 else ""
    size = message_text(row.message_bytes)
    return f"{row.benchmark} {size}, {summary.combined.name(row, without=('pair',))}{pair}"


def _case_rows(summary: Summary) -> list[tuple[str, ...]]:
    combined = summary.combined

    def place(row: Combined) -> tuple[object, ...]:
        others = combined.name(row, without=("pair", "window"))
        texts = (row.benchmark, row.backend, row.layout, others)
        return (*map(natural_key, texts), row.message_bytes)

    return [
        (
            _case_title(summary, row),
            text_with_unit(row, MEDIAN),
            text_with_unit(row, quoted([row])[-1]) if has_bandwidth(row) else "-",
            f"{row.limit_gb_per_s:.3g}" if row.limit_gb_per_s else "-",
            " ".join(row.warnings),
            str(row.runs),
        )
        for row in sorted(combined.rows, key=place)
    ]
