"""The cost of commbench itself as the world grows: control work with real connections, planning and
recording.

`python scale.py control N` starts N ranks, eight per node, as threads of a few processes, each with
connections of its own to the stores of rank 0 and of its node, and lets them measure a case whose
operations take no time. The result is the processor time of rank 0's process, which also serves its
two stores: on a cluster the other ranks have processors of their own. `python scale.py recording N`
plans, measures and records a case of N simulated ranks; the time of the simulation is subtracted.
`python scale.py simulated LAYOUT` is a whole run of a simulated world with all pairs in rounds.
Each prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import resident_bytes
from commbench.cli.run import run_one
from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.core.case import Planned, World
from commbench.core.layout import Layout
from commbench.core.program import BufferSpec, Pattern, Program, View
from commbench.core.protocols import Buffer, Communicator, Control
from commbench.core.variables import Mode
from commbench.measure.case import CaseVisit
from commbench.measure.conditions import Conditions
from commbench.measure.plan import plan
from commbench.measure.plan_facts import PlanFacts
from commbench.measure.row_samples import row_samples
from commbench.measure.rows import RowFacts, row
from commbench.measure.samples import Samples
from commbench.measure.transports import TransportEvidence
from commbench.measure.visit_setup import VisitSetup
from commbench.measure.visits import CaseRecord, Visit
from commbench.results.load import load_run
from commbench.results.parquet import Parquet
from commbench.results.writer import Entry
from commbench.runtime.control import StoreControl, hosted_world, join_nodes
from commbench.runtime.heartbeat import Progress

PROCESSES = 8
RANKS_PER_NODE = 8
CONNECT_S = 300.0
WORDS = ["benchmark=[all_reduce]", "sizes=[8]", "timing=quick", "preflight=off"]


def planned(size: int, backend: str) -> tuple[Settings, Planned, float]:
    """The job, and the seconds it took to plan it."""
    layout = Layout(max(1, size // 8), min(8, size))
    with ConfigComposer() as composer:
        settings = composer.jobs(
            [f"backend={backend}", *WORDS, f"layout={layout}"], multirun=False
        )[0].settings
    world, _ = hosted_world(layout.nodes, layout.ranks_per_node)
    begin = time.perf_counter()
    (job,) = plan(settings, world, PlanFacts(2**42, 2**20, 64))
    assert job.skip is None
    return settings, job, time.perf_counter() - begin


# ---------------------------------------------------------------- control


class Nothing:
    """A buffer without memory, whose payload is always right."""

    def __init__(self, spec: BufferSpec, pool: int) -> None:
        self.spec = spec
        self.pool = pool

    def write(self, pattern: Pattern | None) -> None:
        pass

    def count_wrong(self, pattern: Pattern, copies: int) -> int:
        return 0

    def read(self, view: View, copy: int) -> NDArray[np.uint8]:
        return np.zeros(0, dtype=np.uint8)


@dataclass
class Instant:
    """A communicator and runner whose operations return at once and report 1 ms with 3 % noise."""

    rank: int
    engine: str = "python"
    progress: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))

    def __post_init__(self) -> None:
        self.hosted = (self.rank,)
        self.size = 0
        self._random = np.random.default_rng(self.rank)

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return Nothing(spec, pool)

    def deliver(self) -> None:
        pass

    def counters(self) -> dict[str, float]:
        return {}

    def prepare(self, programs: Any, buffers: Any, mode: Mode) -> Instant:
        assert isinstance(programs[self.rank], Program)
        return self

    def __call__(self, n: int) -> NDArray[np.int64]:
        start = np.arange(n, dtype=np.int64) * 10**7
        return np.stack(
            [start, start + (1e6 * self._random.lognormal(0, 0.03, n)).astype(np.int64)], axis=-1
        )[None]


def take_part(control: Control, settings: Settings, job: Planned) -> Any:
    communicator = cast(Communicator, Instant(control.rank))
    setup = VisitSetup(job, communicator, control, settings, {}, lambda _: None, Progress())
    return CaseVisit(setup).measure()


def store(port: int, owner: bool) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=CONNECT_S)
    return TCPStore("127.0.0.1", port, is_master=owner, wait_for_workers=False, timeout=timeout)


def entered(wide: StoreControl, nodes: tuple[tuple[int, ...], ...]) -> Control:
    """The control plane of one rank, after all ranks have joined."""
    wide.gather(None, CONNECT_S)
    if not 1 < len(nodes) < wide.size:
        return wide
    return join_nodes(World(wide.rank, wide.size, nodes, (wide.rank,)), wide, CONNECT_S)


def nodes_of(size: int) -> tuple[tuple[int, ...], ...]:
    ranks = tuple(range(size))
    return tuple(ranks[first : first + RANKS_PER_NODE] for first in range(0, size, RANKS_PER_NODE))


def ranks(port: int, first: int, last: int, size: int) -> None:
    """Run the ranks first to last - 1, each in a thread with a connection of its own."""
    settings, job, _ = planned(size, "gloo")
    nodes = nodes_of(size)
    threading.stack_size(256 * 1024)
    sys.setswitchinterval(10)  # else each thread that waits for the GIL wakes up every 5 ms

    def rank(number: int) -> None:
        try:
            take_part(
                entered(StoreControl(store(port, owner=False), number, size), nodes),
                settings,
                job,
            )
        except BaseException as error:  # one line, not a traceback for each of a thousand threads
            print(
                f"rank {number}: {type(error).__name__}: {error}"[:500], file=sys.stderr, flush=True
            )
            os._exit(1)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(first, last)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def control_cost(size: int) -> dict[str, float]:
    settings, job, _ = planned(size, "gloo")
    server = store(0, owner=True)
    edges = np.linspace(1, size, PROCESSES + 1).astype(int)
    children = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "ranks",
                str(server.port),
                str(first),
                str(last),
                str(size),
            ]
        )
        for first, last in pairwise(edges)
        if last > first
    ]
    begin = time.process_time()
    try:
        control = entered(StoreControl(server, 0, size), nodes_of(size))
        enter_cpu_s = time.process_time() - begin
        cpu_s = time.process_time()
        wall_s = time.perf_counter()
        outcome = take_part(control, settings, job)
        cpu_s = time.process_time() - cpu_s
        wall_s = time.perf_counter() - wall_s
        for child in children:
            child.wait(CONNECT_S)
    finally:
        for child in children:
            child.kill()
    assert isinstance(outcome, Samples)
    blocks = len(outcome.blocks)
    repetitions = outcome.repetitions or 0
    return {
        "enter_cpu_s": enter_cpu_s,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "blocks": blocks,
        "repetitions": repetitions,
    }


# ---------------------------------------------------------------- planning and recording


class Stopwatch:
    """A runner that adds up the seconds spent in the simulation, to be subtracted."""

    def __init__(self, runner: Any, watch: dict[str, float]) -> None:
        self._runner = runner
        self._watch = watch
        self.progress = runner.progress

    def __call__(self, n: int) -> NDArray[np.int64]:
        begin = time.perf_counter()
        stamps: NDArray[np.int64] = self._runner(n)
        self._watch["simulated"] += time.perf_counter() - begin
        return stamps


def recording_cost(size: int) -> dict[str, float]:
    settings, job, plan_s = planned(size, "simulated")
    world, control = hosted_world(job_layout(job).nodes, job_layout(job).ranks_per_node)
    communicator = settings.backend.open(world, control, "cpu")
    watch = {"simulated": 0.0}
    prepare = communicator.prepare
    communicator.prepare = lambda *words: Stopwatch(prepare(*words), watch)  # type: ignore[assignment,method-assign]
    begin = time.perf_counter()
    setup = VisitSetup(job, communicator, control, settings, {}, lambda _: None, Progress())
    outcome = CaseVisit(setup).measure()
    decide_s = time.perf_counter() - begin - watch["simulated"]
    assert isinstance(outcome, Samples)
    begin = time.perf_counter()
    record(job, outcome, world)
    return {
        "plan_s": plan_s,
        "measure_s": decide_s,
        "record_s": time.perf_counter() - begin,
        "repetitions": outcome.repetitions or 0,
        "high_water_mib": (resident_bytes(peak=True) or 0) / 2**20,
    }


def record(job: Planned, outcome: Samples, world: World) -> None:
    around = Conditions({}, {}, 8, 1, 2**20, TransportEvidence(), world)
    visited = CaseRecord()
    (part,) = row_samples(job, outcome, "scale", 1)
    now = datetime.now(timezone.utc)
    visited.add(Visit.of(part.times).measured(part, outcome, now, 0.0))
    made = replace(row(RowFacts(job, around), job.case, visited), run_id="scale")
    with tempfile.TemporaryDirectory() as folder:
        writer = Parquet()
        writer.begin({"run_id": "scale"}, folder)
        writer.cases([Entry(made, part.table)])
        writer.end({"run_id": "scale"})
        assert (Path(folder) / "samples.parquet").exists()


def simulated_cost(layout: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        measured = ("backend=simulated", "benchmark=p2p_latency", "sizes=[8]", "timing=fixed")
        timing = ("timing.repetitions=20",)
        pairs = (f"layout={layout}", "pairs=all", "schedule=rounds")
        begin_s = time.process_time()
        with redirect_stdout(sys.stderr):
            run = run_one(*measured, *timing, *pairs, f"output={folder}")
        cpu_s = time.process_time() - begin_s
        rows = load_run(run)["cases"]
    assert rows == Layout.parse(layout).size ** 2
    return {"cpu_s": cpu_s, "rows": rows}


def job_layout(job: Planned) -> Layout:
    return Layout.parse(job.case.layout)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # else torch warns about each connection whose peer has no host name
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # and waits 5 s for the name
    kind, *words = sys.argv[1:]
    if kind == "ranks":
        ranks(*map(int, words))
    elif kind == "simulated":
        print(json.dumps(simulated_cost(words[0])), flush=True)
    else:
        number = int(words[0])
        result = recording_cost(number) if kind == "recording" else control_cost(number)
        print(json.dumps({"ranks": number, **result}), flush=True)
