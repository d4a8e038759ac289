"""The GPUs of this machine by the driver, and the environment in which commbench is imported from
this source tree."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

TOOL = Path(__file__).resolve().parent
ROOT = TOOL.parent.parent
# variables that would change NCCL's transports and logs, or, in a shell of srun or torchrun, make
# each part a rank of that world
REMOVED_PREFIXES = (
    *("NCCL_DEBUG", "NCCL_P2P_", "NCCL_SHM_", "NCCL_NVLS_", "NCCL_ALGO", "NCCL_PROTO"),
    *("NCCL_HOSTID", "NCCL_COMM_", "NCCL_LAUNCH_", "NCCL_GRAPH_", "TORCH_NCCL_"),
    *("MASTER_", "TORCHELASTIC_", "SLURM_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "FLUX_", "PALS_"),
)
REMOVED_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
)


def gpu_count() -> int | str:
    """The number of GPUs by the driver, or why there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "libcuda.so.1 was not found, so there is no NVIDIA driver"
    count = ctypes.c_int()
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return f"the NVIDIA driver answers error {status}"
    return count.value or "the NVIDIA driver shows no GPU"


def gpu_name() -> str:
    """Of the first GPU, by the driver; empty where it does not say."""
    library = ctypes.CDLL("libcuda.so.1")
    name = ctypes.create_string_buffer(100)
    device = ctypes.c_int()
    failed = library.cuDeviceGet(ctypes.byref(device), 0) or library.cuDeviceGetName(
        name, len(name), device
    )
    return "" if failed else name.value.decode(errors="replace")


def removed() -> list[str]:
    """The variables of this environment that the parts do not get."""
    return sorted(
        name for name in os.environ if name in REMOVED_NAMES or name.startswith(REMOVED_PREFIXES)
    )


def environment() -> dict[str, str]:
    """The environment of all parts: commbench from this source tree, without `removed()`."""
    without = removed()
    kept = {name: value for name, value in os.environ.items() if name not in without}
    parts = (*map(str, (ROOT, ROOT / "replay", TOOL / "plugins")), kept.get("PYTHONPATH", ""))
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, parts))}
