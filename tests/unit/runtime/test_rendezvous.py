"""Which rank a process is, by saved environments of every launcher; nodes, agreed over a real
store."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
import sys
import time

import psutil
import pytest
from connected_ranks import connected, on_ranks
from places import DATA
from processes import free_port, need
from rank_threads import no_error, together

from commbench.backends.mpi.backend import Mpi
from commbench.backends.torch.gloo import Gloo
from commbench.core.case import RankIdentity, World
from commbench.core.errors import ConfigError, NoProcess, WorldBroken
from commbench.core.protocols import Backend
from commbench.hardware.network import meeting_address
from commbench.runtime.control import StoreControl, hosted_world
from commbench.runtime.exit_protocol import cause_of
from commbench.runtime.launchers.join import connect
from commbench.runtime.launchers.registry import detect, settle_world
from commbench.runtime.launchers.srun import step_address
from commbench.runtime.rendezvous import (
    address_for_peers,
    assemble,
    exported_address,
    host_identity,
)

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
        ("mpirun_rsh", "mpirun", [0, 1], [None, None]),
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
def test_an_environment_without_a_world_has_no_identity(name: str) -> None:
    assert [detect(environ) for environ in saved(name)] == [None]


def test_every_saved_environment_is_tested() -> None:
    tested = {
        "torchrun",
        "torchrun_two_nodes",
        "torchrun_in_srun",
        "openmpi5",
        "openmpi4",
        "mpich_hydra",
        "mpirun_rsh",
        "prterun",
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
    with pytest.raises(ConfigError, match="no usable ranks") as caught:
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
    monkeypatch.setattr("commbench.runtime.rendezvous.CONNECT_S", 1.0)
    environ = saved("srun_step_pmi2")[1] | {"MASTER_ADDR": "127.0.0.1"}
    _, port = step_address(environ)
    place = detect(environ)
    assert place is not None and place.launcher == "srun"
    with pytest.raises(WorldBroken, match=rf"127\.0\.0\.1, {port}\)"):
        connect(place, Gloo(), environ=environ)


def test_where_rank_0_never_comes_the_wait_is_as_long_as_it_says_and_torch_is_silent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    client_store_s = 2.0
    monkeypatch.setattr("commbench.runtime.rendezvous.CONNECT_S", client_store_s)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    begin_s = time.monotonic()
    with pytest.raises(WorldBroken, match=r"within 2 s: .*refused; .*rank 0 has not started"):
        connect(RankIdentity("srun", 1, 2, 1), Gloo(), environ=meeting)
    assert time.monotonic() - begin_s < 2 * client_store_s
    assert capfd.readouterr().err == ""


def test_a_store_that_was_there_before_rank_0_does_not_stand_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torchrun's agent has one."""
    monkeypatch.setattr("commbench.runtime.rendezvous.FIRST_MEETING_S", 0.5)
    _, alone = connected(2)
    place = RankIdentity("torchrun", 1, 2, 1)
    late = r"rank 0 did not arrive at 'the first meeting' within 0\.5 s"
    with pytest.raises(WorldBroken, match=late) as caught:
        assemble(place, alone)
    assert cause_of(caught.value) == "own", "rank 0 can't say it"


@pytest.mark.parametrize("name", ["torchrun", "env_pytorchjob", "openmpi5", "srun_step"])
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MASTER_PORT", "tcp://10.0.0.1:29500"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("MASTER_PORT", "29500 "),
        ("MASTER_ADDR", "10.0.0.1:29500"),
        ("MASTER_ADDR", "tcp://10.0.0.1"),
    ],
)
def test_an_address_that_is_none_is_refused_at_the_door_by_its_variable(
    name: str, variable: str, value: str
) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} | {variable: value}
    with pytest.raises(ConfigError, match=f"{variable}='{value}' is not a (port from 1|host;)"):
        settle_world(saved(name)[0] | meeting)


@pytest.mark.parametrize("host", ["job-master-0.ns", "10.0.0.1", "fd00::1", "fe80::1%eth0", "::1"])
def test_every_kind_of_address_is_one(host: str) -> None:
    environ = {"MASTER_ADDR": host, "MASTER_PORT": "29500"}
    assert exported_address(environ) == (host, 29500)


@pytest.mark.parametrize("backend", [Gloo(), Mpi()])
def test_a_port_that_another_server_holds_is_named_by_rank_0(backend: Backend) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        with pytest.raises(WorldBroken, match=rf"port {port} of this host is held .* MASTER_PORT"):
            connect(RankIdentity("srun", 0, 2, 0), backend, environ=meeting)


