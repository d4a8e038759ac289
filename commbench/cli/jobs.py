"""The jobs of a sweep: how they run, and the table at their end."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict

from commbench.config.compose import MODEL
from commbench.config.keys import NO_STAGE
from commbench.config.settings import Job
from commbench.core.annexes import registered
from commbench.core.errors import CommbenchError, ConfigError, WorldBroken
from commbench.core.extras import how_to_install, is_installed
from commbench.core.launchers import launchers
from commbench.core.layout import Layout
from commbench.core.protocols import Launcher, NamedValues
from commbench.core.secrets import masked_override
from commbench.core.terminal import (
    TableColumn,
    Terminal,
    first_line,
    paragraphs,
    print_error,
    printable,
    table_text,
)
from commbench.core.variables import NAMES, TABLE
from commbench.results.load import load_run
from commbench.results.recorded import recorded_rows
from commbench.results.run_folder import RECORD, new_folder, read_record
from commbench.runtime.launchers.registry import mpi_library

from .options import show_command

MOST_ANSWER_ROWS = 1000  # of a table, or violations
# runs the jobs one after the other in this process
HERE = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
STATUSES = ("ok", "failed", "invalid", "skipped")
PART = "part="  # not shown in titles: the words after it are the overrides of that part
# keys that the name of a case tells
IN_NAMES = {"sizes", "pairs", "trial", *NAMES} - {"timing"}

# runs the job of a configuration, in a folder if one is given; returns the exit status
Task = Callable[..., int]


def differing_words(jobs: Sequence[Job]) -> list[list[str]]:
    """The overrides of each job that not all jobs have, without labels that only repeat others."""
    common = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    differing = {word for job in jobs for word in job.overrides} - common
    repeats = ("label=",) if any(word.startswith(MODEL) for word in differing) else ()
    return [
        [
            masked_override(word).lstrip("+")
            for word in job.overrides
            if word in differing and not word.startswith((PART, *repeats))
        ]
        for job in jobs
    ]


def job_titles(jobs: Sequence[Job]) -> list[str]:
    """`job 2/4: backend=mpi layout=1x2`."""
    words = differing_words(jobs)
    return [
        printable(f"job {number}/{len(jobs)}: {' '.join(overrides)}")
        for number, overrides in enumerate(words, start=1)
    ]


@dataclass(frozen=True)
class Ended:
    """How a job ended, and its folder, if it has a run.json."""

    status: int
    folder: Path | None
    interrupted: bool = False

    @property
    def cells(self) -> list[str]:
        """Of the table of jobs: exit status, number of cases by status, folder."""
        if self.folder is None:
            return [str(self.status), *("" for _ in STATUSES), ""]
        counts = Counter[str]()
        with suppress(CommbenchError):
            counts.update(row.status for row in recorded_rows(self.folder).values())
        numbers = (str(counts[status] or "") for status in STATUSES)
        return [str(self.status), *numbers, str(self.folder)]

    @property
    def reason(self) -> str:
        """Why it did not end with 0: the reason in run.json, if it has one."""
        if self.interrupted:
            return "interrupted"
        if self.folder is None:
            return "its message is above"
        return read_record(self.folder).get("reason") or "cases failed, see its table"


class Sweep:
    """Prints the title of each job, runs it in a new folder and keeps how it ended. At the end it
    shows the results of all side by side, or a table of the jobs."""

    def __init__(self, jobs: Sequence[Job], task: Task) -> None:
        self._jobs = jobs
        self._is_side_by_side = _are_side_by_side(jobs)
        self._titles = job_titles(jobs)
        self._task = task
        self._ended: dict[int, Ended] = {}

    def run(self, config: DictConfig) -> int:
        """Run one job, as Hydra's launcher calls it; returns its exit status."""
        number = int(HydraConfig.get().job.num)
        terminal = Terminal.of(sys.stdout)
        folder = None
        if len(self._jobs) > 1:
            print(terminal.styled(terminal.paragraph(self._titles[number]), "bold"), flush=True)
        if self._is_side_by_side and "console" in config.writers:
            with open_dict(config):
                config.writers.console.tables = False
        with suppress(ConfigError):  # the task says why
            folder = new_folder(self._jobs[number].settings.output)
        try:
            status = self._task(config, folder)
        except (KeyboardInterrupt, SystemExit) as stop:
            self._ended[number] = Ended(
                interrupted_status(stop), _with_record(folder), interrupted=True
            )
            raise
        self._ended[number] = Ended(status, _with_record(folder))
        if len(self._jobs) > 1:
            print(flush=True)
        return status

    def show(self) -> None:
        if self._is_side_by_side:
            self.print_side_by_side()
        else:
            self.print_table()

    def print_side_by_side(self) -> None:
        """Their results side by side, and the table of jobs only where one did not end well."""
        # they take as long to import as all else here
        from commbench.report.side_by_side import side_by_side

        from .show import rows_of

        rows = []
        records = []
        folders = self.folders()
        for folder in folders:
            with suppress(CommbenchError):
                rows += rows_of(folder)
                records.append(load_run(folder))
        if any(row.status == "ok" for row in rows):
            again = show_command(folders)
            print(side_by_side(rows, Terminal.of(sys.stdout), records, again), flush=True)
        if len(self._ended) < len(self._jobs) or any(
            ended.status for ended in self._ended.values()
        ):
            print()
            self.print_table()

    def folders(self) -> list[Path]:
        return [ended.folder for ended in self._ended.values() if ended.folder is not None]

    def print_table(self) -> None:
        """All jobs with their cases and folders; below the table why some failed. Nothing for a
        single one that ended well, and for stages whose verdict says it."""
        worst = max((ended.status for ended in self._ended.values()), default=0)
        in_stages = any(job.settings.stage != NO_STAGE for job in self._jobs)
        is_whole = len(self._ended) == len(self._jobs)
        if (len(self._jobs) == 1 and not worst) or (in_stages and is_whole and worst <= 1):
            return
        terminal = Terminal.of(sys.stdout)
        words = differing_words(self._jobs)
        values_of = _values_by_key(words)
        keys = [key for key, values in values_of.items() if len(set(values.values())) > 1]
        columns = [
            TableColumn("job", right=True),
            *map(TableColumn, keys),
            TableColumn("exit", right=True),
            *(TableColumn(name, right=True, priority=at) for at, name in enumerate(STATUSES)),
            TableColumn("results", priority=len(STATUSES)),
        ]
        rows = []
        reasons = []
        styles = {}
        for number, ended in sorted(self._ended.items()):
            values = (values_of[key].get(number, "") for key in keys)
            rows.append([str(number + 1), *values, *ended.cells])
            if ended.status:
                styles[len(rows) - 1] = "red"
                title = self._titles[number].replace(": ", " (", 1)
                reasons.append(f"{title}) ended with {ended.status}: {ended.reason}")
        left = len(self._jobs) - len(self._ended)
        how = f"{len(reasons)} not ok" if reasons else "all ok"
        how += f", {left} not begun" if left else ""
        folders = shlex.join(map(str, self.folders()))
        hint = [f"tables again: commbench show {folders}"] if folders else []
        print(terminal.styled(f"{len(self._jobs)} jobs, {how}", "bold"))
        print(table_text(columns, rows, terminal, styles))
        print(paragraphs([*_constant_words(words), *reasons, *hint], terminal), flush=True)


