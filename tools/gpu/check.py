"""A check: a command line of commbench, the expected outcome, and a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from machine import PROBES, Machine

GRACE_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and the folder of its results."""

    folder: Path
    status: int | None  # None: it exceeded the time limit
    stdout: str
    stderr: str
    seconds: float

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        import commbench

        if not self.runs:
            return []
        table = commbench.load(self.folder / "results")
        return [
            {str(name): value for name, value in row.items()} for row in table.to_dict("records")
        ]

    @cached_property
    def counter_names(self) -> set[str]:
        import commbench

        return (
            set(commbench.load(self.folder / "results", table="counters").name)
            if self.runs
            else set()
        )

    @cached_property
    def answer(self) -> dict[str, Any]:
        """What a probe has printed last, as JSON; empty if it did not get that far."""
        try:
            printed = json.loads(self.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return {}
        return printed if isinstance(printed, dict) else {}

    @cached_property
    def runs(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / "results").glob("*/run.json"))
        return [json.loads(file.read_text()) for file in files]


@dataclass(frozen=True)
class Sight:
    """An expectation; `missed` describes what was seen instead, or is None if it is met."""

    text: str
    missed: Callable[[Outcome], str | None]


@dataclass(frozen=True)
class Check:
    """A command line of commbench, or of `program`, a file of probes/.

    `possible`: why the check is not possible on this machine, or None. `beside`: a program that
    prints `ready` and runs as long as the command. `meanwhile`: called while the command runs.
    `ranks`: start this many ranks with torchrun, which exits with 1 if a rank exits with any other
    status than 0."""

    name: str
    words: tuple[str, ...]
    seen: tuple[Sight, ...]
    possible: Callable[[Machine], str | None] = lambda machine: None
    timeout_s: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    beside: str | None = None
    meanwhile: Callable[[Path], None] | None = None
    ranks: int | None = None
    program: str | None = None


def run(check: Check, out: Path, environment: Mapping[str, str], left_s: float) -> Outcome:
    """Run the command in a folder of its own, which keeps its output."""
    folder = out / check.name
    folder.mkdir(parents=True, exist_ok=True)
    launcher = (
        ["torch.distributed.run", "--standalone", f"--nproc-per-node={check.ranks}", "-m"]
        if check.ranks
        else []
    )
    command = [sys.executable, "-m", *launcher, "commbench", *check.words]
    if check.program is not None:
        command = [sys.executable, str(PROBES / check.program), *check.words]
    elif check.words[:1] != ("doctor",):
        command.append(f"output={folder / 'results'}")
    (folder / "command.txt").write_text(
        " ".join([*(f"{k}={v}" for k, v in check.env.items()), *command]) + "\n"
    )
    env = {**environment, **check.env}
    companion = None
    if check.beside is not None:
        companion = subprocess.Popen(
            [sys.executable, "-c", check.beside], env=env, stdout=subprocess.PIPE, text=True
        )
        assert companion.stdout is not None
        companion.stdout.readline()
    begin = time.monotonic()
    try:
        status, stdout, stderr = _finished(
            command, env, folder, min(check.timeout_s, left_s), check.meanwhile
        )
    finally:
        if companion is not None:
            companion.kill()
            companion.wait()
    (folder / "stdout.txt").write_text(stdout)
    (folder / "stderr.txt").write_text(stderr)
    return Outcome(folder, status, stdout, stderr, time.monotonic() - begin)


def _finished(
    command: list[str],
    env: Mapping[str, str],
    folder: Path,
    limit_s: float,
    meanwhile: Callable[[Path], None] | None,
) -> tuple[int | None, str, str]:
    """Its status and output; after the time limit it gets SIGTERM, then all its processes are
    killed."""
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdout=-1,
        stderr=-1,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    if meanwhile is not None:
        threading.Thread(target=meanwhile, args=(folder,), daemon=True).start()
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
        return process.returncode, stdout, stderr
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        stdout, stderr = process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
    return None, stdout, stderr


def kill_a_rank(folder: Path, rank: int = 0, patience_s: float = 60.0) -> None:
    """Kill the process of that rank named in run.json, once its first case is running."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        for file in (folder / "results").glob("*/run.json"):
            for pid, name in json.loads(file.read_text()).get("processes", {}).items():
                if f"rank {rank}" in name:
                    time.sleep(3.0)
                    os.kill(int(pid), signal.SIGKILL)
                    return
        time.sleep(0.2)
