"""A rank server serves the worlds of a command: which jobs it suits, and what its ranks find in
their environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from processes import until

from commbench.config.compose import ConfigComposer
from commbench.core.layout import Layout
from commbench.runtime import launch
from commbench.runtime.exit_protocol import (
    ENDS,
    RankEnd,
    leave_end,
    read_ends,
)
from commbench.runtime.launch import WorldSpec, _exports
from commbench.runtime.launchers.registry import launcher_of, likely_launcher
from commbench.runtime.output import BUSY, LOG
from commbench.runtime.rank_server import (
    ForkedWorld,
    RankServer,
    rank_server,
    rest_rank_server,
    stop_rank_server,
)
from commbench.runtime.world_end import WorldEnd, is_broken

BASE = {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
START_S = 60.0
# a backend that writes down, before its library is opened, what a C library would read
PROBE = """
import ctypes, json, os
from dataclasses import dataclass
from pathlib import Path
from commbench.backends.torch.gloo import Gloo

NAMES = ("GLOO_DEVICE_TRANSPORT", "NCCL_DEBUG", "OMPI_MCA_pml", "UNKNOWN_TO_COMMBENCH")

@dataclass(frozen=True)
class Probe(Gloo):
    def open(self, world, control, device="cpu"):
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        seen = {name: (getenv(name.encode()) or b"").decode() for name in NAMES}
        maps = Path("/proc/self/maps").read_text()
        seen |= {"threads": len(os.listdir(f"/proc/{os.getppid()}/task"))}
        seen |= {"rank": world.rank, "server": os.getppid(), "mpi": "libmpi" in maps}
        seen |= {"label": os.environ["LABEL"]}
        with (Path(os.environ["PROBE_FOLDER"]) / f"{os.getpid()}.json").open("w") as file:
            json.dump(seen, file)
        return super().open(world, control, device)
"""


@pytest.fixture
def idle_server() -> Iterator[RankServer]:
    server = RankServer(os.environ | BASE)
    yield server
    server.close()


@pytest.mark.parametrize(
    "name", ["GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "OMPI_MCA_pml", "UCX_TLS", "CUDA_VISIBLE_DEVICES"]
)
def test_variables_that_ranks_read_need_no_fresh_server(idle_server: RankServer, name: str) -> None:
    assert idle_server.suits(idle_server.environment | {name: "x"}, trial=0)


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "LD_LIBRARY_PATH", "PYTHONPATH", "MKL_CBWR", "TORCH_LOGS", "ANY"]
)
def test_other_variables_may_have_been_read_by_what_is_loaded(
    idle_server: RankServer, name: str
) -> None:
    assert not idle_server.suits(idle_server.environment | {name: "x"}, trial=0)


def test_each_launch_has_a_server_of_its_own() -> None:
    try:
        first = rank_server(BASE)
        assert rank_server(BASE, trial=0) is first, "it was started before the trial was known"
        assert rank_server(BASE | {"GLOO_X": "1"}, trial=0) is first
        second = rank_server(BASE, trial=1)
        assert second is not first and first.process.poll() is not None
        second.process.kill()
        second.process.wait()
        assert rank_server(BASE, trial=1) is not second, "one that has ended serves nobody"
    finally:
        stop_rank_server()


def test_a_server_that_a_world_has_ended_is_closed_once_and_replaced(tmp_path: Path) -> None:
    """Ctrl-C in commbench.run while the server imports torch; a later run has a fresh server."""
    try:
        first = rank_server(BASE, trial=0)
        ForkedWorld(first, 2, [], {}, 2, tmp_path).end(0.0)
        assert first.process.poll() is not None
        second = rank_server(BASE, trial=0)
        assert second is not first and second.process.poll() is None
    finally:
        stop_rank_server()


def test_only_a_server_that_may_still_import_is_ended_before_others_measure() -> None:
    try:
        first = rank_server(BASE)
        rest_rank_server()
        assert first.process.poll() is not None
        second = rank_server(BASE, trial=0)
        rest_rank_server()
        assert second.process.poll() is None and rank_server(BASE, trial=0) is second
    finally:
        stop_rank_server()


def test_no_server_starts_for_what_forks_no_ranks() -> None:
    launchers = {
        words: None if (launcher := likely_launcher(words.split())) is None else launcher.name
        for words in (
            "",
            "plan=true",
            "backend=mpi",
            "backend=simulated",
            "launcher=torchrun",
            "backend=tcp,mpi",
        )
    }
    assert launchers == {
        "": "local", "plan=true": None, "backend=mpi": "mpirun", "backend=simulated": None,
        "launcher=torchrun": "torchrun", "backend=tcp,mpi": "local",
    }  # fmt: skip


def test_what_the_user_asks_for_with_env_wins_over_what_the_command_inherits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for what is read before a rank could export it: by the dynamic linker, or by torch in a
    rank server."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/inherited")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv(BUSY, "load 7")  # recorded, so it must be the same on all hosts
    with ConfigComposer() as composer:
        (job,) = composer.jobs(["layout=1x2", "+env.LD_LIBRARY_PATH=/asked"], multirun=False)
    exports = _exports(WorldSpec(job, launcher_of(job.settings), None, Layout(1, 2), "/nowhere"))
    assert (exports["LD_LIBRARY_PATH"], exports["NCCL_DEBUG"]) == ("/asked", "WARN")
    assert exports[BUSY] == "load 7"


def test_a_rank_of_an_earlier_world_does_not_break_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused rank goes on when fresh ranks already run in the same folder."""
    ends_files = list[Path]()
    broken = list[bool]()

    def supervise(
        start: object, output: object, folder: Path, ends_file: Path, *limits: float
    ) -> WorldEnd:
        ends_files.append(ends_file)
        leave_end(RankEnd("world", "rank 1", 3, "rank 0 is gone"), {ENDS: str(ends_files[0])})
        broken.append(is_broken(read_ends(ends_file), {}))
        return WorldEnd(0, "torchrun (pid 5)")

    monkeypatch.setattr(launch, "supervise", supervise)
    monkeypatch.setattr(launch, "run_status", lambda *_: 0)
    with ConfigComposer() as composer:
        (job,) = composer.jobs(["layout=1x2"], multirun=False)
    spec = WorldSpec(job, launcher_of(job.settings), None, Layout(1, 2), str(tmp_path))
    assert [launch.start(spec), launch.start(spec)] == [0, 0] and broken == [True, False]


