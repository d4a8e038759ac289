"""What a backend, a launcher and a writer must provide, and the control plane they share. Declarations only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .case import Case, Mode, RankIdentity, World, options_text
from .program import BufferSpec, Pattern, Program

GROUP_ORDER = "group_order"  # of Communicator.facts: its ranks in the order in which the library's log numbers them


class Buffer(Protocol):
    """Memory that was touched. `pool` copies of all slots lie behind one another for rotation."""

    spec: BufferSpec
    pool: int

    def write(self, pattern: Pattern | None) -> None:
        """Fill every copy; None writes the sentinel."""

    def count_wrong(self, pattern: Pattern, copies: int) -> int:
        """How many elements of the first `copies` copies, guard words included, differ."""


class Runner(Protocol):
    """A lowered program. `progress` holds (repetition, step) and may be read from another thread; step is -1 where the
    engine does not write it (the Python loop: its stack tells). `calls` are the library's calls, by step."""

    progress: NDArray[np.int64]
    calls: tuple[str, ...]

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Run n repetitions; stamps [hosted, n, 2] in ns. Raises CommunicationError.
        With sync=window repetition r begins no earlier than starts[r], ns on the clock of the stamps."""


class Control(Protocol):
    """The control plane: where the ranks meet, independently of the library that is measured."""

    store: Any  # torch's, or world.store.KeyValueStore; None where all ranks live in one process
    rank: int
    size: int

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        """JSON values of all ranks on rank 0, an empty list elsewhere. Raises Missing."""

    def collect(self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect") -> list[NDArray[np.int64]]:
        """The same for arrays."""

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any:
        """Rank 0's value, everywhere. Raises Missing(0)."""

    def exchange(self, value: Any, deadline_s: float, meeting: str = "exchange") -> list[Any]:
        """JSON values of all ranks, everywhere. Raises Missing."""

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        """None if no rank has a problem, else the first one, as text, everywhere."""

    def subset(self, ranks: Sequence[int]) -> Control:
        """The control plane of some ranks; only they may use it."""

    def farewell(self, deadline_s: float) -> None:
        """The last meeting: rank 0 may be the one that hosts the store, and leaves last."""


class Communicator(Protocol):
    """An opened library on a set of ranks."""

    size: int

    @property
    def hosted(self) -> tuple[int, ...]:
        """The ranks of this communicator that live in this process."""

    def subset(self, ranks: Sequence[int]) -> Communicator | None:
        """The same library on some ranks, None where this process hosts none of them.

        All ranks call it, in the same order: torch names a group by how many groups the process knows already. Each
        call opens a new group, but for all ranks.
        """

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        """Raises MemoryError."""

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> Runner:
        """Lower the programs of the hosted ranks, on all ranks at once. Raises Unsupported."""

    def counters(self) -> dict[str, float]:
        """What the library or the kernel has counted for this rank up to now; empty where nothing does."""

    def facts(self) -> dict[str, Any]:
        """Library, version, thread level, transport: what was really opened; GROUP_ORDER where the library numbers
        the ranks in another order."""

    def close(self, abort: bool = False) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """A library that can be measured; importable without it. A backend inherits from this class for the defaults."""

    name: ClassVar[str]
    devices: ClassVar[tuple[str, ...]]  # of cpu and cuda
    # which launchers start its ranks: any, starts_mpi (see Launcher), none (it hosts all ranks itself)
    launchers: ClassVar[str] = "any"
    engines: ClassVar[tuple[str, ...]] = ("python",)  # the first is `auto`
    axes: ClassVar[tuple[str, ...]] = ()  # independent variables of its own, such as streams
    threads_per_rank: ClassVar[int] = 1  # that are busy during a measurement
    joins_messages: ClassVar[bool] = False  # messages to a peer that are posted before a wait travel in one call
    needs_torch: ClassVar[bool] = True  # in its ranks, which then meet through torch's TCPStore
    shares_gpu: ClassVar[bool] = True  # whether two ranks may use the same GPU

    @property
    def library(self) -> str | None:
        """The MPI library whose mpirun starts its ranks (auto, openmpi, mpich or a path); None if it needs none."""
        return None

    @property
    def threads(self) -> str:
        """The thread level requested from MPI where ranks meet over MPI."""
        return "funneled"

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Its own parameters, which are variables of each case: its fields, if it is a dataclass."""
        return options_text(
            {field.name: getattr(self, field.name) for field in fields(self)} if is_dataclass(self) else {}
        )

    def missing(self, device: str) -> str | None:
        """Why this machine can't run it on cpu or cuda, determined without importing the library; None if it can."""

    def supports(self, case: Case, size: int) -> str | None:
        """The reason to skip a case, from declared tables; None if it can run."""

    def staging(self, benchmark: str) -> str:
        """How an operation's messages reach device memory: none (the library accesses it directly), library (the
        library copies through host memory), pinned (commbench copies through pinned host memory, in the timed steps).
        """
        return "none"

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        """The environment variables to export before the library starts. Raises ConfigError for a contradiction."""
        return {}

    def open(self, world: World, control: Control, device: str) -> Communicator: ...


