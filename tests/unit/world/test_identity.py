"""Who am I: saved environments of every launcher, nodes agreed over a real store, cores bound and given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from places import DATA
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from commbench.core.case import World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.world.control import Alone, StoreControl
from commbench.world.identity import Place, assemble, bind, connect, detect, host_identity, hosted_world
from commbench.world.slurm import meeting_point

ENVIRONMENTS = DATA / "environments"
Environment = dict[str, str]


def saved(name: str) -> list[Environment]:
    """The environments of all ranks; see the README beside them."""
    ranks: list[Environment] = json.loads((ENVIRONMENTS / f"{name}.json").read_text())
    return ranks


# ---------------------------------------------------------------- saved environments


@pytest.mark.parametrize(
    ("name", "launcher", "local_ranks", "hints"),
    [
        ("torchrun", "torchrun", [0, 1], ["0", "0"]),
        ("torchrun_two_nodes", "torchrun", [0, 1, 0, 1], ["0", "0", "1", "1"]),
        ("torchrun_in_srun", "torchrun", [0, 1], ["0", "0"]),
        ("openmpi5", "mpirun", [0, 1], [None, None]),
        ("openmpi4", "mpirun", [0, 1], [None, None]),
        ("mpich_hydra", "mpirun", [0, 1], [None, None]),
        ("srun_step", "srun", [0, 1, 0, 1], ["0", "0", "1", "1"]),
        ("srun_step_pmi2", "mpirun", [0, 1, 0, 1], [None] * 4),
    ],
)
def test_every_rank_of_a_launcher_knows_its_place(
    name: str, launcher: str, local_ranks: list[int], hints: list[str | None]
) -> None:
    places = [detect(environ) for environ in saved(name)]
    size = len(local_ranks)
    assert places == [Place(launcher, rank, size, local_ranks[rank], hints[rank]) for rank in range(size)]


@pytest.mark.parametrize("name", ["none", "sbatch_script", "salloc_shell", "salloc_interactive_step"])
def test_what_is_no_world_is_none(name: str) -> None:
    assert [detect(environ) for environ in saved(name)] == [None]


def test_every_saved_environment_is_tested() -> None:
    tested = {"torchrun", "torchrun_two_nodes", "torchrun_in_srun", "openmpi5", "openmpi4", "mpich_hydra"}
    tested |= {"srun_step", "srun_step_pmi2", "none", "sbatch_script", "salloc_shell", "salloc_interactive_step"}
    assert {file.stem for file in ENVIRONMENTS.glob("*.json")} == tested
    assert all(name in (ENVIRONMENTS / "README.md").read_text() for name in tested)


@pytest.mark.parametrize("outer", ["sbatch_script", "salloc_shell", "salloc_interactive_step", "srun_step"])
@pytest.mark.parametrize("inner", ["torchrun", "openmpi5", "openmpi4", "mpich_hydra"])
def test_the_inner_launcher_wins(outer: str, inner: str) -> None:
    assert [detect(saved(outer)[0] | environ) for environ in saved(inner)] == [detect(one) for one in saved(inner)]


def test_torchrun_inside_mpirun_is_torchrun() -> None:
    place = detect(saved("openmpi5")[1] | saved("torchrun")[0])
    assert place == Place("torchrun", 0, 2, 0, "0")


def test_a_script_that_exports_rank_itself_is_no_torchrun_world() -> None:
    assert detect({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}) is None


@pytest.mark.parametrize("special", ["4294967295", "4294967291", "4294967290", "4294967280", "", "batch", "-5"])
def test_only_numbered_steps_are_worlds(special: str) -> None:
    step = saved("srun_step")[0]
    assert detect(step | {"SLURM_STEP_ID": "17"}) is not None
    assert detect(step | {"SLURM_STEP_ID": special}) is None


# ---------------------------------------------------------------- broken environments


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("torchrun", {"RANK": "abc"}),
        ("torchrun", {"RANK": ""}),
        ("torchrun", {"RANK": "-1"}),
        ("torchrun", {"RANK": "2"}),
        ("torchrun", {"WORLD_SIZE": "two"}),
        ("torchrun", {"LOCAL_RANK": "1.5"}),
        ("openmpi5", {"OMPI_COMM_WORLD_RANK": "x"}),
        ("openmpi4", {"OMPI_COMM_WORLD_SIZE": "0"}),
        ("mpich_hydra", {"PMI_SIZE": "1"}),
        ("srun_step", {"SLURM_NTASKS": "4(x2)"}),
    ],
)
def test_a_broken_environment_is_named(name: str, broken: Environment) -> None:
    variable, value = next(iter(broken.items()))
    with pytest.raises(ConfigError, match="no usable world") as caught:
        detect(saved(name)[1] | broken)
    assert f"{variable}={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "variable"),
    [("torchrun", "WORLD_SIZE"), ("openmpi5", "OMPI_COMM_WORLD_SIZE"), ("mpich_hydra", "PMI_SIZE")],
)
def test_a_missing_size_is_named(name: str, variable: str) -> None:
    environ = {key: value for key, value in saved(name)[0].items() if key != variable}
    with pytest.raises(ConfigError, match=f"{variable}=None"):
        detect(environ)


# ---------------------------------------------------------------- the control plane of a world


def test_srun_without_a_node_list_says_what_to_export() -> None:
    environ = {name: value for name, value in saved("srun_step")[0].items() if not name.endswith("NODELIST")}
    place = detect(environ)
    assert place is not None
    with pytest.raises(ConfigError, match="export MASTER_ADDR"):
        connect(place, environ=environ)


def test_ranks_that_slurms_pmi_started_meet_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commbench.world.identity.CONNECT_S", 1.0)
    environ = saved("srun_step_pmi2")[1] | {"MASTER_ADDR": "127.0.0.1"}
    _, port = meeting_point(environ)
    place = detect(environ)
    assert place is not None and place.launcher == "mpirun"
    with pytest.raises(WorldBroken, match=rf"127\.0\.0\.1, {port}\)"):
        connect(place, environ=environ)


@pytest.mark.parametrize("broken", [{"MASTER_PORT": "abc"}, {"MASTER_PORT": "1"}])
def test_an_unreachable_meeting_point_is_a_broken_world(broken: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commbench.world.identity.CONNECT_S", 1.0)
    environ = saved("srun_step")[1] | {"MASTER_ADDR": "127.0.0.1"} | broken
    place = detect(environ)
    assert place is not None
    with pytest.raises(WorldBroken, match="rank 1 found no control plane"):
        connect(place, environ=environ)


def test_rank_0_owns_the_store_where_the_launcher_names_an_address() -> None:
    probe = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = probe.port
    del probe
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    places = [Place("srun", rank, 2, rank) for rank in range(2)]
    controls: list[StoreControl] = in_threads(2, lambda rank: connect(places[rank], environ=meeting))
    heard = in_threads(2, lambda rank: controls[rank].decide({"from": rank}, 5.0))
    assert heard == [{"from": 0}, {"from": 0}]


# ---------------------------------------------------------------- nodes


def in_threads(size: int, work: Any) -> list[Any]:
    """work(rank) in a thread for each rank; what they returned, or the first exception."""
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def assembled(hints: list[str | None]) -> list[World]:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def meet(rank: int) -> World:
        client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=10))
        return assemble(Place("torchrun", rank, len(hints), 0, hints[rank]), StoreControl(client, rank, len(hints)))

    worlds: list[World] = in_threads(len(hints), meet)
    return worlds


@pytest.mark.parametrize(
    ("hints", "nodes"),
    [
        ([None], ((0,),)),
        ([None, None, None], ((0, 1, 2),)),  # mpirun: the host alone decides
        (["0", "0", "1", "1"], ((0, 1), (2, 3))),
        (["0", "1", "0", "1"], ((0, 2), (1, 3))),  # mapped by node
        (["1", "0", "0"], ((0,), (1, 2))),  # node 0 is where rank 0 is
        (["2", "10", "2"], ((0, 2), (1,))),
    ],
)
def test_ranks_agree_on_their_nodes(hints: list[str | None], nodes: tuple[tuple[int, ...], ...]) -> None:
    worlds = assembled(hints)
    size = len(hints)
    assert worlds == [World(rank, size, nodes, (rank,), "torchrun") for rank in range(size)]


def test_processes_of_one_machine_have_one_identity() -> None:
    program = "from commbench.world.identity import host_identity; print(host_identity())"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert child.stdout.strip() == host_identity()
    assert len(set(host_identity().split("|"))) == 3


@pytest.mark.parametrize("namespace", ["--net", "--uts"])
def test_a_virtual_host_is_a_node_of_its_own(namespace: str) -> None:
    program = "from commbench.world.identity import host_identity; print(host_identity())"
    if namespace == "--uts":
        program = f"import socket; socket.sethostname('elsewhere'); {program}"
    command = ["unshare", namespace, sys.executable, "-c", program]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces can't be made here")
    assert child.stdout.strip() != host_identity()


def test_a_hosted_world_lives_in_one_process() -> None:
    world, control = hosted_world(2, 3)
    assert world == World(0, 6, ((0, 1, 2), (3, 4, 5)), (0, 1, 2, 3, 4, 5))
    assert isinstance(control, Alone)


# ---------------------------------------------------------------- cores


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The cores of this process, as if they were all of the machine; given back afterwards."""
    before = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "cpu_count", lambda: len(before))
    yield before
    os.sched_setaffinity(0, before)


