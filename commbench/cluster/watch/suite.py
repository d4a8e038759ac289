"""What `commbench watch` measures: its options, and a suite of jobs, each a run of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.cluster.baseline.fresh_launches import SuiteJob, narrowed, suite_job
from commbench.cluster.watch.prometheus import MOST_SERIES_CASES
from commbench.cluster.watch.state import (
    CHANGED_FOLDER,
    QUARANTINE_FOLDER,
    RUNS_FOLDER,
    WATCH_FOLDER,
)
from commbench.config.compose import ConfigComposer
from commbench.config.experiments import requested_jobs
from commbench.config.settings import SEARCH, Job
from commbench.core.errors import ConfigError
from commbench.core.variables import Case
from commbench.runtime.launchers.requirements import check_experiment, check_startable

WATCH_KEYS = ("trial", "output", "plan")  # the command sets them
TOTAL_S = "budget.total_s"


@dataclass(frozen=True)
class WatchOptions:
    """The options of a command line. `every_s` is None for one turn; `fresh`: how many launches
    confirm a change; `delta`: the least change that matters, 0.02 is 2 %; `keep_turns`: how many
    turns a run is kept that is no part of the store and shows no change; `is_quiet`: nothing is
    printed unless something has changed or went wrong; `planted`: words that hold from a turn on,
    for a rehearsal."""

    words: tuple[str, ...]
    store: Path
    every_s: int | None
    budget_s: int | None
    fresh: int
    delta: float
    prometheus: Path | None
    config_dir: str | None
    multirun: bool
    keep_turns: int
    is_quiet: bool = False
    planted: tuple[tuple[int, str], ...] = ()

    @property
    def runs(self) -> Path:
        return self.store / WATCH_FOLDER / RUNS_FOLDER

    @property
    def changed(self) -> Path:
        return self.store / WATCH_FOLDER / CHANGED_FOLDER

    @property
    def quarantine(self) -> Path:
        return self.store / WATCH_FOLDER / QUARANTINE_FOLDER

    def planted_in(self, turn: int) -> list[str]:
        return [word for first, word in self.planted if first <= turn]


@dataclass(frozen=True)
class WatchedSuite:
    jobs: tuple[SuiteJob, ...]
    name: str

    @property
    def cases(self) -> dict[str, Case]:
        return _cases(self.jobs)

    @property
    def skipped(self) -> frozenset[str]:
        return frozenset(key for job in self.jobs for key in job.skipped)


def _cases(jobs: Iterable[SuiteJob]) -> dict[str, Case]:
    return {key: case for job in jobs for key, case in job.cases.items()}


def watched_suite(options: WatchOptions) -> WatchedSuite:
    """Raises ConfigError for what can't be run here or watched."""
    planted = [word for _, word in options.planted]
    with ConfigComposer(options.config_dir) as composer:
        words = _suite_words(composer, options)
        requested = rehearsed = requested_jobs(composer, words, options.multirun)
        if planted:
            rehearsed = requested_jobs(composer, [*words, *planted], options.multirun)
    check_experiment(requested)
    for job in requested.jobs:
        check_startable(job)
        _check_watched(job)
    label = requested.jobs[0].settings.label
    name = label or requested.experiment or "suite"
    suite = WatchedSuite(tuple(map(suite_job, requested.jobs)), name)
    _check_cases(suite)
    if planted:
        _check_planted(planted, suite, map(suite_job, rehearsed.jobs))
    if options.prometheus is not None:
        _check_series(suite)
    return suite


def _suite_words(composer: ConfigComposer, options: WatchOptions) -> list[str]:
    """The words of the user, with what the command chooses where they do not."""
    keys = composer.keys_of(options.words)
    own = [*WATCH_KEYS, *([TOTAL_S] if options.budget_s is not None else [])]
    for key in keys:
        if key in own:
            raise ConfigError(f"commbench watch sets {key} itself; leave it out")
    quiet = [] if "writer" in keys else ["writer=[parquet]"]
    return [*quiet, *options.words]


def _check_watched(job: Job) -> None:
    if job.settings.pairs == SEARCH:
        raise ConfigError(
            f"pairs={SEARCH} measures other pairs each time; watch pairs=neighbours, and search"
            " with commbench locate"
        )
    if "parquet" not in job.config["writers"]:
        raise ConfigError("this suite stores no results to judge; add parquet to writer")


def _check_cases(suite: WatchedSuite) -> None:
    if len(suite.cases) < sum(len(job.cases) for job in suite.jobs):
        raise ConfigError("two runs of this suite have the same case; watch it once")
    if suite.cases.keys() == suite.skipped:
        raise ConfigError("this suite has no case that can be measured here; see plan=true")


def _check_planted(
    planted: Sequence[str], suite: WatchedSuite, rehearsed: Iterable[SuiteJob]
) -> None:
    """`rehearsed`: the jobs of the suite with the planted words."""
    if suite.cases.keys() != _cases(rehearsed).keys():
        raise ConfigError(
            f"--plant {' '.join(planted)} changes which cases are measured; plant what changes"
            " their times, as backend.model.slow_factor=1.5"
        )


def _check_series(suite: WatchedSuite) -> None:
    if len(suite.cases) > MOST_SERIES_CASES:
        raise ConfigError(
            f"--prometheus takes at most {MOST_SERIES_CASES} cases, this suite has"
            f" {len(suite.cases)}; choose fewer sizes or pairs"
        )


def narrowed_jobs(suite: WatchedSuite, keys: Collection[str], options: WatchOptions) -> list[Job]:
    jobs = []
    for watched in suite.jobs:
        own = [key for key in keys if key in watched.cases]
        if own:
            jobs.append(narrowed(watched, own, options.config_dir))
    return jobs