class Launcher(Protocol):
    """A program that starts ranks: how it is called from here, how its ranks are recognised and where they meet.

    A launcher inherits from this class for the defaults; that of conf/launcher/NAME.yaml is launchers/NAME.py's class
    Name.
    """

    name: ClassVar[str]
    # The order in which launchers are asked whose rank a process is, and that of defaults. The first that recognises it
    # wins, so one that runs inside another's tasks, or exports another's variables (PMI_RANK), has the lower number;
    # where both are true, `detect` rules out the variables of the launcher inside (launchers/mpirun.py).
    precedence: ClassVar[int]
    needs_scheduler: ClassVar[bool] = False  # not on every machine: never a backend's default
    starts_mpi: ClassVar[bool] = False  # whether its ranks can initialise MPI
    meets_over_mpi: ClassVar[bool] = False  # whether its ranks load MPI to find each other, whatever the backend is
    forks: ClassVar[bool] = False  # whether this command's rank server forks its ranks, and `command` starts that
    # prefixes of variables that commbench forwards under no launcher, as this one exports them to its ranks itself
    own_variables: ClassVar[tuple[str, ...]] = ()

    @property
    def has_allocation(self) -> bool:
        """Whether this process runs inside an allocation of nodes that this launcher starts ranks on."""
        return False

    @property
    def is_local(self) -> bool:
        """Whether its ranks run on this machine, as descendants of its process."""
        return True

    @property
    def reach(self) -> int:
        """The most nodes that it can start ranks on."""
        return 1

    def detect(self, environ: Mapping[str, str]) -> RankIdentity | None:
        """The rank that was started with this environment; None if another launcher or none started it.

        Raises ConfigError where its variables contradict each other."""

    def open_store(
        self, identity: RankIdentity, environ: Mapping[str, str], backend: Backend, interface: str | None
    ) -> Any:
        """The store through which the ranks of its world meet, of the backend's kind.

        Raises ConfigError, OSError, RuntimeError, KeyError, ValueError."""

    def command(
        self, nodes: int, ranks_per_node: int, worker: Sequence[str], library: str | None, exports: Sequence[str] = ()
    ) -> list[str]:
        """It contains sys.executable, and ends with the words of `worker` as they are. `library` as in `environment`;
        `exports` are the names of variables that ranks on other hosts need. Raises ConfigError where the program to
        start them is not installed."""

    def environment(self, nodes: int, ranks_per_node: int, library: str | None) -> dict[str, str]:
        """What is exported to its ranks beside the inherited variables; called once for each world, in the parent.
        `library` is the MPI library that they load (backend.library), None if they load none."""

    def manual_command(self, nodes: int, ranks_per_node: int, worker: Sequence[str]) -> str | None:
        """The line with which a user starts such a world, where this process can't; None if there is none."""
        return None


class Writer(Protocol):
    """One output format. Only rank 0 has writers."""

    def begin(self, run: Mapping[str, Any], folder: str) -> None: ...

    def case(
        self, row: Mapping[str, Any], samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        """Columns of samples.parquet and counters.parquet; a later row of the same case replaces the earlier one."""

    def end(self, run: Mapping[str, Any]) -> None:
        """The end of a world; with the status `running` further launches of the run follow."""
