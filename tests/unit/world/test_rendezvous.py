"""Which rank a process is, by saved environments of every launcher; nodes, agreed over a real
store."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from connected_ranks import on_ranks
from places import DATA
from processes import free_port
from rank_threads import no_error, together

from commbench.backends.mpi.backend import Mpi
from commbench.backends.torch.gloo import Gloo
from commbench.core.case import RankIdentity, World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.protocols import Backend
from commbench.launchers.registry import connect, detect
from commbench.launchers.srun import step_address
from commbench.world.control import SingleProcessControl, StoreControl, hosted_world
from commbench.world.rendezvous import assemble, host_identity

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
        ("srun_step_pmi2", "srun", [0, 1, 0, 1], ["0", "0", "1", "1"]),
        ("flux_run", "mpirun", [0, 0], [None, None]),
        ("pals", "mpirun", [0, 0], [None, None]),
        ("env_pytorchjob", "torchrun", [0, 0], [None, None]),
    ],
)
def test_every_rank_of_a_launcher_knows_its_place(
    name: str, launcher: str, local_ranks: list[int], hints: list[str | None]
) -> None:
    places = [detect(environ) for environ in saved(name)]
    size = len(local_ranks)
    assert places == [
        RankIdentity(launcher, rank, size, local_ranks[rank], hints[rank]) for rank in range(size)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "none",
        "sbatch_script",
        "salloc_shell",
        "salloc_interactive_step",
        "srun_pty",
        "flux_instance_in_srun",
    ],
)
def test_what_is_no_world_is_none(name: str) -> None:
    assert [detect(environ) for environ in saved(name)] == [None]


def test_every_saved_environment_is_tested() -> None:
    tested = {
        "torchrun",
        "torchrun_two_nodes",
        "torchrun_in_srun",
        "openmpi5",
        "openmpi4",
        "mpich_hydra",
    }
    tested |= {
        "srun_step",
        "srun_step_pmi2",
        "none",
        "sbatch_script",
        "salloc_shell",
        "salloc_interactive_step",
        "srun_pty",
        "flux_run",
        "flux_instance_in_srun",
        "pals",
        "env_pytorchjob",
    }
    assert {file.stem for file in ENVIRONMENTS.glob("*.json")} == tested
    assert all(name in (ENVIRONMENTS / "README.md").read_text() for name in tested)


@pytest.mark.parametrize(
    "outer",
    [
        "sbatch_script",
        "salloc_shell",
        "salloc_interactive_step",
        "srun_step",
        "srun_pty",
        "env_pytorchjob",
    ],
)
@pytest.mark.parametrize("inner", ["torchrun", "openmpi5", "openmpi4", "mpich_hydra", "flux_run"])
def test_the_inner_launcher_wins(outer: str, inner: str) -> None:
    assert [detect(saved(outer)[0] | environ) for environ in saved(inner)] == [
        detect(environ) for environ in saved(inner)
    ]


def test_torchrun_inside_mpirun_is_torchrun() -> None:
    place = detect(saved("openmpi5")[1] | saved("torchrun")[0])
    assert place == RankIdentity("torchrun", 0, 2, 0, "0")


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_world_by_env_is_taken_only_where_it_is_complete(missing: str) -> None:
    environ = saved("env_pytorchjob")[1]
    assert detect({name: value for name, value in environ.items() if name != missing}) is None
    assert detect(environ | {missing: ""}) is None


def test_a_scheduler_knows_more_of_a_rank_than_variables_that_its_script_exports() -> None:
    environ = saved("srun_step")[2] | {"RANK": "2", "WORLD_SIZE": "4"}
    place = detect(environ | {"MASTER_ADDR": "host1", "MASTER_PORT": "29500"})
    assert place == RankIdentity("srun", 2, 4, 0, "1")


@pytest.mark.parametrize(
    "special", ["4294967295", "4294967291", "4294967290", "4294967280", "", "batch", "-5"]
)
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
    environ = {
        name: value
        for name, value in saved("srun_step")[0].items()
        if not name.endswith("NODELIST")
    }
    place = detect(environ)
    assert place is not None
    with pytest.raises(ConfigError, match="export MASTER_ADDR"):
        connect(place, Gloo(), environ=environ)


def test_ranks_that_slurms_pmi_started_meet_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commbench.world.rendezvous.CONNECT_S", 1.0)
    environ = saved("srun_step_pmi2")[1] | {"MASTER_ADDR": "127.0.0.1"}
    _, port = step_address(environ)
    place = detect(environ)
    assert place is not None and place.launcher == "srun"
    with pytest.raises(WorldBroken, match=rf"127\.0\.0\.1, {port}\)"):
        connect(place, Gloo(), environ=environ)


@pytest.mark.parametrize("broken", [{"MASTER_PORT": "abc"}, {"MASTER_PORT": "1"}])
def test_an_unreachable_meeting_point_is_a_broken_world(
    broken: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commbench.world.rendezvous.CONNECT_S", 1.0)
    environ = saved("srun_step")[1] | {"MASTER_ADDR": "127.0.0.1"} | broken
    place = detect(environ)
    assert place is not None
    with pytest.raises(WorldBroken, match="rank 1 found no control plane"):
        connect(place, Gloo(), environ=environ)


@pytest.mark.parametrize("backend", [Gloo, Mpi])
def test_rank_0_owns_the_store_where_the_launcher_names_an_address(backend: type[Backend]) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [RankIdentity("srun", rank, 2, rank) for rank in range(2)]
    controls: list[StoreControl] = no_error(
        together(lambda place: connect(place, backend(), environ=meeting), places)
    )
    decisions = no_error(
        together(lambda control: control.decide({"from": control.rank}, 5.0), controls)
    )
    assert decisions == [{"from": 0}, {"from": 0}]


# ---------------------------------------------------------------- nodes


def assembled(hints: list[str | None]) -> list[World]:
    def meet(control: StoreControl) -> World:
        return assemble(
            RankIdentity("torchrun", control.rank, len(hints), 0, hints[control.rank]), control
        )

    return on_ranks(len(hints), meet)


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
def test_ranks_agree_on_their_nodes(
    hints: list[str | None], nodes: tuple[tuple[int, ...], ...]
) -> None:
    worlds = assembled(hints)
    size = len(hints)
    assert worlds == [World(rank, size, nodes, (rank,), "torchrun") for rank in range(size)]


def test_processes_of_one_machine_have_one_identity() -> None:
    program = "from commbench.world.rendezvous import host_identity; print(host_identity())"
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True
    )
    assert child.stdout.strip() == host_identity()
    assert len(set(host_identity().split("|"))) == 3


@pytest.mark.parametrize("namespace", ["--net", "--uts"])
def test_a_virtual_host_is_a_node_of_its_own(namespace: str) -> None:
    program = "from commbench.world.rendezvous import host_identity; print(host_identity())"
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
    assert isinstance(control, SingleProcessControl)
