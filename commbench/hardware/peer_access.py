"""For every ordered pair of GPUs, whether one may work in the memory of the other, and how well (topologyQuery).

Pairs are numbered as NVML numbers GPUs, whatever this process may see: CUDA is asked in a process of its own, without
CUDA_VISIBLE_DEVICES. So it costs this one neither time at the first use of CUDA nor memory nor the freedom to fork.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

from . import cuda_driver, nvml
from .cuda_driver import CudaDriver, CudaError
from .sources import Facts, first_line, one_line, run_command

TIMEOUT_S = 30.0  # without its persistence daemon a driver wakes one GPU after the other
CODE = "from commbench.hardware.peer_access import main; main()"


def collect() -> Facts:
    """`peer.I-J.access`, `.native_atomics`, `.performance_rank` (0 is the fastest), `.can_access`: of GPU I to the
    memory of GPU J. Nothing where there are no two GPUs; `peer.reason` where CUDA does not tell."""
    gpus = nvml.gpus()
    if len(gpus) < 2:
        return {}
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    # fastest first, its default, is no order that anyone else has
    finished = run_command([sys.executable, "-c", CODE], TIMEOUT_S, environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    if finished is None:
        return {"peer.reason": f"CUDA gave no answer within {TIMEOUT_S:g} s"}
    if finished.status != 0:
        return {"peer.reason": f"CUDA can't be asked: {one_line(finished.err)[-200:]}"}
    return numbered(json.loads(finished.out), {gpu.pci_bus_id: gpu.index for gpu in gpus if gpu.pci_bus_id})


def numbered(answer: Mapping[str, Any], index: Mapping[str, int]) -> Facts:
    """The answer of `main` with NVML's numbers; a GPU that NVML does not know keeps CUDA's as `cuda2`."""
    if "reason" in answer:
        return {"peer.reason": first_line(answer["reason"])}
    names = [str(index.get(one, f"cuda{ordinal}")) for ordinal, one in enumerate(answer["gpus"])]
    return {
        f"peer.{names[source]}-{names[target]}.{key}": value
        for source, target, values in answer["pairs"]
        for key, value in values.items()
    }


def main() -> None:
    """Print JSON: {"gpus": [PCI bus ids], "pairs": [[source, target, {key: value}]]}, or {"reason": why not}."""
    try:
        print(json.dumps(ask(CudaDriver())))
    except CudaError as error:
        print(json.dumps({"reason": str(error)}))


def ask(cuda: CudaDriver) -> dict[str, Any]:
    """See `main`; a value that CUDA refuses is a missing key."""
    ordinals = range(cuda.count())
    return {
        "gpus": [cuda.pci_bus_id(ordinal) for ordinal in ordinals],
        "pairs": [(source, target, _pair(cuda, source, target)) for source, target in permutations(ordinals, 2)],
    }


def _pair(cuda: CudaDriver, source: int, target: int) -> Facts:
    def attribute(which: int) -> int:
        return cuda.peer_attribute(which, source, target)

    asked: dict[str, Callable[[], int | bool]] = {
        "access": lambda: bool(attribute(cuda_driver.ACCESS_SUPPORTED)),
        "native_atomics": lambda: bool(attribute(cuda_driver.NATIVE_ATOMICS_SUPPORTED)),
        "performance_rank": lambda: attribute(cuda_driver.PERFORMANCE_RANK),
        "can_access": lambda: cuda.can_access_peer(source, target),
    }
    return {key: value for key, ask_one in asked.items() if (value := _or_none(ask_one)) is not None}


def _or_none(ask_one: Callable[[], int | bool]) -> int | bool | None:
    try:
        return ask_one()
    except CudaError:
        return None
