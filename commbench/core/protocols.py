"""Protocols: what a backend, a launcher and a writer must provide, and the control plane that they
share."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .case import RankIdentity, World, options_text
from .layout import Layout
from .program import BufferSpec, Pattern, Program, View
from .variables import Case, Device, Engine, Ipc, Mode, Registration, Staging

# in Communicator.facts: the ranks in the order in which the library's log numbers them
GROUP_ORDER = "group_order"

Launchers = Literal["any", "starts_mpi", "none"]
Texts = tuple[str, ...]
NamedValues = tuple[tuple[str, Any], ...]


class Buffer(Protocol):
    """Allocated memory. For rotation, it holds `pool` copies of all slots, one after another."""

    spec: BufferSpec
    pool: int

    def write(self, pattern: Pattern | None) -> None:
        """Fill every copy with the pattern, or with the sentinel if it is None."""

    def count_wrong(self, pattern: Pattern, copies: int) -> int:
        """The number of elements, including guard words, that differ from the pattern in the first
        `copies` copies."""

    def read(self, view: View, copy: int) -> NDArray[Any]:
        """The elements of a view of a copy, as the dtype's machine words."""


class Runner(Protocol):
    """A lowered program. `progress` holds (repetition, step) and may be read by another thread;
    step is -1 in the Python loop, whose stack shows it. `calls` are the library's calls, by
    step."""

    progress: NDArray[np.int64]
    calls: Texts

    def __call__(self, n: int) -> NDArray[np.int64]:
        """Run n repetitions and return stamps [hosted, n, 2] in ns. Raises CommunicationError."""


class Control(Protocol):
    """The control plane: how ranks exchange values, independently of the library that is measured.

    It consists of two operations, `meet` and `decide`. Methods with a deadline raise Missing if
    ranks do not arrive in time.
    """

    store: Any  # torch's, or runtime.store.KeyValueStore; None where all ranks live in one process
    rank: int
    size: int

    def meet(self, payload: bytes, deadline_s: float, meeting: str) -> list[bytes]:
        """The payloads of all ranks on rank 0, an empty list elsewhere."""

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any:
        """Rank 0's value, everywhere."""

    def subset(self, ranks: Sequence[int]) -> Control:
        """A control plane for some of the ranks; only they may use it."""

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        """The JSON values of all ranks on rank 0, an empty list elsewhere."""
        parts = self.meet(json.dumps(value).encode(), deadline_s, meeting)
        values: list[Any] = json.loads(b"[" + b",".join(parts) + b"]")
        return values

    def collect(
        self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect"
    ) -> list[NDArray[np.int64]]:
        """Like gather, for arrays."""
        head = np.array([array.ndim, *array.shape], dtype=np.int64)
        return _unpacked_arrays(self.meet(head.tobytes() + array.tobytes(), deadline_s, meeting))

    def exchange(self, value: Any, deadline_s: float, meeting: str = "exchange") -> list[Any]:
        """The JSON values of all ranks, everywhere."""
        values: list[Any] = self.decide(
            self.gather(value, deadline_s, meeting), deadline_s, meeting
        )
        return values

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        """The first rank's problem, as text, everywhere; None if no rank has one."""
        problems = self.gather(problem, deadline_s, meeting)
        first = next((problem for problem in problems if problem is not None), None)
        agreed: str | None = self.decide(first, deadline_s, meeting)
        return agreed

    def farewell(self, deadline_s: float) -> None:
        """The last meeting. Rank 0 leaves last, because it may host the store."""
        self.gather(None, deadline_s, "farewell")


