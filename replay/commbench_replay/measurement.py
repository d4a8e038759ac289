"""A job's communication measured on these machines, and the answer."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from commbench.cli import run
from commbench.cli.options import write_file
from commbench.config.overrides import quoted
from commbench.core.errors import ConfigError
from commbench.core.terminal import Terminal, paragraphs
from commbench.results.columns import grouped
from commbench.results.load import read_case_rows
from commbench.results.run_folder import new_folder

from .answer import ANSWERED, answer_of
from .named_workload import WORKLOAD_FILE
from .replay_times import LOWER_BOUND
from .training_job import TrainingJob
from .waiting import waiting_of
from .workload import Workload
from .workload_file import workload_text

SWEEP_WORD = "-m"


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
            f"workload={quoted(path)}",
            f"output='{folder}'",
        ],
        multirun=SWEEP_WORD in words,
    )
    if not any(word.startswith("plan=") for word in chosen):
        print(answer_text(workload, job, folder))
    return status


def _has_gaps(workload: Workload) -> bool:
    return any(call.gap_s or call.beside_s for order in workload.orders for call in order.calls)


def answer_text(workload: Workload, job: TrainingJob | None, folder: Path) -> str:
    """A paragraph for each backend and layout that measured the workload."""
    rows = [row for row in read_case_rows([folder]) if row.benchmark == "replay"]
    if not rows:
        raise ConfigError(f"no case of benchmark=replay in {folder}")
    waiting = None if job is None else waiting_of(job)
    lines = []
    for own in grouped(
        rows, lambda row: tuple(str(getattr(row, name)) for name in ANSWERED)
    ).values():
        answer = answer_of(own, workload, waiting)
        first, *others = answer.sentences()
        lines += ["", f"{answer.title}: {first}", *others]
    lines += ["", LOWER_BOUND]
    return paragraphs(lines, Terminal.of(sys.stdout))