def test_a_loopback_interface_that_is_down_is_named_at_once() -> None:
    need("unshare", "--net")
    program = "from commbench.runtime.store import connected; connected('127.0.0.1', 29500, 60.0)"
    command = ["unshare", "--net", sys.executable, "-c", program]
    child = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert child.stderr.splitlines()[-1].endswith("is down: ip link set lo up")


def test_an_unreachable_meeting_point_is_a_broken_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commbench.runtime.rendezvous.CONNECT_S", 1.0)
    environ = saved("srun_step")[1] | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    place = detect(environ)
    assert place is not None
    with pytest.raises(WorldBroken, match="rank 1 found no control plane"):
        connect(place, Gloo(), environ=environ)


def test_a_thread_that_the_system_refuses_is_named_with_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*words: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("commbench.runtime.launchers.srun.Srun.open_store", refused)
    place = detect(saved("srun_step")[1])
    assert place is not None
    with pytest.raises(NoProcess, match=r"of its control group \(pids.max\)"):
        connect(place, Gloo(), environ={})


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
    program = "from commbench.runtime.rendezvous import host_identity; print(host_identity())"
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True
    )
    assert child.stdout.strip() == host_identity()
    assert len(set(host_identity().split("|"))) == 3


@pytest.mark.parametrize("namespace", ["--net", "--uts"])
def test_a_virtual_host_is_a_node_of_its_own(namespace: str) -> None:
    program = "from commbench.runtime.rendezvous import host_identity; print(host_identity())"
    if namespace == "--uts":
        program = f"import socket; socket.sethostname('elsewhere'); {program}"
    need("unshare", namespace)
    command = ["unshare", namespace, sys.executable, "-c", program]
    child = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert child.stdout.strip() != host_identity()


def test_a_hosted_world_lives_in_one_process() -> None:
    world, control = hosted_world(2, 3)
    assert world == World(0, 6, ((0, 1, 2), (3, 4, 5)), (0, 1, 2, 3, 4, 5))
    assert control.size == 1


# ---------------------------------------------------------------- addresses of this machine's real
# interfaces

ONE_NODE = World(0, 2, ((0, 1),), (0,))
TWO_NODES = World(0, 2, ((0,), (1,)), (0,))


@pytest.fixture
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)


def outer_addresses() -> set[str]:
    ipv4 = [
        entry.address
        for addresses in psutil.net_if_addrs().values()
        for entry in addresses
        if entry.family == socket.AF_INET
    ]
    return {address for address in ipv4 if not ipaddress.ip_address(address).is_loopback}


@pytest.mark.usefixtures("nothing_chosen")
def test_one_node_talks_over_loopback() -> None:
    assert address_for_peers(None, ONE_NODE, None) == "127.0.0.1"


@pytest.mark.usefixtures("nothing_chosen")
def test_a_chosen_interface_comes_first() -> None:
    assert address_for_peers("lo", TWO_NODES, None) == "127.0.0.1"


def test_an_unknown_interface_names_those_that_exist() -> None:
    with pytest.raises(
        ConfigError, match=r"interface=nosuch0 does not exist on this host; it has: .*lo"
    ):
        meeting_address("nosuch0")


@pytest.mark.usefixtures("nothing_chosen")
@pytest.mark.skipif(not outer_addresses(), reason="no address but loopback")
@pytest.mark.parametrize(
    "meeting", ["127.0.0.1", "localhost", "no-such-host.invalid", *sorted(outer_addresses())[:1]]
)
def test_several_nodes_never_talk_over_loopback(
    monkeypatch: pytest.MonkeyPatch, meeting: str
) -> None:
    """Also on the meeting point's own host, whose name may be a loopback address there."""
    monkeypatch.setenv("MASTER_ADDR", meeting)
    assert address_for_peers(None, TWO_NODES, None) in outer_addresses()


@pytest.mark.usefixtures("nothing_chosen")
def test_the_route_to_the_stores_host_is_asked_where_no_address_was_exported() -> None:
    class Store:
        host = "127.0.0.1"

    class Prefixed:
        underlying_store = Store()

    own = outer_addresses()
    if own:
        assert address_for_peers(None, TWO_NODES, Prefixed()) in own
    else:
        with pytest.raises(ConfigError, match="interface=NAME"):
            address_for_peers(None, TWO_NODES, Prefixed())
