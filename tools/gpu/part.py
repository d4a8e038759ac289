"""A part of `make gpu-check`, and the words that the commands of several calls share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
TRUTH = HERE / "truth"
MODES = "timer=[host_sync,device_event,throughput,graph]"
QUICK = ("timing=quick", "timing.visits=1", "budget.case_s=0.15")
FEW = ("timing=fixed", "timing.repetitions=5", "budget.case_s=0.05")
SOAK = ("timing=soak", "timing.duration_s=300", "budget.restarts=0")
FIRST_GPU = {"CUDA_VISIBLE_DEVICES": "0"}
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "nccl.log"}
# another NCCL than torch's, unpacked by whoever calls: see slim_nccl.py
NEWER_NCCL = "/tmp/newer-nccl/libnccl.so.2"
TWO_RANKS = {
    **FIRST_GPU,
    "LD_PRELOAD": NEWER_NCCL,
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}


@dataclass(frozen=True)
class Part:
    """A shell command with a time limit of its own.

    `beside`: starts together with the part before it, so nothing in it is timed. `kills`: SIGKILL
    for this rank of the run as soon as its first case runs. `mps`: processes on one GPU run at the
    same time, instead of taking turns. `measured_on`: not needed on a GPU with this in its name.
    """

    name: str
    command: str
    limit_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    beside: bool = False
    kills: int | None = None
    mps: bool = False
    measured_on: str | None = None


def commbench(*words: str) -> str:
    quoted = (f"'{word}'" for word in words)
    return " ".join([PYTHON, "-m", "commbench", *quoted, "output=results"])


def program(name: str, *words: str) -> str:
    return " ".join([PYTHON, str(HERE / name), *words])


WARM = f"""{PYTHON} -c "
import os, time
begin = time.time()
import torch
imported = time.time()
torch.zeros(1, device='cuda')
opened = time.time()
import torch.distributed, cupy, pandas, numpy, pyarrow, numba, mpi4py, rich, psutil, pynvml
ended = time.time()
print(dict(import_torch_s=imported - begin, context_s=opened - imported, others_s=ended - opened,
           threads=len(os.listdir('/proc/self/task'))))
print({{m.__name__: getattr(m, '__version__', '?') for m in (torch, cupy, pandas, numpy, pyarrow)}})
print(torch.cuda.get_device_properties(0), torch.cuda.nccl.version(), torch.version.cuda)
" """
NVCC = f"nvcc -O2 -std=c++17 -cudart static -o {TRUTH} {TRUTH}.cu -ldl"
BUILD = f"test -x {TRUTH} || {NVCC} -arch=native || {NVCC} -arch=sm_90"
# .gpu/libnccl.so.xz: made by slim_nccl.py and carried to the machine
UNPACK_NCCL = f"""{PYTHON} -c "
import lzma, pathlib
target = pathlib.Path('{NEWER_NCCL}')
target.parent.mkdir(exist_ok=True)
target.write_bytes(lzma.open('{HERE.parent.parent}/.gpu/libnccl.so.xz').read())
" """
