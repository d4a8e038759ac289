"""The second half of `commbench replay`: a job's communication measured on these machines, and
which cause its time has."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from commbench.cli import run
from commbench.cli.options import write_file
from commbench.config.compose import quoted_path
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.terminal import Terminal, paragraphs
from commbench.replay.analysis import LEAST_WAITING_NS, late_ranks
from commbench.replay.causes import (
    ANSWERED,
    WORKLOAD_FILE,
    Seconds,
    Waiting,
    causes,
    job_seconds,
    part_texts,
    replay_times,
    sequence_text,
)
from commbench.replay.scaling import scaled
from commbench.replay.training_job import TrainingJob
from commbench.replay.workload import Workload
from commbench.replay.workload_file import workload_text
from commbench.results.columns import grouped
from commbench.results.load import read_rows, row_dicts
from commbench.results.run_folder import new_folder

SWEEP_WORD = "-m"
ANSWER_COLUMNS = (
    "run_id", "case_id",
    *ANSWERED, "benchmark", "workload", "gaps", "late", "status", "median_s", "ci_low_s",
    "ci_high_s", "efficiency",
)  # fmt: skip


def measured_here(workload: Workload, job: TrainingJob | None, overrides: str) -> int:
    """Measure a workload with these overrides and print the answer; returns the exit status of the
    run. `job`: its traces, where they are at hand."""
    words = shlex.split(overrides)
    outputs = [word.partition("=")[2] for word in words if word.startswith("output=")]
    folder = Path(new_folder(outputs[-1] if outputs else "results"))
    path = folder / WORKLOAD_FILE
    write_file("--on", str(path), workload_text(workload), replace=False)
    gaps = ["gaps=[none,sleep,matmul]"] if _has_gaps(workload) else []
    chosen = [word for word in words if not word.startswith("output=") and word != SWEEP_WORD]
    status = run.run(
        [
            "benchmark=replay",
            *gaps,
            *chosen,
            f"workload={quoted_path(path)}",
            f"output='{folder}'",
        ],
        multirun=SWEEP_WORD in words,
    )
    if not any(word.startswith("plan=") for word in chosen):
        print("\n".join(answer_lines(workload, job, [folder])))
    return status


def _has_gaps(workload: Workload) -> bool:
    return any(call.gap_s or call.beside_s for order in workload.orders for call in order.calls)


def answer_lines(workload: Workload, job: TrainingJob | None, folders: Sequence[Path]) -> list[str]:
    """One paragraph for each backend and layout that measured the workload."""
    frame = read_rows(folders, columns=ANSWER_COLUMNS)
    rows = [row for row in row_dicts(frame) if row["benchmark"] == "replay"]
    if not rows:
        raise ConfigError(f"no case of benchmark=replay in {', '.join(map(str, folders))}")
    lines = []
    terminal = Terminal.of(sys.stdout)
    for own in grouped(rows, lambda row: tuple(str(row[name]) for name in ANSWERED)).values():
        for line in _answer(workload, job, own):
            lines.append(paragraphs([line], terminal))
    return lines


def _answer(
    workload: Workload, job: TrainingJob | None, rows: Sequence[dict[str, Any]]
) -> Iterable[str]:
    first = rows[0]
    ranks = Layout.parse(first["layout"]).size
    splits = first["splits"]
    times = replay_times(rows, workload, ranks, splits)
    yield ""
    yield f"{first['backend']}, layout {first['layout']}: {sequence_text(times)}"
    yield from part_texts(scaled(workload, ranks, splits), ranks, workload.ranks, splits)
    same_ranks = ranks == workload.ranks
    waiting = waiting_of(job) if job is not None and same_ranks else None
    yield from map(str, causes(times, waiting, job_seconds(workload) if same_ranks else None))


def waiting_of(job: TrainingJob) -> Waiting | None:
    """Of a step, the mean over the ranks; None where it is not known. The ends of an operation on
    different ranks are up to LEAST_WAITING_NS apart, which is its error."""
    late = late_ranks(job)
    if not job.collectives or any(collective.is_bound for collective in job.collectives):
        return None
    waits = [wait for collective in job.collectives for wait in collective.waiting_ns.values()]
    steps = max(job.steps, 1)
    waiting_s = sum(waits) / len(job.ranks) / steps / 1e9
    error_s = len(waits) * LEAST_WAITING_NS / len(job.ranks) / steps / 1e9
    seconds = Seconds(waiting_s, waiting_s - error_s, waiting_s + error_s)
    last_rank = f"rank {late[0].rank}" if late else "none of them"
    return Waiting(seconds, last_rank)