def bound(mode: str, local_rank: int, ranks_here: int, cores: list[int], threads: int = 1) -> tuple[str, set[int]]:
    os.sched_setaffinity(0, cores)
    words = bind(mode, local_rank, ranks_here, threads)
    return words, os.sched_getaffinity(0)


@pytest.mark.parametrize("mode", ["core", "auto"])
def test_ranks_share_the_cores_without_overlap(mode: str, cores: list[int]) -> None:
    shares = [bound(mode, rank, len(cores), cores) for rank in range(len(cores))]
    assert shares == [(f"core {core}", {core}) for core in cores]


def test_a_single_rank_gets_every_core(cores: list[int]) -> None:
    words, mine = bound("core", 0, 1, cores)
    assert mine == set(cores)
    assert words == (f"core {cores[0]}-{cores[-1]}" if len(cores) > 1 else f"core {cores[0]}")


@pytest.mark.parametrize("mode", ["core", "auto"])
def test_a_larger_machine_is_divided_into_neighbouring_cores(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 8, 9, 10})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: held.append(cores))
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    words = [bind(mode, rank, 3, 2) for rank in range(3)]
    assert held == [{0, 1}, {2, 3}, {8, 9}]
    assert words == ["core 0-1", "core 2-3", "core 8-9"]


def test_more_ranks_than_cores_take_turns(cores: list[int]) -> None:
    ranks = 2 * len(cores) + 1
    held = [bound("core", rank, ranks, cores)[1] for rank in range(ranks)]
    assert held == [{cores[rank % len(cores)]} for rank in range(ranks)]


def test_auto_leaves_ranks_alone_that_would_not_fit(cores: list[int]) -> None:
    assert bound("auto", 0, len(cores) + 1, cores) == ("none", set(cores))
    assert bound("auto", 0, len(cores), cores, threads=2) == ("none", set(cores))


def test_auto_respects_what_the_launcher_has_bound(cores: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: len(cores) + 1)
    assert bound("auto", 0, 1, cores) == ("none", set(cores))
    assert bound("core", len(cores) - 1, len(cores), cores)[1] == {cores[-1]}


def test_none_binds_nothing(cores: list[int]) -> None:
    assert bound("none", 0, 1, cores) == ("none", set(cores))


def test_numa_binds_within_a_node(cores: list[int]) -> None:
    if not list(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")):
        with pytest.raises(ConfigError, match="bind=core"):
            bind("numa", 0, 1, 1)
        return
    shares = [bound("numa", rank, 4, cores) for rank in range(4)]
    assert all(words.startswith("numa node") and mine and mine <= set(cores) for words, mine in shares)
