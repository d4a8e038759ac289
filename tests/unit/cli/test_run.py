"""What the command says of a run whose worlds it starts, with worlds that end at once."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from places import DATA

import commbench
from commbench.cli import run as run_module
from commbench.cli.run import run
from commbench.core.errors import ConfigError, WorldBroken
from commbench.results.run_folder import write_json
from commbench.runtime import launch
from commbench.runtime.output import BUSY
from commbench.runtime.recovery import Resume

QUICK = ("benchmark=p2p_latency", "sizes=[8]", "timing=fixed", "timing.repetitions=2")


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_lost_its_ranks_says_how_to_finish_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Unless nothing was measured."""

    def start(spec: launch.WorldSpec) -> int:
        if begun:
            write_json(Path(spec.folder) / "run.json", {"status": "broken", "exit_status": 3})
        error = WorldBroken("rank 1 was killed")
        error.stacks = ("rank 1: case.py:1 measure",)
        raise error

    monkeypatch.setattr(launch, "start", start)
    with pytest.raises(WorldBroken) as broken:
        run(["backend=gloo", "layout=1x2", f"output={tmp_path}"])
    hint = str(broken.value).removeprefix("rank 1 was killed")
    assert (
        hint.startswith(f"; finish it with: commbench resume {tmp_path}/") if begun else hint == ""
    )
    assert broken.value.stacks == ("rank 1: case.py:1 measure",)


@pytest.mark.parametrize(
    ("layout", "load", "said"),
    [
        ("1x2", 0.0, None),
        ("1x64", 0.0, "64 ranks share 2 cores (one each: layout=1x2)"),
        (
            "1x4",
            7.0,
            "4 ranks share 2 cores (one each: layout=1x2), on a busy machine (load 7 on 2 cores)",
        ),
    ],
)
def test_ranks_that_share_cores_are_told_before_they_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, load: float, said: str | None
) -> None:
    seen = []

    def start(spec: launch.WorldSpec) -> int:
        seen.append(os.environ.get(BUSY))
        return 0

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr("commbench.cli.run.cpu_limit_cores", lambda: 2.0)
    monkeypatch.setattr("commbench.cli.run.load_facts", lambda root: {"host.load_1min": load})
    run(["backend=gloo", f"layout={layout}", f"output={tmp_path}"])
    assert seen == [said]


@pytest.mark.parametrize(
    ("words", "started", "reason"),
    [
        (["layout=1x2,2x1"], 1, "layout=2x1 needs 2 nodes, this is one machine"),
        (["backend=gloo,tcp,mpi", "launcher=torchrun"], 2, "launcher=torchrun can't start mpi"),
    ],
)
def test_a_sweep_runs_what_this_machine_can_and_says_what_it_can_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    started: int,
    reason: str,
) -> None:
    """Its plan exits as the run does; on_error=stop starts nothing."""
    worlds = []

    def start(spec: launch.WorldSpec) -> int:
        worlds.append(spec)
        return 0

    monkeypatch.setattr(launch, "start", start)
    sweep = [*words, *QUICK, f"output={tmp_path}"]
    assert run(sweep, multirun=True) == 0 and len(worlds) == started
    skipped = f"1 of {started + 1} jobs can't start here and is skipped: (1) {reason}"
    out, err = capsys.readouterr()
    assert err.startswith(f"commbench: {skipped}") and out.splitlines()[-1].startswith(skipped)
    assert run([*sweep, "plan=true"], multirun=True) == 0
    assert skipped in "".join(capsys.readouterr())
    with pytest.raises(ConfigError, match=re.escape(reason)):
        run([*sweep, "on_error=stop"], multirun=True)
    assert len(worlds) == started


def test_a_sweep_of_which_this_machine_can_do_nothing_is_refused(tmp_path: Path) -> None:
    sweep = ["layout=2x1,3x1", *QUICK, f"output={tmp_path}"]
    with pytest.raises(ConfigError, match="layout=2x1 needs 2 nodes, this is one machine; start"):
        run(sweep, multirun=True)
    assert run([*sweep, "plan=true"], multirun=True) == 2


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([("running", 0), ("running", 0), ("done", 1)], 1),
        ([("running", 0), ("interrupted", 130)], 130),
        ([("done", 0)], 0),
        ([("running", 3)], 3),
    ],
)
def test_launches_follow_one_another_until_a_world_ends_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[tuple[str, int]],
    status: int,
) -> None:
    resumed = list[Resume | None]()

    def start(spec: launch.WorldSpec) -> int:
        text, exit_status = ends[len(resumed)]
        resumed.append(spec.resume)
        write_json(Path(spec.folder) / "run.json", {"status": text, "exit_status": exit_status})
        return exit_status

    monkeypatch.setattr(launch, "start", start)
    words = ["backend=gloo", "layout=1x2", f"output={tmp_path}", "timing.launches=3"]
    assert run(words) == status
    assert resumed == [None, *[Resume.LAUNCH] * (len(ends) - 1)]


@pytest.mark.usefixtures("outside_any_world")
@pytest.mark.parametrize("backend", ["simulated", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_run_in_another_thread_than_the_main_one_measures(backend: str, tmp_path: Path) -> None:
    run_here = partial(commbench.run, *QUICK, backend=backend, output=tmp_path)
    with ThreadPoolExecutor(1) as pool:
        folder = pool.submit(run_here).result(100)
    assert list(commbench.load(folder)["status"]) == ["ok"]


@pytest.mark.usefixtures("outside_any_world")
def test_one_thread_measures_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it ends, another is refused; after an error it is not."""
    measure = partial(commbench.run, *QUICK, backend="simulated", output=tmp_path)

    def run_session(*_: object) -> int:
        with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="another thread"):
            pool.submit(measure).result(10)
        raise WorldBroken("the first one")

    with monkeypatch.context() as patch, pytest.raises(WorldBroken, match="the first one"):
        patch.setattr(run_module, "run_session", run_session)
        measure()
    assert measure().is_dir()


@pytest.mark.usefixtures("outside_any_world")
def test_a_rank_of_a_launcher_starts_no_world_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in json.loads((DATA / "environments" / "openmpi5.json").read_text())[1].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="this process is rank 1 of 2 of mpirun"):
        commbench.run(backend="simulated")