def _unpacked_arrays(parts: Sequence[bytes]) -> list[NDArray[np.int64]]:
    """The inverse of collect's packing: number of dimensions, shape, elements. Fast where all have
    the same shape."""
    if not parts:
        return []
    words = np.frombuffer(parts[0], dtype=np.int64)
    dimensions = int(words[0])
    shape = tuple(words[1 : 1 + dimensions].tolist())
    start = 8 * (1 + dimensions)
    if len({part[:start] for part in parts}) > 1:
        return [array for part in parts for array in _unpacked_arrays([part])]
    words = np.frombuffer(b"".join(parts), dtype=np.int64).reshape(len(parts), -1)
    return list(words[:, start // 8 :].reshape(len(parts), *shape))


class Communicator(Protocol):
    """An open library on a set of ranks. Communicators inherit from this class for its defaults."""

    size: int
    hosted: tuple[int, ...]  # its ranks that live in this process

    def subset(self, ranks: Sequence[int]) -> Communicator | None:
        """The same library on some ranks; None if this process hosts none of them.

        All ranks must call it in the same order, because torch names a group by the number of
        groups that the process has created. Each call opens a new group, except for all ranks.
        """

    def for_graphs(self, ranks: Sequence[int]) -> Communicator | None:
        """Like `subset`, for the cases whose calls are captured in graphs: a new group, also of all
        ranks, where a capture changes later calls of its group."""
        return self.subset(ranks)

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        """Raises MemoryError."""

    def registered_memory(self, registration: Registration) -> AbstractContextManager[None]:
        """What is allocated in the block is registered by the next `prepare`, in backends whose
        axes name it."""
        return nullcontext()

    def release_memory(self) -> None:
        """End the registration: the buffers are no longer used."""
        return None

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> Runner:
        """Lower the programs of the hosted ranks; all ranks must call it. Raises Unsupported."""

    def deliver(self) -> None:
        """After a block, on all ranks: until all messages have arrived, in libraries that move them
        only while the sender calls."""
        return None

    def counters(self) -> dict[str, float]:
        """The counters that the library or the kernel keeps for this rank; empty if there are
        none."""
        return {}

    def profiled(self, path: Path | None) -> AbstractContextManager[Any]:
        """Record what the library does in the block, into a file that `commbench replay` reads, or
        for the facts only; nothing without a profiler."""
        return nullcontext()

    def facts(self) -> dict[str, Any]:
        """Library, version, thread level and transport in use; GROUP_ORDER if the library numbers
        ranks differently."""

    def settings(
        self, nodes: Sequence[Sequence[int]], exported: Container[str]
    ) -> list[dict[str, str]]:
        """What somebody has set in the library: name, value, source, and the `problem` of one
        without effect in a world with these ranks on its nodes. commbench has `exported` some
        itself. May take 0.1 s."""
        return []

    def close(self, abort: bool = False) -> None: ...


class RankCommunicator(Communicator, Protocol):
    """A communicator in a process that hosts one rank."""

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> Runner:
        (rank,) = self.hosted
        return self.runner(programs[rank], buffers[rank], mode)

    def runner(self, program: Program, buffers: Mapping[str, Any], mode: Mode) -> Runner:
        """Lower the program of the hosted rank; all ranks must call it. Raises Unsupported."""


@runtime_checkable
class Backend(Protocol):
    """A library that can be measured; can be imported without it. Backends inherit from this class
    for its defaults."""

    name: ClassVar[str]
    devices: ClassVar[tuple[Device, ...]]  # of cpu and cuda
    # which launchers start its ranks: any, starts_mpi (see Launcher), none (it hosts all ranks
    # itself)
    launchers: ClassVar[Launchers] = "any"
    engines: ClassVar[tuple[Engine, ...]] = ("python",)  # engine=auto is the first
    axes: ClassVar[Texts] = ()  # its own independent variables, such as streams
    threads_per_rank: ClassVar[int] = 1  # busy during a measurement
    # one call sends all messages to a peer that are posted before a wait
    joins_messages: ClassVar[bool] = False
    # whether copies between host and device go on beside its operations
    starts_copies: ClassVar[bool] = False
    needs_torch: ClassVar[bool] = True  # its ranks import torch, and meet through torch's TCPStore
    has_profiler: ClassVar[bool] = False  # see Communicator.profiled

    @property
    def library(self) -> str | None:
        """The MPI library whose mpirun starts its ranks (auto, openmpi, mpich or a path); None if
        it needs none."""
        return None

    @property
    def hosts_ranks(self) -> bool:
        """Whether it hosts all ranks itself, in one process, on a clock of its own."""
        return self.launchers == "none"

    @property
    def threads(self) -> str:
        """The thread level requested from MPI where ranks meet over MPI."""
        return "funneled"

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Its parameters, which are variables of each case: the fields of a dataclass."""
        return options_text(
            {field.name: getattr(self, field.name) for field in fields(self)}
            if is_dataclass(self)
            else {}
        )

    def remark(self, device: Device) -> str | None:
        """What the user should know before the run about this library on this device."""
        return None

    def sharing_refusal(self, environ: Mapping[str, str]) -> str | None:
        """Why two ranks can't use the same GPU; None if they can."""
        return None

    def missing(self, device: Device) -> str | None:
        """Why this machine can't run it on cpu or cuda, found without importing the library; None
        if it can."""

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        """The reason to skip a case, from declared tables; None if it can run. `program` is that of
        a rank of the case, or of one that differs from it in its pair only."""

    def staging(self, program: Program) -> Staging:
        """How the messages of a program reach device memory: none (the library accesses it
        directly), library (it copies them through host memory), pinned (commbench copies them
        through pinned host memory, in the timed steps).
        """
        return "none"

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        """The environment variables to export before the library starts. Raises ConfigError if they
        contradict."""
        return {}

    def rails(self, facts: Mapping[str, Any]) -> list[str]:
        """The overrides that choose each of the network cards of a node with these facts, one
        override a card; empty where the library can't be told."""
        return []

    def open(self, world: World, control: Control, device: Device) -> Communicator: ...


class RankVariables(NamedTuple):
    """What a launcher says of the variables that its ranks have."""

    own: Texts = ()  # prefixes of what it exports; no launcher forwards that to its ranks
    recorded: Texts = ()  # prefixes of what run.json has
    # prefixes of what is not recorded: set by the launcher, not by users. What differs between
    # ranks is not recorded either: names that end in one of RANK_WORDS (hardware/machine_facts.py)
    internal: Texts = ()
    worlds: Texts = ()  # with those of other launchers, they differ between any two worlds
    terminals: Texts = ()  # only of ranks that a user may type commands into


class Launcher(Protocol):
    """A program that starts ranks: how it is called, how its ranks are recognised and where they
    meet.

    Launchers inherit from this class for its defaults. `_target_` of a file launcher/NAME.yaml is
    the class of launcher NAME.
    """

    name: ClassVar[str]
    # what a user calls to start its ranks without commbench, the usual program first
    programs: ClassVar[Texts] = ()
    usage: ClassVar[str] = ""  # a line of commbench --help, beside those about all launchers
    # The order in which launchers try to recognise a rank, and in which they are defaults; the
    # first match wins. So a launcher that may run inside the tasks of another one needs the lower
    # number, and so does one that exports the variables of another one (PMI_RANK). Where these two
    # rules contradict each other, `detect` of the launcher with the lower number returns None for
    # the ranks of the other one (runtime/launchers/mpirun.py does for those of srun).
    precedence: ClassVar[int]
    needs_scheduler: ClassVar[bool] = False  # so it is never a backend's default
    starts_mpi: ClassVar[bool] = False  # whether its ranks can initialise MPI
    # whether its ranks load MPI to find each other, with any backend
    meets_over_mpi: ClassVar[bool] = False
    # whether the user calls it once on each node, where the output of its ranks appears
    is_called_per_node: ClassVar[bool] = False
    # whether the rank server forks its ranks; `command` starts the rank server
    forks: ClassVar[bool] = False
    variables: ClassVar[RankVariables] = RankVariables()
    fact_scopes: ClassVar[str] = ""  # their rows in the table of results/fact_scopes.py
    # settings of libraries that `environment` may have, whichever library the ranks load
    library_settings: ClassVar[Texts] = ()
    mpi_options: ClassVar[str] = ""  # which of its options belong to which MPI library
    # keys of each Hydra launcher that starts the ranks of a job with this launcher, see `queued`
    queue_keys: ClassVar[Texts] = ()

    @property
    def has_allocation(self) -> bool:
        """Whether this process runs inside an allocation whose nodes this launcher starts ranks
        on."""
        return False

    @property
    def is_local(self) -> bool:
        """Whether its ranks are descendants of its process, on this machine."""
        return True

    @property
    def reach(self) -> int:
        """The most nodes that it can start ranks on."""
        return 1

    def detect(self, environ: Mapping[str, str]) -> RankIdentity | None:
        """The rank that this launcher has started with this environment; None if it did not start
        it.

        Raises ConfigError if its variables contradict each other."""

    def foreign(self, identity: RankIdentity, environ: Mapping[str, str]) -> str | None:
        """Why a process is not the rank that `detect` returns; None if it may be."""
        return None

    def address(self, environ: Mapping[str, str]) -> tuple[str, int] | None:
        """The host and port where the ranks meet, by variables that this launcher or its program
        exports; None where ranks find them in another way. MASTER_ADDR and MASTER_PORT of the
        user's shell do not reach ranks that commbench starts.

        Raises ConfigError for values that are none."""
        return None

    def open_store(
        self,
        identity: RankIdentity,
        environ: Mapping[str, str],
        backend: Backend,
        interface: str | None,
    ) -> Any:
        """The store through which the ranks of a world meet, of the kind that the backend needs.

        Raises ConfigError, OSError, RuntimeError, KeyError, ValueError."""

    def command(
        self, layout: Layout, worker: Sequence[str], library: str | None, exports: Sequence[str]
    ) -> list[str]:
        """The command line that starts the ranks: it contains sys.executable, and ends with the
        words of `worker`.

        `library` is the MPI library that the ranks load (backend.library), None if they load none;
        `exports` are the names of variables that ranks on other hosts need. Raises ConfigError if
        the launcher's program is not installed."""

    def environment(self, ranks_per_node: int) -> dict[str, str]:
        """The variables to export to the ranks, beside the inherited ones; called once per world,
        in the parent.

        By default one thread per rank, as torchrun sets it."""
        return {"OMP_NUM_THREADS": "1"}

    def queued(self, layout: Layout, library: str | None, output: str) -> NamedValues:
        """The settings of a Hydra launcher with `queue_keys` that make it start such a world, whose
        logs belong below `output`; see `command` for `library`. Raises ConfigError."""
        return ()

    def manual_command(self, layout: Layout, worker: Sequence[str]) -> str | None:
        """The command for a user to start such a world if this process can't; None if there is
        none."""
        return None
