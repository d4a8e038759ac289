"""NCCL as torch and CuPy both use it: what it lacks, its environment variables, and its log.

After the first call of a communicator that was captured in a graph, each call that is not captured
waits for an event and records one (everCaptured in src/misc/strongstream.cc, 2.28 to 2.30). So the
communicators have groups of their own `for_graphs`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from commbench.core.program import Program
from commbench.core.protocols import Backend
from commbench.core.variables import Case, Ipc
from commbench.engines.lowered import UnsupportedForms, form_missing, reduction_missing
from commbench.hardware.cuda import NCCL, cuda_ipc_exports
from commbench.hardware.network import interface_name
from commbench.hardware.sources import mapped_files
from commbench.hardware.torch_install import torch_folder
from commbench.results.network_cards import interface_rails, port_rails

LEVEL = "NCCL_DEBUG"
SUBSYSTEMS = "NCCL_DEBUG_SUBSYS"
FILE = "NCCL_DEBUG_FILE"
OWN_LOG = "COMMBENCH_NCCL_LOG"  # set where commbench, not the user, asks for a log
# COLL, TUNING and CALL write a line per operation: not during a measurement
LOGGED_SUBSYSTEMS = "INIT,ENV,GRAPH,P2P,SHM,NET,NVLS"
MAX_LOG_BYTES = 1 << 24
LIBRARIES = ("libnccl.so", "librccl.so")
# experimental: several ranks on one GPU
MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"
SHARED_SINCE = 23000


@dataclass(frozen=True)
class LoadedNccl:
    """The NCCL that this process has loaded."""

    number: int  # 22809 for 2.28.9
    path: str

    @property
    def version(self) -> str:
        return version_text(self.number)

    @property
    def origin(self) -> str:
        """Where the library is, as the end of a sentence about it."""
        folder = Path(self.path).resolve().parent
        own = torch_folder()
        if own is not None and folder.is_relative_to(own.resolve()):
            return "loaded from torch's folder"
        if own is not None and folder.is_relative_to(own.resolve().parent):
            return "loaded from the packages beside torch"
        return f"loaded from {folder}"

    @classmethod
    def find(cls) -> LoadedNccl | None:
        """The one that a call finds first: a preloaded library comes before that of torch's wheel,
        which is mapped all the same. None where NCCL is linked into torch.

        RCCL, AMD's twin, has the functions of NCCL.
        """
        for name in (None, *mapped_files(LIBRARIES)):  # None: whatever this process finds by itself
            try:
                function = ctypes.CDLL(name).ncclGetVersion
            except (OSError, AttributeError):
                continue
            number = ctypes.c_int()
            if function(ctypes.byref(number)) == 0:
                return cls(number.value, name or file_of(function))
        return None


class _SymbolInfo(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(function: Any) -> str:
    """The library that a function of ctypes is in; empty if unknown."""
    info = _SymbolInfo()
    address = ctypes.cast(function, ctypes.c_void_p)
    status = ctypes.CDLL(None).dladdr(address, ctypes.byref(info))  # 0: unknown
    return os.fsdecode(info.file) if status and info.file else ""


def version_text(number: int) -> str:
    """2.27.3 from 22703; 2.8.4 from 2804, the form before NCCL 2.9."""
    thousand = 10_000 if number >= 10_000 else 1_000
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"


def newer_nccl_needed(number: int, what: str) -> str | None:
    """Why the loaded NCCL does not have it; None if it has, or is not known."""
    loaded = LoadedNccl.find()
    if loaded is None or loaded.number >= number:
        return None
    since = version_text(number).removesuffix(".0")
    return f"{what} needs NCCL {since} or newer; this is {loaded.version}"


class NcclBackend(Backend):
    """What the backends on NCCL declare: GPU memory, one GPU per rank."""

    devices = ("cuda",)
    # the caller and NCCL's proxy; its service thread and torch's watchdog sleep
    threads_per_rank = 2
    joins_messages = True  # one group, and kernel
    unsupported_forms: ClassVar[UnsupportedForms]

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        """A rank may send to itself: NCCL copies where both ends are in one group of calls."""
        if case.staging != "none":
            return (
                f"NCCL reads and writes GPU memory itself; staging={case.staging} has no effect"
                " on it"
            )
        missing = reduction_missing("NCCL", program, has_float8=True)
        return missing or form_missing(self.unsupported_forms, program)

    def sharing_refusal(self, environ: Mapping[str, str]) -> str | None:
        loaded = LoadedNccl.find()
        if environ.get(MULTI_RANK) != "1":
            return f"backend={self.name} needs a GPU for each rank"
        if loaded is not None and loaded.number < SHARED_SINCE:
            return f"NCCL {loaded.version} needs a GPU for each rank; {MULTI_RANK} is for 2.30"
        return None

    def rails(self, facts: Mapping[str, Any]) -> list[str]:
        """Its RDMA ports, exactly (`=`: else a name is a prefix); without any, its interfaces."""
        ports = [f"env.NCCL_IB_HCA=={name}" for name in port_rails(facts)]
        return ports or [f"interface={name}" for name in interface_rails(facts)]

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        """NCCL reads its variables once per process, so these and the user's hold for all cases."""
        exports = cuda_ipc_exports(cuda_ipc, (NCCL,))
        if LEVEL not in os.environ and FILE not in os.environ:  # else the user has set up a log
            exports |= {
                OWN_LOG: "1",
                LEVEL: "INFO",
                SUBSYSTEMS: os.environ.get(SUBSYSTEMS, LOGGED_SUBSYSTEMS),
            }
        if interface is not None:
            # without = it would be a prefix
            exports["NCCL_SOCKET_IFNAME"] = f"={interface_name(interface)}"
        return exports


class NcclLog:
    """NCCL's log of this process, in memory: which transport it took for each peer, and why.

    Changes `environ`, and NCCL reads its variables at its first call, so create it before that.
    Without a log of ours (the user has one, or this system has no such files) `text` is None. It
    has no name in the file system, so nothing stays behind however the process ends.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._descriptor: int | None = None
        self.kernels: list[str] = []  # of all calls that were profiled
        if OWN_LOG not in environ or FILE in environ:
            return
        try:
            descriptor = os.memfd_create("commbench-nccl-log")
            path = f"/proc/self/fd/{descriptor}"
            os.close(os.open(path, os.O_WRONLY))  # as NCCL will open it
        except OSError:  # without a file NCCL would write to standard output
            environ.pop(LEVEL, None)
            return
        self._descriptor = descriptor
        environ[FILE] = path

    def text(self) -> str | None:
        """The log so far, at most MAX_LOG_BYTES; a communicator that connects later adds to it."""
        if self._descriptor is None:
            return None
        return os.pread(self._descriptor, MAX_LOG_BYTES, 0).decode(errors="replace")

    def facts(self) -> dict[str, Any]:
        """Facts of a communicator on NCCL. Its transport is to be read from `nccl_log`, null where
        it is the user's; `nccl_log_cut`: it is longer; `nccl_kernels`: of profiled calls."""
        loaded = LoadedNccl.find()
        facts = {
            "transport": None,
            "eager": True,
            "nccl_log": self.text(),
            "nccl_kernels": list(self.kernels),
            "ipc_libraries": [NCCL],
            "nccl_path": loaded and loaded.path,
        }
        if self._descriptor is not None and os.fstat(self._descriptor).st_size > MAX_LOG_BYTES:
            facts["nccl_log_cut"] = True
        return facts
