"""`plan=true`: the cases of every job of a command line, without starting anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from commbench.config.settings import SEARCH, Job, Settings, on_nodes, too_many_pairs
from commbench.core.case import Planned, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import about_bytes, about_duration, format_bytes, short_pairs
from commbench.core.variables import AXES, Case, is_usual
from commbench.hardware import host, resource_limits
from commbench.hardware.sources import ROOT
from commbench.measure.further_rounds import pair_search
from commbench.measure.plan import AlikeCases, duration_s, plan, plan_outline, setup_s
from commbench.measure.plan_facts import PlanFacts
from commbench.results.columns import grouped, row_order
from commbench.runtime.control import hosted_world
from commbench.runtime.launchers.requirements import (
    missing_requirements,
    skipped_text,
    starts_here,
)

from .jobs import job_titles

# named below the table of a plan where all cases have the same
COMMON_IN_PLAN = ("layout", "dtype")
PLAN_COLUMNS = (
    TableColumn("message", right=True),
    TableColumn("cases", right=True, priority=1),
    TableColumn("memory / node", right=True, priority=2),
)


def facts_here() -> PlanFacts:
    """What the plan needs to know about this machine."""
    cache_bytes = host.cache_facts(ROOT)["host.cpu_llc_bytes"] or 0
    return PlanFacts(
        resource_limits.allocatable_bytes() or sys.maxsize,
        cache_bytes,
        len(os.sched_getaffinity(0)),
    )


def _world_here(settings: Settings, ranks: int = 2) -> tuple[Settings, World]:
    """A world on this machine for a job; `ranks` replaces a layout that is left open."""
    around = Layout.around(settings.layouts, ranks)
    world, _ = hosted_world(around.nodes, around.ranks_per_node)
    return replace(settings, layouts=settings.layouts or on_nodes((around,), settings.nodes)), world


def planned_here(settings: Settings) -> tuple[Planned, ...]:
    """The cases of a job on this machine, also the skipped ones. Raises ConfigError where there are
    too many."""
    refusal = too_many_pairs(settings.pairs, settings.layouts, settings.sizes)
    if refusal is not None:
        raise ConfigError(refusal)
    return plan(*_world_here(settings), facts_here())


def print_plans(jobs: Sequence[Job], elsewhere: bool = False, needs_all: bool = False) -> int:
    """The cases of every job, for `plan=true`, and why it could not start here; returns the exit
    status of that. `elsewhere`: the ranks will run on other machines. `needs_all`: none would be
    skipped."""
    reasons = [[*missing_requirements(job.settings, elsewhere)] for job in jobs]
    total = _Duration(0.0, 0.0)
    for job, title, missing in zip(jobs, job_titles(jobs), reasons, strict=True):
        if len(jobs) > 1:
            print(title)
        is_here = not missing and not elsewhere and starts_here(job.settings)
        total += print_plan(job.settings, is_here=is_here)
    if len(jobs) > 1:
        print(f"all {len(jobs)} jobs: about {total}")
    skipped = skipped_text([next(iter(missing), None) for missing in reasons])
    if skipped is None:
        return 0
    if not needs_all and not all(reasons):
        print(skipped)
        return 0
    for reason in dict.fromkeys(chain.from_iterable(reasons)):
        print(f"it can't start here: {reason}")
    return ConfigError.exit_status


def print_plan(settings: Settings, ranks: int = 2, is_here: bool = True) -> _Duration:
    """The cases of a job; returns their time. `ranks` replaces a layout that is
    left open. The memory of another machine is not known, so that no size is skipped for it."""
    facts = facts_here()
    notes = []
    if not is_here and settings.sizes_to_memory:
        notes = ["sizes=..max ends at the memory of this machine"]
    elif not is_here:
        facts = replace(facts, memory_bytes=sys.maxsize)
        notes = ["memory is not checked: it is that of another machine"]
    settings, world = _world_here(settings, ranks)
    outline = plan_outline(settings, world, facts)
    print(_plan_text(settings, outline, notes))
    return _Duration.of(settings, outline)


@dataclass(frozen=True)
class _Duration:
    """An estimate of the time of cases. A number of repetitions takes from next to nothing to what
    the budget allows, and a search goes on if a node is in doubt."""

    least_s: float
    most_s: float

    @classmethod
    def of(cls, settings: Settings, alike: Sequence[AlikeCases]) -> _Duration:
        least = duration_s if settings.timing.repetitions is None else setup_s
        times_s = [
            sum(group.cases * seconds(settings, group.planned) for group in alike)
            for seconds in (least, duration_s)
        ]
        if settings.pairs == SEARCH:
            times_s = pair_search().rounds_s(settings, *times_s)
        return cls(*times_s)

    def __add__(self, other: _Duration) -> _Duration:
        return _Duration(self.least_s + other.least_s, self.most_s + other.most_s)

    def __str__(self) -> str:
        """`45.6 s`, `3.9 s to 113 min`."""
        return " to ".join(dict.fromkeys(map(about_duration, (self.least_s, self.most_s))))


@dataclass(frozen=True)
class _PlanLine:
    """Cases that differ in nothing that the table of a plan shows."""

    groups: tuple[AlikeCases, ...]

    @property
    def case(self) -> Case:
        return self.groups[0].planned.case

    @property
    def skip(self) -> str | None:
        return self.groups[0].planned.skip

    @property
    def cases(self) -> int:
        return sum(group.cases for group in self.groups)

    @property
    def node_bytes(self) -> int:
        return max(group.planned.node_bytes for group in self.groups)

    @property
    def pair_text(self) -> str:
        """The first and the last pair, and how many run at once."""
        if self.cases == 1:
            return short_pairs(self.case.pair or "")
        last_pair = self.groups[-1].last_pair or ""
        ends = f"{self.case.pair or ''} .. {last_pair}".split()
        at_once = {len(group.planned.case.pairs) for group in self.groups}
        most = f" ({'at most ' if len(at_once) > 1 else ''}{max(at_once)} at once)"
        return f"{ends[0]} .. {ends[-1]}{most if max(at_once) > 1 else ''}"

    def text(self, name: str) -> str:
        """The value of a variable."""
        if name == "pair":
            return self.pair_text
        value = getattr(self.case, name)
        return "" if is_usual(name, value) else str(value)


def _plan_lines(alike: Sequence[AlikeCases], names: Sequence[str]) -> list[_PlanLine]:
    """The lines of a plan in a sorted order; the cases run in a shuffled one."""

    def shown(group: AlikeCases) -> tuple[object, ...]:
        case = group.planned.case
        values = [getattr(case, name) for name in names if name != "pair"]
        return (*values, case.message_bytes, group.planned.skip)

    groups = grouped(sorted(alike, key=_plan_order), shown)
    return [_PlanLine(tuple(same)) for same in groups.values()]


def _plan_order(group: AlikeCases) -> tuple[object, ...]:
    """Sort key: as rows, by the first of the pairs."""
    case = group.planned.case
    return row_order(replace(case, pair=(case.pair or "").partition(" ")[0] or None))


def _plan_text(settings: Settings, alike: Sequence[AlikeCases], more_notes: Sequence[str]) -> str:
    """A table with a line for all cases that differ in their pairs only; below it why some are
    skipped, and the sums."""
    cases = [group.planned.case for group in alike]
    values = {name: {getattr(case, name) for case in cases} for name in (*COMMON_IN_PLAN, *AXES)}
    common = [
        f"{name} {value}"
        for name in COMMON_IN_PLAN
        for value in values[name]
        if len(values[name]) == 1 and not is_usual(name, value)
    ]
    names = [
        *("benchmark", "layout", "pair", "dtype"),
        *(name for name in AXES if len(values[name] - {None}) > 1),
    ]
    names = [name for name in names if name not in COMMON_IN_PLAN or len(values[name]) > 1]
    lines = _plan_lines(alike, names)
    names = [name for name in names if any(line.text(name) for line in lines)]
    reasons = [*dict.fromkeys(line.skip for line in lines if line.skip)]
    several = any(line.cases > 1 for line in lines)
    time = TableColumn("about", right=True, priority=1)
    columns = [*map(TableColumn, names), *PLAN_COLUMNS, time]
    rows = [
        [
            *map(line.text, names),
            format_bytes(line.case.message_bytes) if line.case.message_bytes else "-",
            f"{line.cases:,}" if several else "",
            "-" if line.skip else about_bytes(line.node_bytes),
            _skip_mark(line.skip, reasons) or str(_Duration.of(settings, line.groups)),
        ]
        for line in lines
    ]
    terminal = Terminal.of(sys.stdout)
    table = table_text(columns, rows, terminal)
    notes = [f"{_skip_mark(reason, reasons)}: {reason}" for reason in reasons]
    notes += [f"every case: {', '.join(common)}"] if common else []
    if settings.timing.repetitions is not None:
        notes.append("the time of a repetition is not known: from none to timing.case_s a case")
    notes += more_notes
    refusal = too_many_pairs(settings.pairs, settings.layouts, settings.sizes)
    notes += [f"a run of this plan is refused: {refusal}"] if refusal else []
    below = paragraphs(notes, terminal)
    return "\n".join(filter(None, (table, below, _plan_sums(settings, alike))))


def _skip_mark(reason: str | None, reasons: Sequence[str]) -> str:
    """`skipped`, with the number of the reason where there are several; empty without a reason."""
    if reason is None:
        return ""
    return "skipped" if len(reasons) == 1 else f"skipped ({reasons.index(reason) + 1})"


def _plan_sums(settings: Settings, alike: Sequence[AlikeCases]) -> str:
    """How many cases there are, how many rows they make, and how long they take."""
    cases = sum(group.cases for group in alike)
    measured = sum(group.cases for group in alike if not group.planned.skip)
    total = _Duration.of(settings, alike)
    pairs = sum(group.pairs for group in alike if group.planned.case.schedule == "rounds")
    rounds = f" ({pairs:,} pairs)" if pairs else ""
    noun = "case" if cases == 1 else "cases"
    return (
        f"{settings.backend.name}, timing {settings.timing.name}:"
        f" {cases:,} {noun}{rounds}, {measured:,} to measure,"
        f" about {total}; nothing was started"
    )
