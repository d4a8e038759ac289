"""A run inside its world: plan, measure, gather, statistics, record, writers. The one place where parts meet."""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import numpy as np

from commbench import clock as clocks
from commbench import contracts as c
from commbench import provenance
from commbench.beacon import INTERRUPTED, beacon
from commbench.earlier import Earlier, land, take_off
from commbench.errors import ConfigError, Unsupported, WorldBroken
from commbench.layout import Layout
from commbench.measure import measure, patience_s
from commbench.memory import buffer_bytes, high_water_bytes
from commbench.plan import Facts, duration_s, plan
from commbench.preflight import MEETING_S, Request, preflight
from commbench.provenance import limits
from commbench.records import Failure, Refused, Samples
from commbench.rows import Circumstances, Outcome, count_table, row, sample_table, split
from commbench.schema import CASES
from commbench.settings import Expectation, Settings
from commbench.world import Place, assemble, bind, by_node, connect, hosted_world

FLOOR_REPETITIONS = 200
COMPARE = {">=": float.__ge__, "<=": float.__le__, ">": float.__gt__, "<": float.__lt__}


def run_in_world(settings: Settings, request: Request, place: Place | None) -> int:
    """Measure all cases as one rank of a world; the exit status. `place` is None where this process hosts all ranks."""
    world, control = _enter(settings, place)
    cores, quota = sorted(os.sched_getaffinity(0)), limits.cpu_limit_cores()
    binding = _bind(settings, world)
    layouts = settings.layouts or (Layout(len(world.nodes), min(len(node) for node in world.nodes)),)
    settings = replace(settings, layouts=layouts)
    _refuse_misfits(settings, world)
    mine = provenance.collect() | {"run.digest": request.digest, "run.bind": binding}
    facts, run = preflight(settings, request, world, control, mine, cores[: max(1, int(quota))])
    if settings.plan:
        control.farewell(MEETING_S)
        return 0
    communicator = settings.backend.open(world, control)
    session = _Session(settings, world, control, communicator, Facts(*facts), run, request.earlier)
    try:
        with beacon(lambda number: session.close("interrupted", number)):
            status = session.run()
    except (KeyboardInterrupt, SystemExit) as stop:  # finished cases, and a soak's part, are kept
        communicator.close(abort=True)
        session.close("interrupted", INTERRUPTED + (2 if isinstance(stop, KeyboardInterrupt) else 15))
        raise
    except Exception as error:  # a full disk on rank 0 must not leave the others waiting for a run that is over
        communicator.close(abort=True)
        with suppress(OSError):
            session.close("broken", WorldBroken.exit_status, str(error))
        if world.rank == 0 and request.folder is None:  # nobody else would start a fresh world
            print(f"commbench: finish it with: commbench resume {run['folder']}", file=sys.stderr)
        raise error if isinstance(error, WorldBroken) else WorldBroken(f"{type(error).__name__}: {error}") from error
    communicator.close()
    control.farewell(MEETING_S)
    return status


def _enter(settings: Settings, place: Place | None) -> tuple[c.World, c.Control]:
    if place is None:
        layouts = settings.layouts or (Layout(1, 2),)
        return hosted_world(max(one.nodes for one in layouts), max(one.ranks_per_node for one in layouts))
    backend = settings.backend
    control = connect(place, getattr(backend, "library", "auto"), getattr(backend, "threads", "funneled"))
    world = assemble(place, control)
    return world, by_node(world, control)


def _bind(settings: Settings, world: c.World) -> str:
    if len(world.hosted) > 1:
        return "none"
    here = world.nodes[world.node_of(world.rank)]
    return bind(settings.bind, here.index(world.rank), len(here), settings.backend.threads_per_rank)


def _refuse_misfits(settings: Settings, world: c.World) -> None:
    misfits = [layout.misfit(world) for layout in settings.layouts]
    if all(misfits):
        raise ConfigError(f"{misfits[0]}; start more ranks or choose a smaller layout")


