"""One rank of a world, started by the user's launcher or by a parent `commbench`, and what earlier
starts measured."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from commbench.analysis.pairs.findings import findings
from commbench.config.expectations import EXPECT_NORMAL, KNOWN_VALUES
from commbench.config.settings import SEARCH, Job, Settings, received
from commbench.core.annexes import needed_annex
from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.states import UNFINISHED, CaseStatus
from commbench.measure.expectations import ExpectationResult
from commbench.measure.request import Request
from commbench.results.load import load_run, read_rows
from commbench.results.recorded import (
    MEASURE,
    recorded_rows,
    recorded_samples,
    repetition_seconds,
)
from commbench.results.row import Measured, Row
from commbench.results.writer import Arrays
from commbench.runtime.exit_protocol import FOLDER, JOB, RESUME, leave_status
from commbench.runtime.folder_lock import lock_folder, unlock_all
from commbench.runtime.launch import CONFIG_DIR, SWEEP
from commbench.runtime.launchers.registry import allowed, detect
from commbench.runtime.rank_server import QUIET
from commbench.runtime.recovery import FINISHED, EarlierStarts, EarlierVisits, Resume
from commbench.runtime.rendezvous import allow_open_files
from commbench.runtime.signals import begin_session
from commbench.stats.series import Series

FAILED_CASE: CaseStatus = "failed"


def run_started() -> int:
    """Run a rank whose parent has composed and checked the configuration; returns the exit
    status."""
    identity = identity_here()
    assert identity is not None
    return run_rank(received(os.environ.pop(JOB)), identity)


def identity_here() -> RankIdentity | None:
    """The rank that this process is, if any.

    Raises WorldBroken for a rank that can't find out which one it is: it must never start worlds of
    its own.
    """
    identity = detect(os.environ)
    if identity is None and FOLDER in os.environ:
        raise WorldBroken(
            "this process was started as a rank, but its launcher exported no rank that commbench"
            " knows"
        )
    return identity


def run_rank(
    job: Job, identity: RankIdentity, folder: str | None = None, resume: Resume | None = None
) -> int:
    """Run one rank; returns the exit status. `folder`, `resume`: the run that a user's own world
    continues, and how."""
    backend = job.settings.backend
    if identity.launcher not in allowed(backend):
        names = (
            ", ".join(allowed(backend))
            or "none: it hosts all ranks itself, start it without a launcher"
        )
        raise ConfigError(
            f"backend={backend.name} can't run under {identity.launcher}; allowed: {names}",
            shared=True,
        )
    allow_open_files()
    given = dict(job.settings.env)
    problem = None
    # before the backend, which must not contradict what the user exports
    os.environ.update(QUIET | os.environ | given)
    reason = backend.missing(job.settings.device)
    if reason is not None:
        raise ConfigError(f"backend={backend.name}: {reason}")
    try:
        os.environ.update(
            backend.environment(job.settings.cuda_ipc, job.settings.interface) | given
        )
    except ConfigError as error:  # for the other ranks to know
        problem = str(error)
    if FOLDER not in os.environ:
        return run_session(job, identity, folder, resume, problem)
    begin_session()
    folder = os.environ[FOLDER]
    resume = Resume(os.environ[RESUME]) if RESUME in os.environ else None
    status = run_session(job, identity, folder, resume, problem)
    if identity.rank == 0:
        leave_status(folder, status)
    return 0  # the parent reads the status in the folder


def run_session(
    job: Job,
    identity: RankIdentity | None,
    folder: str | None,
    resume: Resume | None,
    problem: str | None = None,
) -> int:
    """Run one rank, or a world that this process hosts; returns the exit status. `problem`: why
    this rank's machine can't run the job."""
    # a parent, which needs neither its libraries nor its engines, imports this module, too
    from commbench.measure.session import run_in_world

    has_parent = FOLDER in os.environ
    earlier = None
    try:
        if resume is not None and folder is not None:
            problem = problem or _locking_problem(folder, identity, has_parent)
            first = identity is None or identity.rank == 0
            earlier = (
                _earlier_starts(job, folder, resume)
                if first and problem is None
                else EarlierStarts(resume)
            )
        sweep = os.environ.get(SWEEP) or None
        config_dir = os.environ.get(CONFIG_DIR)
        request = Request(job, sweep, folder, earlier, config_dir, _judged, has_parent, problem)
        return run_in_world(request, identity)
    finally:
        if identity is not None:  # else the caller holds the lock
            unlock_all()


def _locking_problem(folder: str, identity: RankIdentity | None, has_parent: bool) -> str | None:
    """Lock the folder for a world without a parent, on rank 0; why that is impossible, for the
    other ranks to know."""
    if has_parent or identity is None or identity.rank != 0:
        return None
    try:
        lock_folder(folder)
    except ConfigError as error:
        return str(error)
    return None


def _earlier_starts(job: Job, folder: str, resume: Resume) -> EarlierStarts:
    """What rank 0 reads in the folder, which other ranks may not have."""
    run = load_run(folder)
    cases = read_rows([folder])
    unfinished = cases.stop_reason.isin(UNFINISHED)
    recorded = dict(zip(cases.case_id[~unfinished], cases.status[~unfinished], strict=True))
    failed = cases[
        (cases.status == FAILED_CASE)
        | (cases.case_id.isin(run.get("broken", {})) & cases.reason.notna())
    ]
    reasons = dict(zip(failed.case_id, failed.reason, strict=True))
    visits = {}
    if not job.settings.timing.is_soak:  # which begins anew
        continued = unfinished | ~cases.status.isin(FINISHED)
        # a search may visit any of its cases again
        chosen = cases.case_id if job.settings.pairs == SEARCH else cases.case_id[continued]
        visits = recorded_visits(folder, {*chosen})
    return EarlierStarts(resume, run, recorded, reasons, visits)


def _judged(settings: Settings, folder: str, rows: Iterable[Row]) -> ExpectationResult:
    """Which ranks are slow among pairs, if no search says it, and what is not normal."""
    found = () if settings.pairs == SEARCH else findings(rows)
    verdict = ExpectationResult(missed=tuple(each.text for each in found if each.kind == "rank"))
    if settings.expect_normal:
        module = needed_annex(KNOWN_VALUES, f"expect={EXPECT_NORMAL}")
        verdict += module.verdict_on_normal(folder)
    return verdict


def recorded_visits(folder: str | Path, case_ids: Collection[str]) -> dict[str, EarlierVisits]:
    """The earlier visits of those cases that have samples, by case_id. Raises CommbenchError for
    unreadable files."""
    recorded = recorded_rows(Path(folder))
    rows = {case_id: row for case_id, row in recorded.items() if case_id in case_ids}
    by_case = {}
    for case_id, samples in recorded_samples(Path(folder), rows).items() if rows else ():
        row = rows[case_id]
        visits = samples["visit"][~np.isnan(samples["visit"])]
        repetitions = {
            str(phase): int(samples["repetition"][samples["phase"] == phase].max()) + 1
            for phase in {*samples["phase"]}
        }
        last = int(visits.max(initial=0))
        blocks = int(samples["block"].max()) + 1
        by_case[case_id] = EarlierVisits(row, _visit_times(row, samples), last, blocks, repetitions)
    return by_case


def _visit_times(row: Row, samples: Arrays) -> tuple[Series, ...]:
    """Seconds per operation of each visit that the row counts; empty where it has no numbers or
    samples are missing.

    The file may hold more visits: a case that broke the world began anew, and a killed rank 0 may
    have left a visit that no row counts. So the consecutive visits whose medians fit the row best
    are taken.
    """
    recorded_s = row.visit_medians_s
    if not isinstance(row, Measured) or recorded_s is None:
        return ()
    visit = samples["visit"]
    times = [
        repetition_seconds(row, {name: column[visit == number] for name, column in samples.items()})
        for number in np.unique(visit[(samples["phase"] == MEASURE) & ~np.isnan(visit)])
    ]
    medians_s = np.array([*map(np.median, times)])
    wanted_s = np.array(recorded_s)
    n = len(wanted_s)
    starts = range(len(times) - n + 1)
    if not starts:
        return ()
    first = min(
        starts, key=lambda start: float(np.abs(medians_s[start : start + n] - wanted_s).sum())
    )
    own_s = medians_s[first : first + n]
    # of thinned samples, and of a stream, whose mean counts, the row has the right value
    factors = np.divide(wanted_s, own_s, out=np.ones(n), where=own_s > 0)
    return tuple(
        series * factor for series, factor in zip(times[first : first + n], factors, strict=True)
    )