def _values_by_key(words: Sequence[Sequence[str]]) -> dict[str, dict[int, str]]:
    """Key -> index of the job -> value that its overrides give."""
    values = dict[str, dict[int, str]]()
    for number, overrides in enumerate(words):
        for word in overrides:
            key, _, value = word.partition("=")
            values.setdefault(key, {})[number] = value
    return values


def _constant_words(words: Sequence[Sequence[str]]) -> list[str]:
    """`jobs 1, 3: sizes=[8]`: the overrides that have one value, once for all jobs that have
    them."""
    by_jobs = dict[tuple[int, ...], list[str]]()
    for key, values in _values_by_key(words).items():
        if len(set(values.values())) == 1:
            by_jobs.setdefault(tuple(values), []).append(f"{key}={next(iter(values.values()))}")
    return [
        f"job{'s' if len(jobs) > 1 else ''} {', '.join(str(number + 1) for number in jobs)}:"
        f" {' '.join(constant)}"
        for jobs, constant in by_jobs.items()
    ]


def interrupted_status(stop: KeyboardInterrupt | SystemExit) -> int:
    """128 + the number of the signal that raised the exception."""
    return 130 if isinstance(stop, KeyboardInterrupt) else int(stop.code or 0)


def _with_record(folder: str | None) -> Path | None:
    return Path(folder) if folder is not None and (Path(folder) / RECORD).is_file() else None


def swept(
    config: DictConfig,
    given: Collection[str],
    jobs: Sequence[Job],
    task: Task,
    experiment: str | None = None,
) -> int:
    """Run all jobs with the Hydra launcher of `config`, and print a table where they ran in this
    process: one of all their results where they are side by side; and the answer of `experiment`,
    where a feature knows one.

    Returns the worst exit status. Raises ConfigError where there is no Slurm, WorldBroken where a
    job was refused or lost.
    """
    launcher = launcher_below(config)
    if launcher is not None:
        return max(_queued(config, given, jobs, task, launcher))
    lines = [list(job.overrides) for job in jobs]
    if config.hydra.launcher.get("_target_") != HERE:
        return max(_launch_jobs(config, lines, 0, task))
    sweep = Sweep(jobs, task)
    try:
        status = max(_launch_jobs(config, lines, 0, sweep.run))
    except (KeyboardInterrupt, SystemExit):
        sweep.show()
        raise
    sweep.show()
    print_answer(experiment, sweep.folders())
    return status


