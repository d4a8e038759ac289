"""`python tools/gpu/judge.py FOLDER`: what commbench measured against what a C++ program and a loop
by hand measured on the same GPU, in one table.

A training job is compared with its replay. Of several runs of a part (NAME_1, NAME_2, ...) the
shortest time counts. Exit status 0 if all agree within BOUNDS, 1 if one does not, 2 if there is
nothing to compare.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import commbench
from commbench.results.load import read_case_rows
from commbench_replay.replay_times import replay_times
from commbench_replay.scaling import scaled
from commbench_replay.workload_file import parse_workload

Key = tuple[str, str, int]  # what, mode, message bytes
Times = Mapping[Key, float]  # medians in us
COPY_BYTES = 16 << 20  # from here on, copies are compared by their rate
LARGE_BYTES = 1 << 20
REGISTRATIONS = ("none", "local", "symmetric")
ALGORITHMS = ("one_shot", "two_shot", "multimem")


@dataclass(frozen=True)
class Bound:
    """The distance that two times may have: a share of the reference, and `us`."""

    share: float
    us: float

    def holds(self, measured_us: float, reference_us: float) -> bool:
        return abs(measured_us - reference_us) <= self.share * reference_us + self.us


BOUNDS = {
    "clock": Bound(0.01, 1.0),
    "events": Bound(0.05, 1.0),
    "copies": Bound(0.03, 0.0),
    "torch": Bound(0.10, 3.0),
    # Python's call and wait take 2 to 5 us more than those of C++
    "python": Bound(0.03, 5.0),
    "large": Bound(0.02, 0.0),  # of two ranks, from LARGE_BYTES
    "step": Bound(0.20, 0.0),  # docs/workloads.md has what replays of jobs on gloo are off by
}


@dataclass(frozen=True)
class Comparison:
    """Two times of the same thing."""

    part: str
    key: Key
    measured_us: float
    reference: str
    reference_us: float
    bound: str

    @property
    def agrees(self) -> bool:
        return BOUNDS[self.bound].holds(self.measured_us, self.reference_us)

    def __str__(self) -> str:
        what, mode, message_bytes = self.key
        verdict = "ok" if self.agrees else "differs"
        return (
            f"{verdict:<8}{self.part:<10} {what:<20} {mode:<13} {message_bytes:>10}"
            f" {self.measured_us:10.2f} {self.reference_us:10.2f}  {self.reference}"
        )


def printed(folder: Path, name: str) -> Times:
    """The medians that `truth` or by_hand.py printed in the parts of this name."""
    times: dict[Key, float] = {}
    for file in sorted(folder.glob(f"{name}*/stdout.txt")):
        for line in file.read_text().splitlines():
            row = json.loads(line) if line.startswith("{") else {}
            if "mode" in row:
                key = row["what"], row["mode"], row["bytes"]
                times[key] = min(row["median_us"], times.get(key, row["median_us"]))
    return times


def measured(folder: Path, name: str, **only: str) -> Times:
    """The medians of the rows that are ok in the parts of this name; `only`: with these values of
    variables."""
    times: dict[Key, float] = {}
    for part in sorted(folder.glob(f"{name}*")):
        rows: list[dict[Any, Any]] = []
        if list(part.glob("results/*/run.json")):
            rows = commbench.load(part / "results").to_dict("records")
        for row in rows:
            is_asked = all(row[variable] == value for variable, value in only.items())
            if row["status"] == "ok" and is_asked:
                key = row["benchmark"], row["timer"], int(row["message_bytes"])
                us = 1e6 * row["median_s"]
                times[key] = min(us, times.get(key, us))
    return times


def compared(
    part: str, times: Times, references: Mapping[str, Times], names: Mapping[str, Sequence[str]]
) -> Iterator[Comparison]:
    """`names`: what the references call a benchmark; the first reference that has it counts."""
    for key, us in times.items():
        benchmark, mode, message_bytes = key
        for reference, its_times in references.items():
            found = [
                its_times[name, mode, message_bytes]
                for name in names.get(benchmark, ())
                if (name, mode, message_bytes) in its_times
            ]
            if found:
                bound = _bound(part, mode, message_bytes, reference)
                yield Comparison(part, key, us, reference, found[0], bound)
                break


def _bound(part: str, mode: str, message_bytes: int, reference: str) -> str:
    if part == "registration" or (part == "symm_mem" and mode == "graph"):
        return "large" if message_bytes >= LARGE_BYTES else "events"
    if part == "communicators":
        return "events"
    if mode == "host_sync":
        return "torch" if reference == "torch" else "python"
    is_copy = part == "cuda_copy" and message_bytes >= COPY_BYTES
    return "copies" if is_copy else "events"


# ---------------------------------------------------------------- which times are of one thing

NCCL_NAMES = {
    "all_gather": ("all_gather",),
    "all_reduce": ("all_reduce avg in place", "all_reduce avg"),
    "p2p_latency": ("message to itself",),
}
COPY_NAMES = {
    "copy_h2d": ("h2d registered",),
    "copy_d2h": ("d2h registered",),
    "copy_d2d": ("d2d",),
}


def clocks(folder: Path) -> Iterator[Comparison]:
    """Events against the GPU's own timer: kernels of known length, less what an empty one takes."""
    times = printed(folder, "truth_clock")
    empty_us = times.get(("empty kernel", "device_event", 0), 0.0)
    for (what, mode, _), timer_us in times.items():
        event_us = times.get((what, "device_event", 0))
        if mode == "globaltimer" and event_us is not None:
            key = what.partition(" by ")[0], "device_event", 0
            yield Comparison("clock", key, event_us - empty_us, "globaltimer", timer_us, "clock")


