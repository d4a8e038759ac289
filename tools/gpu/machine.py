"""The GPUs and libraries of this machine, and importing commbench from its source tree."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOL = Path(__file__).resolve().parent
PLUGINS = TOOL / "plugins"
PROBES = TOOL / "probes"
ROOT = TOOL.parent.parent
ASK_TORCH = """
import json, torch
seen = torch.cuda.is_available()
count = torch.cuda.device_count() if seen else 0
has_nccl = seen and torch.distributed.is_nccl_available()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None
cuda = torch.version.cuda if seen else None
print(json.dumps({"torch": torch.__version__, "torch_cuda": cuda, "nccl": nccl,
                  "names": [torch.cuda.get_device_name(one) for one in range(count)],
                  "bytes": [torch.cuda.mem_get_info(one)[1] for one in range(count)]}))
"""
ASK_CUPY = """
import json, cupy
from cupy.cuda import nccl
print(json.dumps({"cupy": cupy.__version__, "cupy_nccl": nccl.get_version()}))
"""
ASK_MPI = """
import json, mpi4py
from commbench.hardware.mpi_library import find
print(json.dumps({"mpi4py": mpi4py.__version__, "mpi_library": str(find("auto"))}))
"""
# Of the environment that the checks start in: they would change NCCL's transports, messages and
# logs, or, in a shell of srun or torchrun, make each check a rank of that world.
REMOVED_PREFIXES = (
    *("NCCL_DEBUG", "NCCL_P2P_", "NCCL_SHM_", "NCCL_NVLS_", "NCCL_ALGO", "NCCL_PROTO"),
    *("NCCL_HOSTID", "NCCL_COMM_", "NCCL_LAUNCH_", "NCCL_GRAPH_", "TORCH_NCCL_"),
    *("MASTER_", "TORCHELASTIC_", "SLURM_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "FLUX_", "PALS_"),
)
REMOVED_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
)
REFERENCE = """
import json, torch
size = 256 << 20
a, b = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
times = []
for _ in range(12):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(); b.copy_(a); end.record(); end.synchronize()
    times.append(start.elapsed_time(end) * 1e-3)
print(json.dumps({"bytes": size, "copy_gb_per_s": size / sorted(times)[6] / 1e9}))
"""


@dataclass(frozen=True)
class Machine:
    """`gpus` is the driver's count; None is not installed."""

    gpus: int
    torch: str | None = None
    torch_cuda: str | None = None
    nccl: str | None = None
    names: tuple[str, ...] = ()
    bytes: tuple[int, ...] = ()
    cupy: str | None = None
    cupy_nccl: int | None = None
    mpi4py: str | None = None
    mpi_library: str | None = None


def gpu_count() -> int | str:
    """The number of GPUs by the driver, or why there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "libcuda.so.1 is not here, so there is no NVIDIA driver"
    count = ctypes.c_int()
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return f"the NVIDIA driver answers error {status}"
    return count.value or "the NVIDIA driver shows no GPU"


def look(gpus: int, environment: dict[str, str]) -> Machine:
    """Ask the libraries in separate processes: a broken one affects only its own checks."""
    known: dict[str, Any] = {}
    for question in (ASK_TORCH, ASK_CUPY, ASK_MPI):
        known |= answer(question, environment)
    known |= {name: tuple(known.get(name, ())) for name in ("names", "bytes")}
    return Machine(
        gpus, **{name: value for name, value in known.items() if name in Machine.__annotations__}
    )


def answer(question: str, environment: dict[str, str], timeout_s: float = 60.0) -> dict[str, Any]:
    """The JSON that a short program prints last; empty if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", question],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
        )
        values: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return {}
    return values


def importable(folder: Path) -> Path:
    """A folder for PYTHONPATH with commbench and its conf/ as if they were installed, of this
    checkout only."""
    package = folder / "commbench"
    package.mkdir(parents=True, exist_ok=True)
    sources = {
        path.name: path for path in (ROOT / "commbench").iterdir() if path.name != "__pycache__"
    }
    sources["conf"] = ROOT / "conf"
    for link in [
        path
        for path in package.iterdir()
        if path.is_symlink() and path.readlink() != sources.get(path.name)
    ]:
        link.unlink()  # of another checkout, or of a module that is gone
    for name, source in sources.items():
        link = package / name
        if not link.is_symlink():
            link.symlink_to(source)
    return folder


def removed() -> list[str]:
    """The variables of this environment that the checks do not get."""
    return sorted(
        name for name in os.environ if name in REMOVED_NAMES or name.startswith(REMOVED_PREFIXES)
    )


def environment(folder: Path) -> dict[str, str]:
    """The environment of all checks: commbench from this source tree, without `removed()`."""
    without = removed()
    kept = {name: value for name, value in os.environ.items() if name not in without}
    path = os.pathsep.join(
        part for part in (str(folder), str(PLUGINS), kept.get("PYTHONPATH", "")) if part
    )
    return {**kept, "PYTHONPATH": path, "RES_OPTIONS": "timeout:1 attempts:1"}
