"""Real worlds for tests: the command line in a process of its own, bounded in time, results as a data frame."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import commbench

BIN = Path(sys.executable).parent
ROOT = {
    f"{kind}_ALLOW_RUN_AS_ROOT{more}": "1"
    for kind in ("OMPI", "PRTE")
    for more in ("", "_CONFIRM")
    if os.geteuid() == 0  # as a container's root would have to say it
}
WORLD_S = 120


@dataclass(frozen=True)
class World:
    """How a command ended, and what it left."""

    status: int
    stdout: str
    stderr: str
    output: Path

    @property
    def cases(self) -> pd.DataFrame:
        return commbench.load(self.output)

    @property
    def samples(self) -> pd.DataFrame:
        return commbench.load(self.output, table="samples")

    def explain(self) -> str:
        return f"exit {self.status}\n{self.stdout[-3000:]}\n{self.stderr[-6000:]}"


@pytest.fixture(autouse=True)
def impatient_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks DNS for the name of 127.0.0.1 with each connection; where no one answers, that takes 5 s."""
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """world("torchrun", "--nproc-per-node", "2", "-m", "commbench", "backend=gloo"): run, wait, return."""

    def start(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> World:
        output = tmp_path / "results"
        program = words[0] if "/" in words[0] else str(BIN / words[0])
        command = ["timeout", "-k", "5", str(WORLD_S), program, *words[1:], f"output={output}"]
        path = f"{BIN}:{os.environ['PATH']}"  # an activated environment
        environment = {**os.environ, "PATH": path, **ROOT, **(env or {})}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=cwd or tmp_path, check=False
        )
        return World(done.returncode, done.stdout, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stderr), output)

    return start