def test_each_job_of_a_sweep_has_its_own_environment_and_nothing_outlives_a_parent_that_is_killed(
    tmp_path: Path,
) -> None:
    """One real start for both: a second job that never ends, in which the command is killed."""
    (tmp_path / "probe_backend.py").write_text(PROBE)
    (tmp_path / "backend").mkdir()
    (tmp_path / "backend" / "probe.yaml").write_text("_target_: probe_backend.Probe\n")
    (tmp_path / "seen").mkdir()
    command = [
        sys.executable,
        "-m",
        "commbench",
        "-m",
        "--config-dir",
        str(tmp_path),
        "allow=[probe_backend]",
        "backend=probe",
        "benchmark=all_reduce",
        "sizes=[8]",
        "timing=soak",
        "timing.duration_s=0.2,100",
        "timing.warmup_s=0",
        "layout=1x2",
        "+env.NCCL_DEBUG=${timing.duration_s}",
        "+env.GLOO_DEVICE_TRANSPORT=TCP",
        "+env.OMPI_MCA_pml=ob1",
        f"output={tmp_path / 'results'}",
    ]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {
        "PYTHONPATH": path,
        "PROBE_FOLDER": str(tmp_path / "seen"),
        "LABEL": "of the command",
    }
    environment["OMP_NUM_THREADS"] = "4"
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(command, env=environment, stderr=log) as process,
    ):
        runs = tmp_path / "results"
        written = (tmp_path / "log").read_text
        try:
            until(
                lambda: any(runs.glob("*/samples.parquet")) and any(runs.glob("*/in_flight")),
                explain=written,
            )
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
    assert len(children) == 3 and not psutil.wait_procs(children, timeout=5)[1], (
        "a server and two ranks"
    )
    seen = [json.loads(file.read_text()) for file in (tmp_path / "seen").iterdir()]
    of_ranks = [(record["rank"], record["NCCL_DEBUG"]) for record in seen]
    assert sorted(of_ranks) == [(0, "0.2"), (0, "100"), (1, "0.2"), (1, "100")]
    assert {
        (record["GLOO_DEVICE_TRANSPORT"], record["OMPI_MCA_pml"], record["label"])
        for record in seen
    } == {("TCP", "ob1", "of the command")}
    assert len({record["server"] for record in seen}) == 1, (
        "one server has forked the ranks of both jobs"
    )
    assert {record["threads"] for record in seen} == {1}, "a fork copies one thread only"
    assert not any(record["mpi"] for record in seen), "no MPI library was loaded before"


def test_the_first_rank_that_fails_ends_the_others(
    tmp_path: Path, warm_executable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server, before the other one could find out: it waits for the first rank at the
    store."""
    monkeypatch.setattr(sys, "executable", str(warm_executable))
    server = RankServer(os.environ)
    try:
        world = ForkedWorld(
            server, 2, ["benchmark=all_reduce", f"output={tmp_path}"], os.environ, 2, tmp_path
        )
        while not world.ranks:
            world.wait(START_S)
        killed, other = sorted(world.ranks, key=lambda pid: -world.ranks[pid])
        os.kill(killed, signal.SIGKILL)
        world.wait_for_end(10.0)
        assert world.codes == {
            killed: -signal.SIGKILL,
            other: world.codes.get(other),
        } and world.codes[other] in (
            -15,
            143,
        )
    finally:
        server.close()


def test_a_server_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from commbench.runtime.rank_server import RankServer;"
        " print(RankServer(os.environ).process.pid)"
    )
    pid = int(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=START_S
        ).stdout
    )
    deadline = time.monotonic() + START_S
    while Path(f"/proc/{pid}").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        with suppress(OSError):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), (
                "it must not import torch for nobody"
            )
        time.sleep(0.05)


def test_a_server_holds_nothing_that_its_command_prints_to(idle_server: RankServer) -> None:
    files = [
        str(Path(f"/proc/{idle_server.process.pid}/fd/{number}").readlink()) for number in (1, 2)
    ]
    assert files == [os.devnull, "/memfd:rank_server (deleted)"]


def test_the_output_of_a_server_that_ends_by_itself_is_kept_for_the_run(tmp_path: Path) -> None:
    server = RankServer(os.environ | {"PYTHONPATH": "/nonexistent", "PYTHONHOME": "/nonexistent"})
    world = ForkedWorld(server, 2, [], {}, 2, tmp_path)
    world.wait_for_end(START_S)
    server.close()
    assert world.status == 1 and "No module named" in (tmp_path / LOG).read_text()
