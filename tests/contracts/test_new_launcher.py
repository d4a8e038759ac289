"""A launcher is a folder of features: in a copy of the package that has one more, every list and
text of launchers has it, and it starts a world."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_commands import command, commands
from loops import for_each

import commbench
from commbench.core.launchers import launchers

YAML = """
# the ranks on this machine, each a process of gridrun
_target_: commbench.features.grid.grid.Grid
"""
# the launcher, and the program that it calls
GRID = """
import os, secrets, subprocess, sys
from dataclasses import dataclass
from commbench.core.protocols import Launcher, RankVariables
from commbench.runtime.rendezvous import exported_identity, store_at

@dataclass(frozen=True)
class Grid(Launcher):
    name = "grid"
    precedence = 15
    programs = ("gridrun",)
    usage = "On a grid:                          launcher=grid\\n"
    starts_mpi = True
    mpi_options = "with gridrun: --grid"
    variables = RankVariables(("GRID_",), ("GRID_",), ("GRID_PORT",), ("GRID_ID",), ("GRID_TTY",))
    fact_scopes = "environment.GRID_* | record | any | ignore | yes"

    def detect(self, environ):
        if "GRID_RANK" not in environ:
            return None
        return exported_identity(self.name, environ, "GRID_RANK", "GRID_SIZE", "GRID_RANK")

    def open_store(self, identity, environ, backend, interface):
        port = int(environ["GRID_PORT"])
        return store_at("127.0.0.1", port, identity.rank == 0, backend.needs_torch)

    def environment(self, ranks_per_node):
        return {"GRID_PORT": str(secrets.choice(range(20000, 32000)))}

    def command(self, layout, worker, library, exports):
        program = [sys.executable, "-m", "commbench.features.grid.grid", str(layout.size)]
        return [*program, *worker]

    def manual_command(self, layout, worker):
        return f"gridrun {layout.size} commbench"

if __name__ == "__main__":
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "commbench", *sys.argv[2:]],
            env={**os.environ, "GRID_RANK": str(rank), "GRID_SIZE": sys.argv[1], "GRID_ID": "7"},
        )
        for rank in range(int(sys.argv[1]))
    ]
    sys.exit(max(rank.wait() for rank in ranks))
"""
ASKED = """
import json
from types import SimpleNamespace
from commbench.backends.mpi.backend import Mpi
from commbench.hardware.machine_facts import environment_facts
from commbench.hardware.mpi_library import launcher_mismatch
from commbench.results.fact_scopes import scope_of
from commbench.runtime.launchers.registry import allowed

mpi = SimpleNamespace(Get_library_version=str, COMM_WORLD=SimpleNamespace(size=1))
ranks = {"GRID_RANK": "0", "GRID_PORT": "1", "GRID_ID": "7"}
print(json.dumps({
    "allowed": allowed(Mpi()), "mismatch": launcher_mismatch(2, mpi),
    "facts": environment_facts(ranks), "runs": scope_of("environment.GRID_ID").runs,
}))
"""


@pytest.fixture(scope="module")
def with_grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with a commbench that has one more launcher."""
    folder = tmp_path_factory.mktemp("grid")
    package = folder / "commbench"
    # with its bytecode: to compile all of it again takes seconds
    shutil.copytree(Path(commbench.__file__).parent, package)
    feature = package / "features" / "grid"
    (feature / "launcher").mkdir(parents=True)
    (feature / "__init__.py").touch()
    (feature / "grid.py").write_text(GRID)
    (feature / "launcher" / "grid.yaml").write_text(YAML)
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=folder,
        timeout=120,
        check=False,
    )


def test_texts_that_list_launchers_have_one_more(with_grid: Path) -> None:
    usage, locate, *refused = commands(
        with_grid,
        with_grid,
        ["--help"],
        ["locate", "--help"],
        ["launcher=foo"],
        ["layout=2x2"],
    )
    assert "torchrun|gridrun|mpirun|srun ... commbench" in usage.stdout
    assert "\nOn a grid:                          launcher=grid\n" in usage.stdout
    assert "torchrun|gridrun|mpirun|srun ... commbench locate" in locate.stdout
    texts = ("allowed: auto, grid, local,", "\n  gridrun 4 commbench\n")
    for done, text in zip(refused, texts, strict=True):
        assert done.returncode == 2 and text in done.stderr
    rank = {"GRID_RANK": "0", "GRID_SIZE": "2"}
    done = command(with_grid, with_grid, "ab", "backend=gloo", "--vs", "seed=1", env=rank)
    assert done.returncode == 2
    assert "outside of torchrun, gridrun, mpirun and srun" in done.stderr
    unread = command(with_grid, with_grid, "backend=tcp", env={"PALS_RANKID": "0"}).stderr
    assert "start the ranks with torchrun, gridrun, mpirun, " in unread


def test_what_it_says_of_variables_and_mpi_counts(with_grid: Path) -> None:
    answer: dict[str, Any] = json.loads(python(with_grid, "-c", ASKED).stdout)
    assert answer["allowed"] == ["grid", "mpirun", "srun"]
    assert "(with gridrun: --grid; with srun: --mpi=pmi2" in answer["mismatch"]
    assert answer["facts"] == {"environment.GRID_ID": "7"}
    assert answer["runs"] == "ignore"


def test_it_starts_a_world(with_grid: Path) -> None:
    words = ("launcher=grid", "backend=tcp", "benchmark=barrier", "layout=1x2", "sizes=[8]")
    quick = ("timing=fixed", "timing.repetitions=5", "writer=jsonl", "output=results")
    done = python(with_grid, "-m", "commbench", *words, *quick)
    assert done.returncode == 0, done.stderr
    (record,) = (json.loads(file.read_text()) for file in with_grid.glob("results/*/run.json"))
    assert record["world"]["launcher"] == "grid"
    (node,) = record["provenance"]["nodes"]
    assert {name for name in node if "GRID" in name} == {
        "environment.GRID_ID",
        "environment.GRID_SIZE",
    }


@for_each("launcher", launchers())
def test_each_row_about_facts_can_be_read(launcher: Any) -> None:
    row = r"environment\.\w+\*?( *\| *\w+){4}"
    lines = [line.strip() for line in launcher.fact_scopes.splitlines()]
    assert all(re.fullmatch(row, line) for line in lines if line and not line.startswith("#"))
