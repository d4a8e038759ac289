"""`make jobs`: real training jobs on gloo, traced, and their communication replayed on the same
machine; rewrites the table in docs/workloads.md.

`python tools/jobs JOB ...` runs some of them and only prints.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import rewrite

from commbench.results.load import read_case_rows
from commbench.stats.interval import Interval
from commbench_replay.readers.registry import read_traces
from commbench_replay.recorded_workload import workload_of
from commbench_replay.replay_times import replay_times
from commbench_replay.scaling import scaled
from commbench_replay.training_job import training_job
from commbench_replay.workload_file import parse_workload

HERE = Path(__file__).parent
JOBS = ("ddp", "fsdp", "tensor_parallel", "moe")
RANKS = (2, 4)
JOB_S = 180
REPLAY_S = 600
HEADS = (
    *("job", "ranks", "calls", "communication, job's clock", "traces", "one by one", "replayed"),
    *("beside matmul", "step, job's clock", "replayed with sleep", "with matmul"),
)
HEAD = f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}\n"


@dataclass(frozen=True)
class JobTimes:
    """Seconds of one step. `traced_s`: of its communication, by the traces; `one_by_one` and
    `replayed`: by the replay; `beside_s`: in the replay with gaps=matmul, by its profile;
    `by_gaps`: of the replay with its gaps."""

    job: str
    ranks: int
    calls: int
    step_s: float
    communication_s: float
    traced_s: float
    one_by_one: Interval
    replayed: Interval
    beside_s: float
    by_gaps: dict[str, Interval]

    @property
    def errors(self) -> dict[str, float]:
        """Relative to the job's own clock."""
        of_communication = {
            "traces": self.traced_s,
            "one by one": self.one_by_one.value,
            "replayed": self.replayed.value,
            "beside matmul": self.beside_s,
        }
        return {
            **{name: each / self.communication_s - 1 for name, each in of_communication.items()},
            **{name: each.value / self.step_s - 1 for name, each in self.by_gaps.items()},
        }

    def __str__(self) -> str:
        errors = self.errors
        cells = [
            str(self.calls),
            f"{1e3 * self.communication_s:.2f} ms",
            *(
                f"{1e3 * seconds:.2f} ms, {errors[name]:+.0%}"
                for name, seconds in (
                    ("traces", self.traced_s),
                    ("one by one", self.one_by_one.value),
                    ("replayed", self.replayed.value),
                    ("beside matmul", self.beside_s),
                )
            ),
            f"{1e3 * self.step_s:.2f} ms",
            *(
                f"{1e3 * self.by_gaps[gaps].value:.2f} ms, {errors[gaps]:+.0%}"
                for gaps in ("sleep", "matmul")
            ),
        ]
        return f"| {self.job} | {self.ranks} | {' | '.join(cells)} |"


def run_job(job: str, ranks: int, traces: Path) -> dict[str, float]:
    """What the job prints of itself; its profiles are in `traces`."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, f"--nproc-per-node={ranks}", str(HERE / f"{job}.py"), "--traces", str(traces)],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{job} with {ranks} ranks: {done.stderr[-2000:]}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    printed: dict[str, float] = json.loads(line)
    return printed


def replayed(job: str, ranks: int, folder: Path) -> JobTimes:
    """Run the job, then `commbench replay` of its traces."""
    traces = folder / "traces"
    own = run_job(job, ranks, traces)
    results = folder / "results"
    profiles = folder / "profiles"
    on = f"backend=gloo layout=1x{ranks} output={results} profile={profiles}"
    subprocess.run(
        [sys.executable, "-m", "commbench", "replay", str(traces), "--on", on],
        stdout=subprocess.PIPE,
        timeout=REPLAY_S,
        check=True,
    )
    (stored,) = results.glob("*/job.json")
    workload = parse_workload(stored.read_text(), str(stored))
    rows = read_case_rows([results])
    times = replay_times(rows, scaled(workload, ranks))
    (computing,) = (row.case_id for row in rows if row.gaps == "matmul")
    traced_s = workload.job_s
    one_by_one = times.alone_sum
    beside_s = profiled_s(profiles / f"replay-{computing}", workload.steps)
    if traced_s is None or one_by_one is None or beside_s is None:
        raise RuntimeError(f"{job} with {ranks} ranks: its replay has no times of all operations")
    assert training_job(read_traces([str(traces)])[0]).steps == workload.steps
    return JobTimes(
        job,
        ranks,
        int(own["calls"]),
        own["step_s"],
        own["communication_s"],
        traced_s,
        one_by_one,
        times.sequence["none"],
        beside_s,
        {gaps: times.sequence[gaps] for gaps in ("sleep", "matmul")},
    )


def profiled_s(folder: Path, steps: int) -> float | None:
    """The time of a step's communication in the profiles of a replay, as traces of the job say it;
    they have all steps in one."""
    in_all_s = workload_of(training_job(read_traces([str(folder)])[0])).job_s
    return None if in_all_s is None else in_all_s / steps


def errors_text(rows: Sequence[JobTimes]) -> str:
    """The median and the worst error of each column, over the jobs of 2 ranks and of 4."""
    lines = []
    for ranks in RANKS:
        of_ranks = [row.errors for row in rows if row.ranks == ranks]
        texts = []
        for name in of_ranks[0]:
            errors = [abs(row[name]) for row in of_ranks]
            texts.append(f"{name} {statistics.median(errors):.0%}, {max(errors):.0%}")
        lines.append(f"- {ranks} ranks, median and worst error: {'; '.join(texts)}.\n")
    return "".join(lines)


def main(words: Sequence[str]) -> int:
    rows = []
    for job in words or JOBS:
        for ranks in RANKS:
            with tempfile.TemporaryDirectory(prefix="commbench-jobs-") as folder:
                rows.append(replayed(job, ranks, Path(folder)))
            print(rows[-1], flush=True)
    if not words:
        table = HEAD + "".join(f"{row}\n" for row in rows)
        rewrite("workloads.md", "jobs", f"{table}\n{errors_text(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
