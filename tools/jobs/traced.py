"""A training job on gloo that times its own communication, then records some steps with torch's
profiler. The scripts beside this file are such jobs; start them with torchrun.

Rank 0 prints one line of JSON, all by the job's own clock: seconds of a step and of its
communication, of steps that no profiler sees; and how long a rank waits for the last one in a step
that is recorded. --late makes one rank begin each step later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

WARM_UP_STEPS = 5
TIMED_STEPS = 20
TRACED_STEPS = 5

Result = TypeVar("Result")
Step = Callable[[], None]


class CommunicationClock:
    """The seconds of each communication of this rank, in the order in which they began, and when
    they did, on the clock of the host."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.begins_s: list[float] = []

    def begin(self) -> Callable[[], None]:
        """Returns what ends this communication."""
        place = len(self.seconds)
        self.seconds.append(0.0)
        begin_s = time.perf_counter()
        self.begins_s.append(begin_s)

        def end() -> None:
            self.seconds[place] = time.perf_counter() - begin_s

        return end

    def timed(self, operation: Callable[[], Result]) -> Result:
        """Run an operation that ends before it returns."""
        end = self.begin()
        result = operation()
        end()
        return result


def run_job(name: str, make_step: Callable[[CommunicationClock], Step]) -> None:
    """Train, and leave a profile of each rank in the folder that --traces names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", required=True, type=Path, help="a folder for the profiles")
    parser.add_argument("--late", metavar="RANK:MS", help="this rank begins each step later")
    options = parser.parse_args()
    folder: Path = options.traces
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    clock = CommunicationClock()
    step = _begun_late(make_step(clock), options.late)
    for _ in range(WARM_UP_STEPS):
        step()
    clock.seconds.clear()
    dist.barrier()
    steps_s = []
    for _ in range(TIMED_STEPS):
        begin_s = time.perf_counter()
        step()
        steps_s.append(time.perf_counter() - begin_s)
    record_steps(step, TRACED_STEPS, folder / f"rank{dist.get_rank()}.json.gz")
    calls = _calls(clock)
    own = {
        "steps_s": steps_s,
        "seconds": clock.seconds[: calls * TIMED_STEPS],
        "begins_s": clock.begins_s[-calls * TRACED_STEPS :],
    }
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, own)
    if dist.get_rank() == 0:
        print(json.dumps({"job": name, "ranks": len(of_ranks), **_summary(of_ranks)}), flush=True)
    dist.destroy_process_group()


def _begun_late(step: Step, late: str | None) -> Step:
    """The step, or on the rank of --late a step that sleeps first."""
    rank, _, delay_ms = (late or "").partition(":")
    if rank != str(dist.get_rank()):
        return step

    def late_step() -> None:
        time.sleep(float(delay_ms) / 1e3)
        step()

    return late_step


def record_steps(step: Step, count: int, path: Path) -> None:
    """Profile this rank for `count` steps, after one in which the profiler warms up."""
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = schedule(wait=0, warmup=1, active=count, repeat=1)
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, record_shapes=True, schedule=steps) as recorded:
        for _ in range(1 + count):
            step()
            recorded.step()
    recorded.export_chrome_trace(str(path))


def _calls(clock: CommunicationClock) -> int:
    """Communications of one step; each step has as many."""
    calls, rest = divmod(len(clock.seconds), TIMED_STEPS + 1 + TRACED_STEPS)
    assert rest == 0, "steps differ"
    return calls


def _summary(of_ranks: list[dict[str, list[float]]]) -> dict[str, float]:
    """A communication takes as long as its fastest rank, the last to arrive, says: so no waiting is
    in it."""
    shortest_s = [min(times) for times in zip(*(own["seconds"] for own in of_ranks), strict=True)]
    calls = len(shortest_s) // TIMED_STEPS
    by_step = [sum(shortest_s[first : first + calls]) for first in range(0, len(shortest_s), calls)]
    begins_s = list(zip(*(own["begins_s"] for own in of_ranks), strict=True))
    waited_s = sum(max(begins) - statistics.fmean(begins) for begins in begins_s)
    slowest_s = [max(times) for times in zip(*(own["steps_s"] for own in of_ranks), strict=True)]
    return {
        "calls": calls,
        "step_s": statistics.median(slowest_s),
        "communication_s": statistics.median(by_step),
        "waiting_s": waited_s / TRACED_STEPS,
    }
