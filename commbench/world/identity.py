"""Who am I? The launcher's environment says rank and size; the ranks tell each other on which node they are."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from commbench.core.case import World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.protocols import Control
from commbench.core.ranges import format_ranges, parse_ranges
from commbench.hardware.mpi_library import load, mismatch
from commbench.hardware.network import is_loopback, meeting_address, own_address

from .control import Alone, StoreControl
from .control_tree import join
from .slurm import meeting_point

BACKLOG = 1024  # all ranks of a world come at once
CONNECT_S = 120.0  # the slowest rank may still be importing from a network file system
FLAT_RANKS = 64  # up to here rank 0's store alone is cheap enough: below 0.1 s of its processor's time a case


@dataclass(frozen=True)
class Place:
    """A rank's place in a world that a launcher made. `node_hint` is the launcher's own node number, if it has one."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    node_hint: str | None = None


def detect(environ: Mapping[str, str]) -> Place | None:
    """The world this process was started in; None outside one. torchrun inside mpirun or srun counts as torchrun."""
    if "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ:
        hint = environ.get("GROUP_RANK")
        return _place("torchrun", environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", hint)
    if "OMPI_COMM_WORLD_RANK" in environ:
        return _place("mpirun", environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    if "PMI_RANK" in environ:
        local = "MPI_LOCALRANKID" if "MPI_LOCALRANKID" in environ else "SLURM_LOCALID"  # srun --mpi=pmi2
        return _place("mpirun", environ, "PMI_RANK", "PMI_SIZE", local)
    if "SLURM_PROCID" in environ and _is_step(environ):
        hint = environ.get("SLURM_NODEID")
        return _place("srun", environ, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", hint)
    return None


def _is_step(environ: Mapping[str, str]) -> bool:
    """srun's tasks are a world; an sbatch script has SLURM_PROCID too, and is none."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < 0xFFFFFFF0  # the batch, interactive and extern steps count down from the top


def _is_slurms_pmi(environ: Mapping[str, str]) -> bool:
    """srun --mpi=pmi2 exports what hydra does; ranks without MPICH can't meet over it."""
    return "MPI_LOCALRANKID" not in environ and "OMPI_COMM_WORLD_RANK" not in environ and _is_step(environ)


def _place(
    launcher: str, environ: Mapping[str, str], rank: str, size: str, local: str, hint: str | None = None
) -> Place:
    try:
        values = [int(environ.get(name, "0" if name == local else "")) for name in (rank, size, local)]
        if not 0 <= values[0] < values[1]:
            raise ValueError("a rank outside its world")
    except ValueError as error:
        seen = ", ".join(f"{name}={environ.get(name)!r}" for name in (rank, size, local))
        raise ConfigError(f"{launcher} exported no usable world: {seen}; start again with {launcher}") from error
    return Place(launcher, values[0], values[1], values[2], hint)


def connect(
    place: Place,
    library: str = "auto",
    threads: str = "funneled",
    environ: Mapping[str, str] = os.environ,
    interface: str | None = None,
) -> StoreControl:
    """The control plane of this world; raises ConfigError or WorldBroken. `library` is the MPI of mpirun's worlds."""
    from torch.distributed.distributed_c10d import PrefixStore

    try:
        if place.launcher == "torchrun":
            owner = environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and place.rank == 0
            store = _named_store(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), owner)
        elif "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
            store = _named_store(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), place.rank == 0)
        elif place.launcher == "mpirun" and not _is_slurms_pmi(environ):
            store = _store_over_mpi(place, library, threads, interface)
        else:
            store = _named_store(*meeting_point(environ), place.rank == 0)
    except (RuntimeError, KeyError, ValueError, OSError, OverflowError) as error:
        raise WorldBroken(f"rank {place.rank} found no control plane: {error}") from error
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return StoreControl(PrefixStore(f"commbench/{attempt}", store), place.rank, place.size)


def _named_store(host: str, port: int, owner: bool) -> Any:
    """The store at an address that was given; its owner listens there and nowhere else, where the address is its own.

    A name that is loopback only here (/etc/hosts often says so of a host's own) means another address elsewhere.
    """
    if not owner:
        return _store(host, port)
    address = own_address(host)
    if address is None or (is_loopback(address) and host not in (address, "localhost")):
        return _hosted(host, port, "")
    return _hosted(host, port, address)


def _store(host: str, port: int) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=CONNECT_S), wait_for_workers=False)