def nccl(folder: Path) -> Iterator[Comparison]:
    """What only the GPU does against C++, what Python and torch do against torch by hand.

    torch wraps each captured message in events of its own streams, so a graph of messages takes
    twice as long as in C++.
    """
    truth = printed(folder, "truth_nccl")
    by_hand = printed(folder, "by_hand")
    times = {**measured(folder, "nccl"), **measured(folder, "host_sync")}
    for key, us in times.items():
        benchmark, mode, _ = key
        is_of_torch = mode == "host_sync" or (benchmark, mode) == ("p2p_latency", "graph")
        references = {"torch": by_hand} if is_of_torch else {"C++": truth}
        yield from compared("nccl", {key: us}, references, NCCL_NAMES)


def cupy_nccl(folder: Path) -> Iterator[Comparison]:
    truth = {"C++": printed(folder, "truth_nccl")}
    yield from compared("cupy_nccl", measured(folder, "cupy_nccl"), truth, NCCL_NAMES)


def copies(folder: Path) -> Iterator[Comparison]:
    truth = {"C++": printed(folder, "truth_copy")}
    yield from compared("cuda_copy", measured(folder, "cuda_copy"), truth, COPY_NAMES)


def ipc(folder: Path) -> Iterator[Comparison]:
    """Within one process, and between two that take turns on the GPU."""
    within = {"C++": printed(folder, "truth_ipc")}
    turns = {"C++": printed(folder, "truth_turns")}
    names = {"p2p_latency": ("d2d within", "half a round trip")}
    yield from compared("ipc 0-0", measured(folder, "ipc_copy", pair="0-0"), within, names)
    yield from compared("ipc 0-1", measured(folder, "ipc_copy", pair="0-1"), turns, names)


def registration(folder: Path) -> Iterator[Comparison]:
    """Two ranks, for each kind of memory: a graph against a graph, and consecutive calls against
    those of nccl-tests, which waits once for all of them."""
    truth = {
        (what, "throughput" if mode == "loop" else mode, message_bytes): us
        for (what, mode, message_bytes), us in printed(folder, "truth_windows").items()
        if mode != "throughput"
    }
    for kind in REGISTRATIONS:
        names = {
            name: (f"{name} {kind}",) for name in ("all_reduce", "all_gather", "reduce_scatter")
        }
        times = measured(folder, "registration", registration=kind)
        for one in compared("registration", times, {"C++": truth}, names):
            yield replace(one, part=kind)


def symmetric_memory(folder: Path) -> Iterator[Comparison]:
    """Two ranks: a call of torch on its symmetric memory, and a graph of such calls."""
    by_hand = {"torch": printed(folder, "symmetric_by_hand")}
    for algorithm in ALGORITHMS:
        names = {"all_reduce": (f"all_reduce {algorithm}",)}
        times = measured(folder, "symm_mem", algorithm=algorithm)
        for one in compared("symm_mem", times, by_hand, names):
            yield replace(one, part=algorithm)


def communicators(folder: Path) -> Iterator[Comparison]:
    truth = {"C++": printed(folder, "truth_init")}
    for until in ("open", "first_call"):
        names = {name: (f"{name} {until}",) for name in ("communicator_init", "communicator_split")}
        times = measured(folder, "communicators", until=until)
        for one in compared("communicators", times, truth, names):
            yield replace(one, part=until)


def training(folder: Path) -> Iterator[Comparison]:
    """A step of a job by its own clock, against its replay with matrix products in the gaps."""
    for part in sorted(folder.glob("job_*")):
        lines = (part / "stdout.txt").read_text().splitlines()
        own = [json.loads(line) for line in lines if line.startswith('{"job"')]
        stored = sorted(part.glob("results/*/job.json"))
        if not own or not stored:
            continue
        workload = parse_workload(stored[0].read_text(), str(stored[0]))
        rows = read_case_rows([part / "results"])
        replayed = replay_times(rows, scaled(workload, workload.ranks)).sequence.get("matmul")
        if replayed is not None:
            key = own[0]["job"], "host_sync", 0
            step_us = 1e6 * own[0]["step_s"]
            yield Comparison("step", key, 1e6 * replayed.value, "the job", step_us, "step")


JUDGES = (
    clocks,
    nccl,
    cupy_nccl,
    copies,
    ipc,
    registration,
    symmetric_memory,
    communicators,
    training,
)


def judged(folder: Path) -> list[Comparison]:
    return [comparison for judge in JUDGES for comparison in judge(folder)]


def table(comparisons: Sequence[Comparison]) -> str:
    head = (
        f"{'':8}{'part':<10} {'what':<20} {'mode':<13} {'bytes':>10} {'measured us':>10}"
        f" {'reference us':>10}"
    )
    return "\n".join([head, *map(str, comparisons)])


def main(words: Sequence[str]) -> int:
    comparisons = judged(Path(words[0]))
    if not comparisons:
        print(f"gpu-check: nothing to compare in {words[0]}", file=sys.stderr)
        return 2
    print(table(comparisons))
    differing = sum(not comparison.agrees for comparison in comparisons)
    print(f"{len(comparisons)} comparisons, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
