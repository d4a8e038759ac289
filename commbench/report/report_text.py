"""The report on a terminal: heads, answers, the best for each size, costs, flags, doubts."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence

from commbench.core.units import format_seconds

from .launch_overhead import HEADS
from .recommend import size_text
from .reference import NORMAL
from .style import interval_text
from .summary import Summary, reference_note

LEAST_WIDTH = 100


def text_of(summary: Summary, top: int) -> str:
    """All of it, tables cut after `top` rows with a line that says so."""
    width = max(int(os.environ.get("COLUMNS", "0") or 0), LEAST_WIDTH)
    parts = [_heads(summary, top, width), _answers(summary, width), _best(summary, top, width)]
    parts += [_fits(summary, top, width), _overheads(summary, top, width), _normal(summary, width)]
    parts += [_flags(summary, width), _lost(summary, top, width)]
    lines = "\n\n".join(part for part in parts if part).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], top: int, width: int) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return ""
    listed = Table(box=None, title=Text(title, style="bold"), title_justify="left", pad_edge=False)
    for head in heads:
        listed.add_column(head, overflow="fold")
    for row in rows[:top]:
        listed.add_row(*(Text(cell) for cell in row))
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(listed)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    more = f"... and {len(rows) - top} more: --top {len(rows)}\n" if len(rows) > top else ""
    return text + more


def _wrapped(lines: Iterable[str], width: int) -> str:
    import textwrap

    return "\n".join(textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False) for line in lines)


def _heads(summary: Summary, top: int, width: int) -> str:
    rows = [
        (one.backend, one.library, one.layouts, one.world, one.ipc, one.timing, str(one.runs), one.labels)
        for one in summary.heads
    ]
    heads = ("backend", "library", "layouts", "world", "CUDA IPC", "timing", "runs", "labels")
    title = f"{len(summary.results.cases)} cases of {len(summary.results.runs)} runs"
    return "\n".join([_table(title, heads, rows, top, width), _wrapped(_places(summary), width)])


def _places(summary: Summary) -> Iterator[str]:
    for machine in summary.machines[:3]:
        facts = ", ".join(f"{name} {value}" for name, value in machine.facts)
        yield f"machine {', '.join(machine.hosts[:4])}: {facts}"
    if len(summary.machines) > 3:
        yield f"... and {len(summary.machines) - 3} more kinds of machine: --html FILE"
    for name, value, ranks in summary.differences[:10]:
        yield f"ranks differ: {name} is {value} on rank {ranks}"
    if len(summary.differences) > 10:
        yield f"... and {len(summary.differences) - 10} more differences: --html FILE"


def _answers(summary: Summary, width: int) -> str:
    return "\n".join(["Answers", _wrapped((f"  * {text}" for text in summary.sentences()), width)])


def _best(summary: Summary, top: int, width: int) -> str:
    heads = ("benchmark", "ranks", "message", "best", "median", "95 % interval", "second", "takes")
    rows = [
        (f"{one.benchmark} {one.more}".strip(), str(one.world_size), size_text(one.size),
         one.name if one.decided else f"not distinguishable: {one.alike}", format_seconds(one.median_s),
         interval_text(one.low_s, one.high_s), one.second, f"{one.ratio:.3g} x")
        for one in summary.best
    ]  # fmt: skip
    return _table("Best backend and layout for each size", heads, rows, top, width)


def _fits(summary: Summary, top: int, width: int) -> str:
    heads = ("benchmark", "case", "sizes", "alpha", "1 / beta", "n 1/2", "largest miss")
    rows = [(one.benchmark, one.name, one.sizes, one.alpha, one.rate, one.half, one.miss) for one in summary.fits]
    return _table("Costs: time = alpha + beta x bytes", heads, rows, top, width)


def _overheads(summary: Summary, top: int, width: int) -> str:
    rows = [one.cells() for one in summary.overheads]
    return _table("What a launch costs: waiting for a call, and replaying it", HEADS, rows, top, width)


def _normal(summary: Summary, width: int) -> str:
    lines = [f"Is this number normal? {reference_note(summary.judged)}"]
    for one in summary.judged:
        because = f"; usual causes: {one.causes}" if one.verdict != NORMAL else ""
        lines.append(f"  {one.case}: {one.measured}, published {one.published}: {one.verdict}{because}")
        lines.append(f"    {one.reference.hardware}; {one.reference.source}, {one.reference.date}")
    return _wrapped(lines, width)


def _flags(summary: Summary, width: int) -> str:
    rows = [(one.flag, str(one.cases), one.meaning.means, one.meaning.do) for one in summary.flags]
    return _table("Flags", ("flag", "cases", "means", "what to do"), rows, len(rows), width)


def _lost(summary: Summary, top: int, width: int) -> str:
    rows = [(one.status, str(one.count), one.reason, one.cases) for one in summary.lost]
    listed = _table("Not measured", ("status", "cases", "reason", "which"), rows, top, width)
    return listed + _wrapped((f"left out: {line}" for line in summary.results.problems), width)
