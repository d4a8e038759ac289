"""A run inside its world: plan, measure, gather, statistics, record, writers. The one place where parts meet."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from commbench import clock as clocks
from commbench import contracts as c
from commbench import provenance
from commbench.errors import ConfigError, Unsupported, WorldBroken
from commbench.folder import new_folder
from commbench.layout import Layout
from commbench.measure import measure, patience_s
from commbench.memory import buffer_bytes, high_water_bytes
from commbench.plan import Facts, plan
from commbench.provenance import limits
from commbench.records import Failure, Refused, Samples
from commbench.rows import Circumstances, row, sample_table
from commbench.schema import CASES, SCHEMA_VERSION
from commbench.settings import Expectation, Settings
from commbench.world import Place, assemble, bind, connect, hosted_world

MEETING_S = 120.0  # for preparations that every rank does at its own pace
FLOOR_REPETITIONS = 200
PREFLIGHT_PREFIXES = ("versions.", "environment.", "run.")  # facts that must be equal on every rank
# ... but for what may rightly differ by rank or node
PREFLIGHT_FREE = ("environment.CUDA_VISIBLE_DEVICES", "environment.SLURM_", "run.bind")
COMPARE = {">=": float.__ge__, "<=": float.__le__, ">": float.__gt__, "<": float.__lt__}


@dataclass(frozen=True)
class Request:
    """What the door knows about a job, beside its settings."""

    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    digest: str
    sweep_id: str | None = None
    folder: str | None = None  # made by the parent that started this world


def run_in_world(settings: Settings, request: Request, place: Place | None) -> int:
    """Measure all cases as one rank of a world; the exit status. `place` is None where this process hosts all ranks."""
    world, control = _enter(settings, place)
    cores, quota = sorted(os.sched_getaffinity(0)), limits.cpu_limit_cores()
    binding = _bind(settings, world)
    layouts = settings.layouts or (Layout(len(world.nodes), min(len(node) for node in world.nodes)),)
    settings = replace(settings, layouts=layouts)
    _refuse_misfits(settings, world)
    mine = provenance.collect() | {"run.digest": request.digest, "run.bind": binding}
    facts, run = _preflight(settings, request, world, control, mine, cores[: max(1, int(quota))])
    if settings.plan:
        control.farewell(MEETING_S)
        return 0
    communicator = settings.backend.open(world, control)
    session = _Session(settings, world, control, communicator, facts, run)
    try:
        status = session.run()
    except Exception as error:  # a full disk on rank 0 must not leave the others waiting for a run that is over
        communicator.close(abort=True)
        with suppress(OSError):
            session.close("broken", WorldBroken.exit_status, str(error))
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
    return assemble(place, control), control


def _bind(settings: Settings, world: c.World) -> str:
    if len(world.hosted) > 1:
        return "none"
    here = world.nodes[world.node_of(world.rank)]
    return bind(settings.bind, here.index(world.rank), len(here), settings.backend.threads_per_rank)


def _refuse_misfits(settings: Settings, world: c.World) -> None:
    misfits = [layout.misfit(world) for layout in settings.layouts]
    if all(misfits):
        raise ConfigError(f"{misfits[0]}; start more ranks or choose a smaller layout")


def _preflight(
    settings: Settings, request: Request, world: c.World, control: c.Control, mine: dict[str, Any], cores: list[int]
) -> tuple[Facts, dict[str, Any]]:
    """Compare all ranks, agree on what the plan needs, and describe the run (on rank 0)."""
    machine = [limits.memory_limit_bytes() or sys.maxsize, mine.get("host.cpu_llc_bytes") or 0]
    gathered = control.gather([mine, machine, cores], MEETING_S, "preflight")
    problem, run, agreed = None, {}, None
    if world.rank == 0:
        facts = [one[0] for one in gathered]
        differing = provenance.differences(facts)
        problem = _difference_text(differing, settings.preflight)
        agreed = _agreed(world, gathered)
        run = _describe(settings, request, world, facts, differing)
    problem = control.agree(problem, MEETING_S, "preflight")
    if problem is not None:
        raise ConfigError(problem)
    agreed = control.decide(agreed, MEETING_S, "preflight")
    if world.rank == 0 and not settings.plan:
        run["run_id"] = Path(request.folder or new_folder(settings.output)).name
        run["folder"] = str(Path(request.folder or Path(settings.output).absolute() / run["run_id"]))
    return Facts(*agreed), run


def _agreed(world: c.World, gathered: list[Any]) -> list[int]:
    """The least memory, the largest cache, and the least number of cores that a node's ranks share."""
    if len(world.hosted) > 1:
        return [*gathered[0][1], len(gathered[0][2])]
    shared = [len({core for rank in node for core in gathered[rank][2]}) for node in world.nodes]
    return [min(one[1][0] for one in gathered), max(one[1][1] for one in gathered), min(shared)]


