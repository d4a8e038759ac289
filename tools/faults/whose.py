"""Worlds that somebody else has started, and variables that are left over from one: what is
measured by how many ranks, and how often a line says so."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from load import Burden
from scene import TIMING

# the free ports of the tests
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from processes import free_port

from commbench.results.load import load_run

LIMIT_S = 300.0
COMMBENCH = f"{sys.executable} -m commbench"
WORDS = " ".join(["benchmark=[p2p_latency]", "sizes=[8]", "bind=none", *TIMING])
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--no-python")
NO_WORLD = "are not taken for a world"


@dataclass(frozen=True)
class Scenario:
    """Processes that are started together. `typed` is what each reads from stdin; `sizes` are the
    worlds of the runs that must be there in the end, `said` is a text with how often it must be on
    stderr."""

    name: str
    commands: Sequence[Sequence[str]]
    sizes: Sequence[int]
    said: tuple[str, int]
    environs: Sequence[Mapping[str, str]] = ()
    typed: str = ""
    status: int = 0


def scenarios(folder: Path) -> Iterator[Scenario]:
    run = f"{COMMBENCH} {WORDS} output={folder}"
    shell = (*TORCHRUN, "bash", "--norc")
    yield Scenario("a shell under torchrun", [shell], [2], (NO_WORLD, 1), typed=f"{run}\n")
    twice = f"{run} & {run}; wait\n"
    yield Scenario("two runs at once in it", [shell], [2, 2], (NO_WORLD, 2), typed=twice)
    alone = (*TORCHRUN, *run.split())
    yield Scenario("torchrun with one rank", [alone], [1], ("this is rank 0 of a world of 1", 1))
    pair = by_env(2)
    text = "this is rank 0 of a world of 2, by torch's env://"
    yield Scenario("RANK and its companions", [run.split()] * 2, [2], (text, 1), pair)
    lone = [{**pair[0], "MASTER_PORT": ""}]
    yield Scenario("RANK without a port", [run.split()], [2], ("without MASTER_PORT", 1), lone)
    misfit = [*run.split(), "layout=1x8"]
    text = "does not fit into this world"
    yield Scenario("a layout that does not fit", [misfit] * 3, [], (text, 1), by_env(3), status=2)
    hosts = [
        ("unshare", "--uts", "sh", "-c", f"hostname whose{rank // 3}; exec {run}")
        for rank in range(4)
    ]
    text = "layout 2x1 uses 2 of 4 ranks, ranks 1-2 are idle"
    yield Scenario("three ranks and one", hosts, [4], (text, 1), by_env(4))


def by_env(size: int) -> list[dict[str, str]]:
    """The variables of each rank of such a world on this machine."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    return [{**shared, "RANK": str(rank)} for rank in range(size)]


def whose() -> Iterator[Burden]:
    """Play all scenarios one after the other, each in a folder of its own."""
    for number in range(len(list(scenarios(Path())))):
        with tempfile.TemporaryDirectory(prefix="commbench-whose-") as folder:
            yield _played(list(scenarios(Path(folder)))[number], Path(folder))


def _played(scenario: Scenario, folder: Path) -> Burden:
    begin_s = time.monotonic()
    processes = [
        subprocess.Popen(
            ["timeout", "-k", "5", str(LIMIT_S), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        for command, environ in zip(
            scenario.commands, scenario.environs or [{}] * len(scenario.commands), strict=True
        )
    ]
    stderr = "".join(process.communicate(scenario.typed)[1] for process in processes)
    statuses = {process.returncode for process in processes}
    sizes = sorted(load_run(run)["world"]["size"] for run in folder.glob("*"))
    text, times = scenario.said
    wrong = []
    if statuses != {scenario.status}:
        wrong.append(f"exit {sorted(statuses)}")
    if sizes != sorted(scenario.sizes):
        wrong.append(f"worlds of {sizes}")
    if stderr.count(text) != times:
        wrong.append(f"{stderr.count(text)} times {text!r}")
    line = next((line for line in stderr.splitlines() if text in line), "").partition(": ")[2]
    worlds = ", ".join(f"{size} ranks" if size > 1 else "1 rank" for size in sizes) or "no world"
    result = f"exit {scenario.status}, {worlds}: {line}"
    return Burden(scenario.name, time.monotonic() - begin_s, result, "; ".join(wrong))