def _hosted(host: str, port: int, address: str) -> Any:
    """A store that listens at that address only ("": at all of them); others know it as `host`. Port 0: a free one."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # a connection for each rank: the usual 1024 files would end a world of 1000 ranks
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if not address and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
    return TCPStore(
        host,
        int(listener.getsockname()[1]),
        is_master=True,
        timeout=timedelta(seconds=CONNECT_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _store_over_mpi(place: Place, library: str, threads: str, interface: str | None) -> Any:
    """mpirun exports no address: rank 0 opens a port of its own and tells the others once, over MPI."""
    mpi = load(library, threads)
    world = mpi.COMM_WORLD
    if world.size != place.size:
        raise ConfigError(mismatch(place.size, mpi))
    homes = world.allgather(host_identity())
    store: Any = None
    told: tuple[str, int, str | None] = ("", 0, None)
    if world.rank == 0:
        try:
            address = _meeting_address(homes, interface)
            store = _hosted(address, 0, address)
            told = (address, store.port, None)
        except (ConfigError, OSError, RuntimeError) as error:  # the others must not wait for an address
            told = ("", 0, f"rank 0 can't host the meeting point: {error}")
    host, port, problem = world.bcast(told)
    if problem is not None:
        raise ConfigError(problem)
    return store if store is not None else _store(host, port)


def _meeting_address(homes: list[str], interface: str | None) -> str:
    """Of the chosen interface; else loopback on one node; else that of the way to the others. Raises ConfigError."""
    others = (home.partition("|")[0] for home in dict.fromkeys(homes) if home != homes[0])
    return meeting_address(interface, *others)


def host_identity() -> str:
    """Equal for processes that share a kernel, a host name and a network: one node."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    network = Path("/proc/self/ns/net")
    parts = [socket.gethostname(), boot.read_text().strip() if boot.exists() else ""]
    return "|".join([*parts, str(network.readlink()) if network.exists() else ""])


def assemble(place: Place, control: Control) -> World:
    """Agree on the nodes: ranks with the same identity and the same launcher's node number share one."""
    identity = f"{place.node_hint or ''}|{host_identity()}"
    identities = control.gather(identity, CONNECT_S, "the first meeting")
    nodes = control.decide(_grouped(identities), CONNECT_S, "the first meeting")
    return World(place.rank, place.size, tuple(tuple(node) for node in nodes), (place.rank,), place.launcher)


def by_node(world: World, control: StoreControl) -> Control:
    """The control plane to go on with: in a large world of nodes the ranks meet on their node first. All call it."""
    pays = world.size > FLAT_RANKS and 1 < len(world.nodes) < world.size
    return join(world, control, CONNECT_S) if pays else control


def _grouped(identities: list[str]) -> list[list[int]]:
    nodes: dict[str, list[int]] = {}
    for rank, identity in enumerate(identities):
        nodes.setdefault(identity, []).append(rank)
    return list(nodes.values())


def hosted_world(nodes: int, ranks_per_node: int) -> tuple[World, Control]:
    """A world whose ranks all live in this process."""
    size = nodes * ranks_per_node
    layout = tuple(tuple(range(node * ranks_per_node, (node + 1) * ranks_per_node)) for node in range(nodes))
    return World(0, size, layout, tuple(range(size))), Alone()


def bind(mode: str, local_rank: int, ranks_here: int, threads_per_rank: int) -> str:
    """Pin this process to its share of the cores it may use; what was done, in words.

    auto pins to whole cores where every rank gets as many as it has threads, and else leaves all to the scheduler.
    """
    cores = sorted(os.sched_getaffinity(0))
    units = _physical(cores)
    share = len(units) // ranks_here
    if mode == "none" or (mode == "auto" and (share < max(1, threads_per_rank) or _narrowed(cores))):
        return "none"
    if mode == "numa":
        return _bind_numa(local_rank, ranks_here, cores)
    share = max(1, share)
    first = (local_rank * share) % len(units)
    chosen = sorted(core for unit in units[first : first + share] for core in unit)
    os.sched_setaffinity(0, set(chosen))
    return f"core {format_ranges(chosen)}"


def _physical(cores: list[int]) -> list[list[int]]:
    """The cores' hardware threads grouped by physical core, in order: ranks must not share one while others idle."""
    units: dict[tuple[int, ...], list[int]] = {}
    for core in cores:
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings = tuple(parse_ranges(file.read_text()) if file.exists() else ()) or (core,)
        units.setdefault(siblings, []).append(core)
    return list(units.values())


def _narrowed(cores: list[int]) -> bool:
    """The launcher has already bound this process."""
    return len(cores) < (os.cpu_count() or 1)


def _bind_numa(local_rank: int, ranks_here: int, cores: list[int]) -> str:
    nodes = []
    for path in sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")):
        members = set(parse_ranges(path.read_text())) & set(cores)
        if members:
            nodes.append((path.parent.name, members))
    if not nodes:
        raise ConfigError("bind=numa found no NUMA nodes in /sys; use bind=core or bind=none")
    name, members = nodes[local_rank * len(nodes) // ranks_here % len(nodes)]
    os.sched_setaffinity(0, members)
    return f"numa {name}"
