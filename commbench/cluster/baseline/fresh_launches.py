"""Fresh launches of a suite, or of some of its cases: of the turns of `watch`, and of what `accept`
finds suspect."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.cli.plans import planned_here
from commbench.cli.run import run_launch
from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.baseline.store import day_of, launches_of
from commbench.cluster.baseline.suite_key import suite_key
from commbench.config.compose import ConfigComposer
from commbench.config.overrides import quoted
from commbench.config.settings import Job
from commbench.core.errors import CommbenchError
from commbench.core.variables import Case
from commbench.results.load import find_runs, load_run, read_case_rows
from commbench.results.row import Row
from commbench.results.run_folder import new_folder


@dataclass(frozen=True)
class SuiteJob:
    """A job of a suite, which is a run in a fresh world, and its cases by their keys. `skipped`:
    those that its plan skips."""

    job: Job
    cases: Mapping[str, Case]
    skipped: frozenset[str]


def suite_job(job: Job) -> SuiteJob:
    """The job with a case for each row that it will have."""
    planned = planned_here(job.settings)
    cases = {suite_key(case): case for each in planned for case in each.case.single_cases}
    skipped = [case for each in planned if each.skip is not None for case in each.case.single_cases]
    return SuiteJob(job, cases, frozenset(suite_key(case) for case in skipped))


def words_without(
    composer: ConfigComposer, overrides: Sequence[str], keys: Container[str]
) -> list[str]:
    """The overrides of other keys than these."""
    own = zip(overrides, composer.keys_of(overrides), strict=True)
    return [word for word, key in own if key not in keys]


def narrowed(suite: SuiteJob, keys: Collection[str], config_dir: str | None) -> Job:
    """The job with no more benchmarks and sizes than the cases of these keys need, where its
    settings can say that."""
    cases = [suite.cases[key] for key in keys]
    benchmarks = ",".join(sorted({case.benchmark for case in cases}))
    sizes = ",".join(map(str, sorted({case.message_bytes for case in cases} - {0})))
    fewer_benchmarks = {"benchmark": f"[{benchmarks}]"}
    fewer_sizes = {**fewer_benchmarks, **({"sizes": f"[{sizes}]"} if sizes else {})}
    with ConfigComposer(config_dir) as composer:
        overrides = suite.job.overrides
        for fewer in (fewer_sizes, fewer_benchmarks):
            kept = words_without(composer, overrides, fewer)
            words = [*kept, *(f"{key}={value}" for key, value in fewer.items())]
            with suppress(CommbenchError):
                (job,) = composer.jobs(words, multirun=False)
                if set(keys) <= suite_job(job).cases.keys():
                    return job
    return suite.job


@dataclass(frozen=True)
class FreshLaunch:
    """What a launch of jobs has left: rows by key, its runs with their records, and the worst exit
    status."""

    folder: Path
    rows: Mapping[str, Row]
    runs: Mapping[Path, Mapping[str, Any]]
    status: int

    def launches(self, key: str) -> list[HealthyLaunch]:
        """Those of a case; none where it was not measured."""
        row = self.rows.get(key)
        if row is None:
            return []
        days = {run.name: day_of(record.get("started_at")) for run, record in self.runs.items()}
        return launches_of(row, days.get(row.run_id, ""))


def launched(
    jobs: Sequence[Job],
    output: Path,
    words: Sequence[str],
    config_dir: str | None,
    after: str = "",
) -> FreshLaunch:
    """Run jobs one after the other, each in a fresh world and with further words; a broken one
    loses only its own cases. `after`: the name of a run that came before."""
    folder = Path(new_folder(str(output), after))
    own = [*words, f"output={quoted(folder)}"]
    status = max(run_launch([*job.overrides, *own], config_dir) for job in jobs)
    runs = {run: load_run(run) for run in find_runs(folder)}
    rows = read_case_rows(list(runs)) if runs else []
    return FreshLaunch(folder, {suite_key(row): row for row in rows}, runs, status)