def _difference_text(differing: Mapping[str, Mapping[str, list[int]]], preflight: str) -> str | None:
    """None where the ranks agree in all that changes a measurement, or nobody wants to know."""
    compared = (key for key in differing if key.startswith(PREFLIGHT_PREFIXES) and not key.startswith(PREFLIGHT_FREE))
    grave = {key: differing[key] for key in compared}
    if not grave or preflight == "off":
        return None
    lines = [
        f"  {key}: " + ", ".join(f"{value} on rank {ranks}" for value, ranks in seen.items())
        for key, seen in grave.items()
    ]
    text = "ranks differ:\n" + "\n".join(lines) + "\nmake them equal, or accept it with preflight=warn"
    if preflight == "warn":
        print(text, file=sys.stderr)
        return None
    return text


def _describe(
    settings: Settings,
    request: Request,
    world: c.World,
    facts: list[dict[str, Any]],
    differing: Mapping[str, Mapping[str, list[int]]],
) -> dict[str, Any]:
    """run.json, but for what the library tells when it is open."""
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "running",
        "exit_status": None,
        "started_at": datetime.now(timezone.utc).isoformat(),
        "overrides": list(request.overrides),
        "sweep_id": request.sweep_id,
        "launch": settings.launch,
        "label": settings.label,
        "timing": settings.timing.name,
        "world": {"size": world.size, "nodes": len(world.nodes), "ranks": world.nodes, "launcher": world.launcher},
        "cuda_ipc": {"asked": settings.cuda_ipc, "effective": facts[0].get("ipc.effective")},
        "topology": facts[0].get("topology.nvidia_smi_topo_m"),
        "config": request.config,
        "provenance": {
            "nodes": provenance.by_node(facts, [world.node_of(rank) for rank in range(len(facts))]),
            "differences": differing,
        },
    }


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
    ) -> None:
        self._settings, self._world, self._control = settings, world, control
        self._communicator, self._facts, self._run = communicator, facts, run
        self._jobs = plan(settings, world, facts)
        self._clock = clocks.calibrate()
        self._rows: list[dict[str, Any]] = []
        self._begun, self._patience_s = time.monotonic(), MEETING_S
        groups = sorted({job.members for job in self._jobs if not job.skip} | {(0,)})
        self._communicators = {members: communicator.subset(members) for members in groups}

    def run(self) -> int:
        gc.collect()
        gc.freeze()  # what was imported stays: collections between cases then cost microseconds, not 50 ms
        self._around = self._circumstances()
        if self._world.rank == 0:
            self._run["backend"] = {"name": self._settings.backend.name, **self._communicator.facts()}
            self._run["cases"] = len(self._jobs)
            self._run["memory"] = {"imports_bytes": high_water_bytes(), "buffers_bytes": self._buffers_bytes()}
            self._run["calibration"] = {"clock_ns": vars(self._clock), "overhead_s": self._around.overhead_s}
            for writer in self._settings.writers:
                writer.begin(self._run, self._run["folder"])
        for job in self._jobs:
            self._case(job)
        status = self._control.decide(self._finish() if self._world.rank == 0 else 0, self._patience_s, "end of run")
        return int(status)

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
        for writer in self._settings.writers:
            writer.end(self._run)

    def _case(self, job: c.Planned) -> None:
        skip = self._control.decide(job.skip or self._overdue(), self._patience_s, f"start of {job.case}")
        self._patience_s = patience_s(job, self._settings)  # from here on the idle ranks wait for the next case
        started = datetime.now(timezone.utc)
        if skip is not None:
            self._record(job, Refused(skip), started)
            return
        communicator = self._communicators[job.members]
        if communicator is None:
            return
        inner = self._control.subset(job.members)
        try:
            outcome = measure(job, communicator, inner, self._settings, self._clock)
        except WorldBroken as error:
            self._record(job, Failure(str(error)), started)
            raise
        self._record(job, outcome, started)

    def _overdue(self) -> str | None:
        total_s = self._settings.budget.total_s
        spent = time.monotonic() - self._begun
        return f"budget.total_s={total_s:g} is spent" if total_s is not None and spent > total_s else None

    def _record(self, job: c.Planned, outcome: Samples | Refused | Failure, started: datetime) -> None:
        if self._world.rank != 0:
            return
        identity = {
            "run_id": self._run["run_id"],
            "sweep_id": self._run["sweep_id"],
            "launch": self._settings.launch,
            "label": self._settings.label,
            "segment": 0,
        }
        values = row(job, outcome, self._around, started) | identity
        values = {column.name: values[column.name] for column in CASES}
        samples = sample_table(job, outcome, self._run["run_id"]) if isinstance(outcome, Samples) else {}
        self._rows.append(values)
        for writer in self._settings.writers:
            writer.case(values, samples, {})

    def _finish(self) -> int:
        missed = [line for expected in self._settings.expect for line in misses(expected, self._rows)]
        bad = [one for one in self._rows if one["status"] in ("failed", "invalid")]
        status = 1 if bad or missed else 0
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
