"""What `accept` can't decide yet, measured again: all launches decide, those of RESULTS and fresh
ones. Each of both looks has half of the false alarms."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commbench.analysis.machines import nodes_of
from commbench.cli.run import recorded_overrides
from commbench.cluster.baseline.fresh_launches import (
    launched,
    narrowed,
    suite_job,
    words_without,
)
from commbench.cluster.baseline.suite_key import suite_key
from commbench.cluster.gate.answers import CaseAnswer, GateResult
from commbench.cluster.gate.decision import SUITE, GateRules
from commbench.cluster.gate.with_baseline import judge_with_baseline
from commbench.config.compose import ConfigComposer
from commbench.config.settings import Job
from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.launchers import usual_programs
from commbench.core.terminal import first_line
from commbench.core.units import plural, word_list
from commbench.report.summary import Results, Summary, read_results
from commbench.runtime.launchers.registry import detect
from commbench.runtime.launchers.requirements import check_startable
from commbench.stats.difference import outcomes
from commbench.stats.thresholds import DECIDING_LAUNCHES

OWN_KEYS = ("trial", "output", "writer", "plan")  # this command sets them


def measured_again(
    result: GateResult, summary: Summary, store: Path, rules: GateRules, most_launches: int
) -> GateResult:
    """The result with the answers of more launches on what was suspect or undecided; with a note on
    why not, where that can't be measured from here."""
    try:
        return _measured_again(result, summary, store, rules, most_launches)
    except CommbenchError as error:
        return replace(result, notes=(*result.notes, f"Not measured again: {first_line(error)}."))


def _measured_again(
    result: GateResult, summary: Summary, store: Path, rules: GateRules, most_launches: int
) -> GateResult:
    open_cases = frozenset(each.case_id for each in open_answers(result)) - {""}
    jobs = _jobs_of(summary.results, open_cases)
    compared = [each.comparison for each in result.answers if each.comparison is not None]
    healthy = min(each.launches[0] for each in compared)
    launches = min(most_launches, _launches_needed(healthy, len(compared), rules))
    cases = plural(len(open_cases), "open case", "open cases")
    fresh = plural(launches, "fresh launch", "fresh launches")
    print(f"accept: {cases}: measured again in {fresh}", file=sys.stderr, flush=True)
    results = next(iter(summary.results.folders.values())).parent
    output = results.with_name(f"{results.name}-again")  # no part of RESULTS
    folders = [*_launched(jobs, launches, output), *summary.results.folders.values()]
    again = Summary(read_results([str(folder) for folder in folders]))
    of_open = replace(rules, allow_missing=True, only=open_cases, suite_cases=len(compared))
    decided = judge_with_baseline(again, store, of_open)
    note = f"{cases} of RESULTS measured again in {fresh}; all launches decide: {output}"
    return replace(result, answers=_with_decided(result, decided), notes=(*result.notes, note))


def _launched(jobs: Sequence[tuple[Job, str | None]], launches: int, output: Path) -> list[Path]:
    """The folders of so many launches of each job."""
    return [
        launched([job], output, [f"trial={number}", "writer=[parquet]"], config_dir).folder
        for number in range(1, launches + 1)
        for job, config_dir in jobs
    ]


def _with_decided(result: GateResult, decided: GateResult) -> tuple[CaseAnswer, ...]:
    """The answers on the cases, the later ones where there are, and the later ones on the suite."""
    later = {each.case_id: each for each in decided.answers if each.kind != SUITE}
    return (
        *(later.get(each.case_id, each) for each in result.answers if each.kind != SUITE),
        *(each for each in decided.answers if each.kind == SUITE),
    )


def open_answers(result: GateResult) -> list[CaseAnswer]:
    """The suspect and undecided cases that more launches may decide."""
    return [
        each
        for each in (*result.of("SUSPECT"), *result.of("UNDECIDED"))
        if each.comparison is not None
    ]


def _launches_needed(healthy: int, cases: int, rules: GateRules) -> int:
    """The fresh launches with which a case can fail among so many, if all are slower than every
    healthy launch."""
    launches = DECIDING_LAUNCHES
    while outcomes(healthy, launches) * rules.false_alarms < cases * rules.looks:
        launches += 1
    return launches


def _jobs_of(results: Results, case_ids: Collection[str]) -> list[tuple[Job, str | None]]:
    """The jobs that measure these cases, with the folder of their configuration. Raises
    CommbenchError where they can't run here as they did."""
    if detect(os.environ) is not None:
        raise ConfigError(f"accept runs within {word_list(usual_programs(), 'or')}")
    if not results.folders:
        raise ConfigError("RESULTS are no folders of runs")
    rows = [row for row in results.rows if row.case_id in case_ids]
    missing = {suite_key(row) for row in rows}
    jobs = []
    for record in results.records:
        own = {suite_key(row) for row in rows if row.run_id == record.get("run_id")} & missing
        if own:
            _check_host(record)
            config_dir = record.get("config_dir")
            folder = results.folders.get(str(record.get("run_id")), Path())
            jobs.append((_job_of(recorded_overrides(record, folder), own, config_dir), config_dir))
            missing -= own
    return jobs


def _check_host(record: Mapping[str, Any]) -> None:
    hosts = [str(node.get("host.hostname")) for node in nodes_of(record)]
    if platform.node() not in hosts:
        raise ConfigError(f"this machine, {platform.node()}, is none of {', '.join(hosts)}")


def _job_of(overrides: Sequence[str], keys: set[str], config_dir: str | None) -> Job:
    """Raises CommbenchError where the overrides of a run do not give these cases here."""
    with ConfigComposer(config_dir) as composer:
        words = words_without(composer, overrides, OWN_KEYS)
        (job,) = composer.jobs([*words, "writer=[parquet]"], multirun=False)
    check_startable(job)
    suite = suite_job(job)
    if not keys <= suite.cases.keys():
        raise ConfigError(f"{' '.join(words)} has other cases here")
    return narrowed(suite, keys, config_dir)
