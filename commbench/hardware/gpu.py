"""The GPUs of this machine, which of them CUDA would show this process, and the one that belongs to a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict

from . import nvml
from .cuda_driver import CudaDriver, CudaError
from .nvml import Gpu
from .sources import Facts, one_line
from .visible_gpus import VARIABLE, parse_visible, visible_indices

NOT_FACTS = ("index", "memory_used_bytes", "processes", "compute_capability")
# Without a single process in sight (those of other containers are hidden) more than this means that somebody is there;
# the driver itself takes up to a hundredth of a GPU.
UNEXPLAINED_BYTES, UNEXPLAINED_SHARE = 2**30, 0.02


def collect(environ: Mapping[str, str] = os.environ) -> Facts:
    """`gpu.count`, `gpu.driver_version`, `gpu.I.name` and so on of all GPUs, by NVML's numbers, and `gpu.visible`:
    those that CUDA_VISIBLE_DEVICES leaves. Only `gpu.reason` where there is no driver, or it gives no answer."""
    refusal = nvml.reason()
    if refusal is not None:
        return {"gpu.reason": one_line(refusal)}
    driver, gpus = nvml.driver(), nvml.gpus()
    facts: Facts = {
        "gpu.count": len(gpus),
        "gpu.driver_version": driver.version,
        "gpu.cuda_driver_version": driver.cuda,
        "gpu.visible": visible_text(environ, gpus),
    }
    for gpu in gpus:
        facts |= {f"gpu.{gpu.index}.{key}": value for key, value in _facts(gpu).items()}
    return {key: value for key, value in facts.items() if value is not None}


def visible_text(environ: Mapping[str, str], gpus: list[Gpu]) -> str | None:
    """`0,2` in NVML's numbers, `none`, or the parts of GPUs as they were named; None where only CUDA knows."""
    found, entries = visible_indices(environ, gpus), parse_visible(environ.get(VARIABLE))
    if found is not None:
        return ",".join(map(str, found)) or "none"
    return ",".join(entries) if entries and entries[0].startswith("MIG-") else None


def _facts(gpu: Gpu) -> Facts:
    plain = {key: value for key, value in asdict(gpu).items() if key not in NOT_FACTS}
    major_minor = gpu.compute_capability
    plain["compute_capability"] = None if major_minor is None else ".".join(map(str, major_minor))
    return {key: one_line(value) if isinstance(value, str) else value for key, value in plain.items()}


def own_gpu(local_rank: int, environ: Mapping[str, str] = os.environ) -> Facts:
    """`gpu.own.*` of the GPU that a rank with this place in its node uses: the ordinal is the place modulo what CUDA
    shows. Asks the CUDA driver, as only that knows its order; `gpu.own.reason` where there is none.

    `gpu.own.users` names other processes that hold its memory: `1234 (1000000000 B), 77 (? B)`.
    """
    try:
        cuda = CudaDriver()
        seen = cuda.count()
        if seen == 0:
            raise CudaError("CUDA shows no GPU")
        facts = _own(cuda, local_rank % seen)
    except CudaError as error:
        return {"gpu.own.reason": f"{one_line(str(error))}{_hidden(environ)}"}
    facts |= {"visible": seen, "driver_version": nvml.driver().version}
    facts |= _known(next((gpu for gpu in nvml.gpus() if gpu.pci_bus_id == facts["pci_bus_id"]), None))
    facts["uuid"] = f"{facts.pop('kind', 'GPU')}-{facts['uuid']}"
    return {f"gpu.own.{key}": value for key, value in facts.items() if value is not None}


def _hidden(environ: Mapping[str, str]) -> str:
    entries = parse_visible(environ.get(VARIABLE))
    return "" if entries is None else f" ({VARIABLE}={environ[VARIABLE]!r}{'' if entries else ' hides every GPU'})"


def _own(cuda: CudaDriver, ordinal: int) -> Facts:
    return {
        "ordinal": ordinal,
        "uuid": cuda.uuid(ordinal),
        "name": one_line(cuda.name(ordinal)),
        "pci_bus_id": cuda.pci_bus_id(ordinal),
        "memory_total_bytes": cuda.memory_bytes(ordinal),
        "l2_bytes": cuda.l2_bytes(ordinal),
        "compute_capability": cuda.compute_capability(ordinal),
    }


def _known(gpu: Gpu | None) -> Facts:
    """What NVML adds. With MIG on, CUDA shows a part and its UUID; the other parts have users of their own."""
    if gpu is None:
        return {}
    if gpu.mig:
        return {"index": gpu.index, "kind": "MIG"}
    known = gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None
    free = (gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) if known else None
    return {"index": gpu.index, "users": users(gpu), "memory_free_bytes": free}


def users(gpu: Gpu) -> str | None:
    """The processes other than this one that hold memory, or the memory that nobody in sight explains; None if idle."""
    others = [one for one in gpu.processes or () if one.pid != os.getpid()]
    if others:
        return ", ".join(f"{one.pid} ({'?' if one.memory_bytes is None else one.memory_bytes} B)" for one in others)
    used, total = gpu.memory_used_bytes or 0, gpu.memory_total_bytes or 0
    if gpu.processes or used <= max(UNEXPLAINED_BYTES, UNEXPLAINED_SHARE * total):
        return None
    return f"processes that can't be seen from here ({used} B)"
