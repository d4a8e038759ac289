"""Peer access between GPUs: for every ordered pair, whether one can access the memory of the other, and how fast.

The same facts as CUDA's sample topologyQuery. Pairs are numbered by NVML's indices, whatever this process may see:
CUDA is queried in a separate process without CUDA_VISIBLE_DEVICES, so this one neither pays for its initialisation nor
loses the ability to fork.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import permutations
from typing import Any

from . import nvml
from .cuda_driver import ACCESS_SUPPORTED, NATIVE_ATOMICS_SUPPORTED, PERFORMANCE_RANK, CudaDriver, CudaError
from .sources import Facts, first_line, one_line, run_command

TIMEOUT_S = 30.0  # without its persistence daemon the driver initialises one GPU after the other
CODE = "from commbench.hardware.peer_access import main; main()"


def collect() -> Facts:
    """`peer.I-J.access`, `.native_atomics`, `.performance_rank` (0 is the fastest), `.can_access`: of GPU I to the
    memory of GPU J. Empty with fewer than two GPUs; `peer.reason` where CUDA does not answer."""
    gpus = nvml.gpus()
    if len(gpus) < 2:
        return {}
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    # the default, fastest first, is an order that NVML does not have
    finished = run_command([sys.executable, "-c", CODE], TIMEOUT_S, environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    if finished is None:
        return {"peer.reason": f"CUDA gave no answer within {TIMEOUT_S:g} s"}
    if finished.status != 0:
        return {"peer.reason": f"CUDA can't be asked: {one_line(finished.err)[-200:]}"}
    return numbered(json.loads(finished.out), {gpu.pci_bus_id: gpu.index for gpu in gpus if gpu.pci_bus_id})


def numbered(answer: Mapping[str, Any], index: Mapping[str, int]) -> Facts:
    """The answer of `main` with NVML's indices; a GPU that NVML does not know keeps its CUDA ordinal, as `cuda2`."""
    if "reason" in answer:
        return {"peer.reason": first_line(answer["reason"])}
    names = [str(index.get(gpu, f"cuda{ordinal}")) for ordinal, gpu in enumerate(answer["gpus"])]
    return {
        f"peer.{names[source]}-{names[target]}.{key}": value
        for source, target, values in answer["pairs"]
        for key, value in values.items()
    }


def main() -> None:
    """Print JSON: {"gpus": [PCI bus ids], "pairs": [[source, target, {key: value}]]}, or {"reason": text}."""
    try:
        print(json.dumps(query(CudaDriver())))
    except CudaError as error:
        print(json.dumps({"reason": str(error)}))


def query(cuda: CudaDriver) -> dict[str, Any]:
    """See `main`; a value that CUDA refuses is a missing key."""
    ordinals = range(cuda.count())
    return {
        "gpus": [cuda.pci_bus_id(ordinal) for ordinal in ordinals],
        "pairs": [(source, target, _pair_facts(cuda, source, target)) for source, target in permutations(ordinals, 2)],
    }


def _pair_facts(cuda: CudaDriver, source: int, target: int) -> Facts:
    queries: dict[str, Callable[[], int | bool]] = {
        "access": lambda: bool(cuda.peer_attribute(ACCESS_SUPPORTED, source, target)),
        "native_atomics": lambda: bool(cuda.peer_attribute(NATIVE_ATOMICS_SUPPORTED, source, target)),
        "performance_rank": lambda: cuda.peer_attribute(PERFORMANCE_RANK, source, target),
        "can_access": lambda: cuda.can_access_peer(source, target),
    }
    facts: Facts = {}
    for key, get_value in queries.items():
        with suppress(CudaError):
            facts[key] = get_value()
    return facts