def _are_side_by_side(jobs: Sequence[Job]) -> bool:
    """Whether they differ in what is compared (backend, label, environment, ...), or are streams
    that differ in what their names say, which share a table."""
    if any(job.settings.stage != NO_STAGE for job in jobs):
        return len({job.settings.backend.name for job in jobs}) > 1
    words = chain.from_iterable(differing_words(jobs))
    changed = {word.partition("=")[0].partition(".")[0] for word in words}
    if not changed.isdisjoint(("label", *(each.name for each in TABLE if each.beside))):
        return True
    return changed <= IN_NAMES and all(
        job.settings.timing.is_soak and job.settings.has_only_streams for job in jobs
    )


def print_answer(experiment: str | None, folders: Sequence[Path]) -> None:
    """What the runs of an experiment say, where a feature knows it."""
    if not folders or experiment is None:
        return
    from commbench.report.reporting import Reporting

    answers = [
        answer for feature in registered(Reporting) if (answer := feature.answer_of(experiment))
    ]
    if not answers:
        return
    absent = [module for module in ("pandas", "pyarrow") if not is_installed(module)]
    if absent:
        print_error(f"the answer of experiment={experiment}: {how_to_install(absent[0])}")
        return
    from commbench.report.section import report_text
    from commbench.report.summary import Summary, read_results

    from .show import rows_of

    try:
        recorded = [folder for folder in folders if _with_record(str(folder)) is not None]
        if not any(map(rows_of, recorded)):  # the runs have said why
            return
        summary = Summary(read_results(list(map(str, recorded))))
        sections = [section for answer in answers for section in answer(summary)]
        text = report_text(sections, MOST_ANSWER_ROWS, Terminal.of(sys.stdout))
        print(f"\n{text}", end="", flush=True)
    except CommbenchError as error:  # which does not change the exit status of the runs
        print_error(f"the answer of experiment={experiment}: {error}")


def _queued(
    config: DictConfig, given: Collection[str], jobs: Sequence[Job], task: Task, launcher: Launcher
) -> list[int]:
    """The exit status of each job where Hydra's launcher starts the ranks with one of ours.

    All jobs of one shape are queued at once, with the nodes and tasks that their layouts need;
    `given` keys stay.
    """
    statuses = list[int]()
    groups = dict[NamedValues, list[list[str]]]()
    for job in jobs:
        shape = Layout.around(job.settings.layouts)
        library = mpi_library(job.settings.backend, launcher)
        queued = launcher.queued(shape, library, config.output)
        groups.setdefault(queued, []).append(list(job.overrides))
    for queued, lines in groups.items():
        with open_dict(config):
            for key, value in queued:
                if f"hydra.launcher.{key}" not in given:
                    config.hydra.launcher[key] = value
        statuses += (ended := _launch_jobs(config, lines, len(statuses), task))
        # the tables are in the logs of the jobs
        for words, status in zip(lines, ended, strict=True):
            shown = shlex.join(map(masked_override, words))
            print(f"exit {status}: commbench {shown}", flush=True)
    print(f"results: {config.output}")
    return statuses


def _launch_jobs(config: DictConfig, lines: list[list[str]], first: int, task: Task) -> list[int]:
    from hydra._internal.callbacks import Callbacks

    context = HydraContext(
        config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks()
    )
    if config.hydra.launcher.get("n_jobs", 1) != 1:  # joblib
        raise ConfigError(
            "this hydra/launcher measures jobs at the same time, so that each disturbs the others;"
            " leave it out, or give hydra.launcher.n_jobs=1"
        )
    try:
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=config
        )
    except Exception as error:  # of a plugin, any
        raise ConfigError(f"hydra/launcher can't be used: {first_line(error)}") from error
    try:
        return [
            int(result.return_value) for result in launcher.launch(lines, initial_job_idx=first)
        ]
    except CommbenchError:
        raise
    except Exception as error:
        logs = str(config.hydra.launcher.get("submitit_folder", "")).partition("%")[0]
        where = (
            f"; the output of jobs is below {logs}"
            if Path(logs).is_dir() and any(Path(logs).iterdir())
            else ""
        )
        raise WorldBroken(
            f"a job of the sweep was refused or lost: {first_line(error)}{where}"
        ) from error


def launcher_below(config: DictConfig) -> Launcher | None:
    """The launcher with which Hydra's launcher starts the ranks of each job, on nodes that this
    machine can't inspect; None if it starts none."""
    keys = {*config.hydra.launcher}
    return next((each for each in launchers() if keys > {*each.queue_keys} > set()), None)