class _Session:
    """The cases of one run. Rank 0 records; the ranks that a case does not need sleep in the control plane."""

    def __init__(
        self,
        settings: Settings,
        world: c.World,
        control: c.Control,
        communicator: c.Communicator,
        facts: Facts,
        run: dict[str, Any],
        earlier: Earlier | None,
    ) -> None:
        self._settings, self._world, self._control = settings, world, control
        self._communicator, self._facts, self._run = communicator, facts, run
        self._jobs = plan(settings, world, facts)
        self._clock = clocks.calibrate()
        self._rows: dict[str, dict[str, Any]] = {}  # by case: a soak's newest counts
        self._begun_writers: list[c.Writer] = []
        self._begun, self._patience_s = time.monotonic(), MEETING_S
        self._earlier = earlier or Earlier()
        if earlier is not None:
            self._jobs = self._left()
        groups = sorted({job.members for job in self._jobs if not job.skip} | {(0,)})
        self._communicators = {members: communicator.subset(members) for members in groups}

    def run(self) -> int:
        gc.collect()
        gc.freeze()  # what was imported stays: collections between cases then cost microseconds, not 50 ms
        self._around = self._circumstances()
        if self._world.rank == 0:
            self._run["backend"] = {"name": self._settings.backend.name, **self._communicator.facts()}
            self._run["cases"] = sum(len(_row_ids(job)) for job in self._jobs)
            self._run["at_most_s"] = sum(duration_s(self._settings, job) for job in self._jobs)
            self._run["memory"] = {"imports_bytes": high_water_bytes(), "buffers_bytes": self._buffers_bytes()}
            self._run["calibration"] = {"clock_ns": vars(self._clock), "overhead_s": self._around.overhead_s}
            for writer in self._settings.writers:
                writer.begin(self._run, self._run["folder"])
                self._begun_writers.append(writer)
        for job in self._jobs:
            self._case(job)
        status = self._control.decide(self._finish() if self._world.rank == 0 else 0, self._patience_s, "end of run")
        return int(status)

    def _left(self) -> tuple[c.Planned, ...]:
        """The jobs that earlier starts of this run have not finished, by what rank 0 has read."""
        orders = [job.order for job in self._jobs if self._earlier.left(job.case.case_id, _row_ids(job))]
        chosen = set(self._control.decide(orders, MEETING_S, "what is left"))
        return tuple(job for job in self._jobs if job.order in chosen)

    def _buffers_bytes(self) -> int:
        """Of the largest case on this rank."""
        needs = [0]
        for job in self._jobs:
            if not job.skip and self._world.rank in job.members:
                program = job.benchmark.program(job.case, job.members.index(self._world.rank), job.size)
                needs.append(sum(buffer_bytes(spec, job.pool) for spec in program.buffers))
        return max(needs)

    def close(self, status: str, exit_status: int, reason: str | None = None) -> None:
        """Rank 0: merge, write run.json, print the table."""
        if self._world.rank != 0:
            return
        finished = datetime.now(timezone.utc).isoformat()
        self._run.setdefault("memory", {})["peak_bytes"] = high_water_bytes()
        self._run |= {"status": status, "exit_status": exit_status, "reason": reason, "finished_at": finished}
        for writer in self._begun_writers:  # none, where the run ended before its first case
            writer.end(self._run)

    def _case(self, job: c.Planned) -> None:
        hopeless = self._earlier.hopeless(job.case.case_id)
        reason = hopeless or job.skip or self._overdue()
        skip = self._control.decide(reason, self._patience_s, f"start of {job.case}")
        self._patience_s = patience_s(job, self._settings)  # from here on the idle ranks wait for the next case
        started = datetime.now(timezone.utc)
        if skip is not None:
            self._record(job, Failure(skip) if hopeless else Refused(skip), started)
            return
        if self._world.rank == 0:
            take_off(self._run["folder"], job.case.case_id, str(job.case))
        communicator = self._communicators[job.members]
        if communicator is None:
            return
        inner = self._control.subset(job.members)
        try:
            sink = partial(self._record, job, started=started)
            outcome = measure(job, communicator, inner, self._settings, self._clock, sink)
        except WorldBroken as error:
            self._record(job, Failure(str(error)), started)
            raise
        self._record(job, outcome, started)

    def _overdue(self) -> str | None:
        total_s = self._settings.budget.total_s
        spent = time.monotonic() - self._begun
        return f"budget.total_s={total_s:g} is spent" if total_s is not None and spent > total_s else None

    def _record(self, job: c.Planned, outcome: Outcome, started: datetime) -> None:
        if self._world.rank != 0:
            return
        for one, its_own in split(job, outcome):
            self._record_one(one, its_own, started)

    def _record_one(self, job: c.Planned, outcome: Outcome, started: datetime) -> None:
        run_id = self._run["run_id"]
        identity = {
            "run_id": run_id,
            "sweep_id": self._run["sweep_id"],
            "launch": self._settings.launch,
            "label": self._settings.label,
            "segment": len(self._run.get("segments", [])),
        }
        values = row(job, outcome, self._around, started) | identity
        values = {column.name: values[column.name] for column in CASES}
        samples = sample_table(job, outcome, run_id) if isinstance(outcome, Samples) else {}
        counters = count_table(job, outcome, run_id) if isinstance(outcome, Samples) else {}
        self._rows[values["case_id"]] = values
        for writer in self._settings.writers:
            writer.case(values, samples, counters)

    def _finish(self) -> int:
        missed = [line for expected in self._settings.expect for line in misses(expected, list(self._rows.values()))]
        bad = [one for one in self._rows.values() if one["status"] in ("failed", "invalid")]
        status = 1 if bad or missed else 0
        land(self._run["folder"])
        self.close("done", status, "; ".join(missed) or None)
        for line in missed:
            print(line, file=sys.stderr)
        return status

    def _circumstances(self) -> Circumstances:
        library = self._communicator.facts()
        return Circumstances(
            clock=self._clock,
            overhead_s=self._floors(),
            cores=self._facts.cores,
            threads_per_rank=self._settings.backend.threads_per_rank,
            cache_bytes=self._facts.cache_bytes,
            transport=library.get("transport"),
        )

    def _floors(self) -> dict[str, float]:
        """Seconds of one call on a group of one rank, by engine: what is left when nothing has to travel."""
        floors: dict[str, float] = {}
        alone = self._communicators[0,]
        if alone is not None and len(self._world.hosted) == 1:
            for engine in {job.case.engine for job in self._jobs if not job.skip}:
                with suppress(Unsupported):
                    floors[engine] = _floor_s(alone, engine)
        self._control.agree(None, MEETING_S, "calibration")
        return floors


def _row_ids(job: c.Planned) -> list[str]:
    return [one.case.case_id for one, _ in split(job, Refused(""))]


def _floor_s(communicator: c.Communicator, engine: str) -> float:
    data = c.View("data")
    program = c.Program((c.BufferSpec("data", 1, "float32"),), (c.AllReduce(data, data, "sum"),))
    buffers = {0: {"data": communicator.allocate(program.buffers[0], 1)}}
    stamps = communicator.prepare({0: program}, buffers, c.Mode(engine))(FLOOR_REPETITIONS)
    return float(np.median(stamps[0, :, 1] - stamps[0, :, 0])) * 1e-9


def misses(expected: Expectation, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each measured case that misses an expectation, and one where it matched no case at all."""
    chosen = [one for one in rows if expected.benchmark in (None, one["benchmark"])]
    numbers = [one for one in chosen if isinstance(one[expected.column], int | float)]
    if not numbers:
        return [f"expect {expected.text}: no measured case has {expected.column}"]
    failed = [one for one in numbers if not COMPARE[expected.comparison](float(one[expected.column]), expected.bound)]
    return [
        f"expect {expected.text}: {one['benchmark']} {one['layout']} {one['message_bytes']} B"
        f" has {one[expected.column]:g}"
        for one in failed
    ]
