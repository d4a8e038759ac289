"""The GPUs of this machine, which of them CUDA shows to this process, and the one that a rank uses.

CUDA_VISIBLE_DEVICES is parsed as by CUDA (CUDA C++ Programming Guide, environment variables): all
entries are numbers in the order of CUDA_DEVICE_ORDER, or `GPU-` and the beginning of a UUID, or
`MIG-` and a UUID. An invalid entry, such as `-1`, hides everything from there on, and an entry that
occurs twice hides all GPUs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import permutations
from pathlib import Path

from commbench.core.units import about_bytes

from . import amd, nvml
from .cuda import CudaDriver, CudaError, driver_missing
from .nvml import Gpu
from .sources import Facts, NoReading, command_output, fact_text, parse_fields, read_text

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DEVICE_ORDER = "CUDA_DEVICE_ORDER"
NOT_FACTS = ("index", "memory_used_bytes", "processes", "health")
# Processes of other containers are hidden. If none is visible, more used memory than this means
# that there is one; the driver itself uses up to a hundredth of a GPU.
UNEXPLAINED_BYTES = 2**30
UNEXPLAINED_SHARE = 0.02
# without its persistence daemon the driver initialises one GPU after the other
PEER_TIMEOUT_S = 30.0
# CUdevice_P2PAttribute of cuda.h
PEER_ATTRIBUTES = {"access": 2, "native_atomics": 3, "performance_rank": 1}
PEER_CODE = "import json; from commbench.hardware import gpu; print(json.dumps(gpu.peer_facts()))"


def collect(environ: Mapping[str, str] = os.environ) -> Facts:
    """The driver and all GPUs as `gpu.driver_version`, `gpu.0.name`, ... by NVML's indices, and as
    `gpu.visible` those that CUDA_VISIBLE_DEVICES leaves. Without NVML AMD's GPUs; only `gpu.reason`
    if there is no driver or it fails."""
    refusal = nvml.reason()
    if refusal is not None:
        return amd.collect() or {"gpu.reason": fact_text(refusal)}
    gpus = nvml.gpus()
    facts: Facts = {
        "gpu.count": len(gpus),
        "gpu.driver_version": nvml.driver_version(),
        "gpu.cuda_driver_version": nvml.newest_cuda(),
    }
    visible = visible_indices(environ, gpus)
    entries = parse_visible(environ.get(VISIBLE_DEVICES))
    if visible is not None:
        facts["gpu.visible"] = ",".join(map(str, visible)) or "none"
    elif entries and entries[0].startswith("MIG-"):
        facts["gpu.visible"] = ",".join(entries)
    for gpu in gpus:
        for key, value in {**asdict(gpu), **asdict(gpu.health)}.items():
            if key not in NOT_FACTS:
                facts[f"gpu.{gpu.index}.{key}"] = (
                    fact_text(value) if isinstance(value, str) else value
                )
    return {key: value for key, value in facts.items() if value is not None}


def parse_visible(text: str | None) -> tuple[str, ...] | None:
    """The valid entries of CUDA_VISIBLE_DEVICES, numbers without leading zeros; None where it is
    not set."""
    if text is None:
        return None
    entries = list[str]()
    for word in map(str.strip, text.split(",")):
        number = re.match(r"[+]?([0-9]{1,9})(?![0-9])", word)  # as C reads numbers: 2nd is 2
        if number is None and not re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", word):
            break
        entry = str(int(number[1])) if number else word
        if entries and _entry_kind(entry) != _entry_kind(entries[0]):
            break
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


def _entry_kind(entry: str) -> str:
    return entry[:4] if entry[0] in "GM" else ""


def visible_indices(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> list[int] | None:
    """NVML's indices of the visible GPUs in CUDA's order; None if only CUDA knows them: with MIG,
    or if the numbers of different GPUs begin with the fastest."""
    entries = parse_visible(environ.get(VISIBLE_DEVICES))
    if any(gpu.mig for gpu in gpus) or (entries and entries[0].startswith("MIG-")):
        return None
    same_order = environ.get(DEVICE_ORDER) == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1
    numbered = entries is None or (entries and entries[0].isdigit())
    if numbered and not same_order:
        return None
    if entries is None:
        return [gpu.index for gpu in gpus]
    indices = list[int]()
    for entry in entries:
        names = ((gpu.index, (gpu.uuid or "").lower()) for gpu in gpus)
        matches = [
            index for index, uuid in names if entry == str(index) or uuid.startswith(entry.lower())
        ]
        # no GPU has this number or UUID, or the UUIDs of several begin with it
        if len(matches) != 1:
            break
        if matches[0] in indices:
            return []
        indices += matches
    return indices


def visible_count(environ: Mapping[str, str]) -> int | None:
    """The number of GPUs that CUDA shows; None if only CUDA knows it."""
    if nvml.reason() is not None:
        return None
    indices = visible_indices(environ, nvml.gpus())
    entries = parse_visible(environ.get(VISIBLE_DEVICES))
    known = entries if indices is None else indices
    return None if known is None else len(known)


def own_gpu(local_rank: int, environ: Mapping[str, str] = os.environ) -> Facts:
    """`gpu.own.*` of the GPU that a rank uses: its ordinal is the local rank modulo the number of
    visible GPUs.

    They come from the CUDA driver, because only CUDA knows its order; without one there is only
    `gpu.own.reason`. `gpu.own.users` names other processes that hold its memory: `1234 (1000000000
    B), 77 (? B)`.
    """
    if driver_missing() is not None and amd.driver_missing() is None:
        return amd.own_facts(environ)
    try:
        cuda = CudaDriver()
        visible = cuda.count()
        if visible == 0:
            raise CudaError("CUDA shows no GPU")
        ordinal = local_rank % visible
        facts = {"ordinal": ordinal, **cuda.properties(ordinal)}
    except CudaError as error:
        entries = parse_visible(environ.get(VISIBLE_DEVICES))
        note = ""
        if entries is not None:
            hides = "" if entries else " hides every GPU"
            note = f" ({VISIBLE_DEVICES}={environ[VISIBLE_DEVICES]!r}{hides})"
        return {"gpu.own.reason": fact_text(str(error)) + note}
    facts |= {"visible": visible, "driver_version": nvml.driver_version()}
    gpu = next((gpu for gpu in nvml.gpus() if gpu.pci_bus_id == facts["pci_bus_id"]), None)
    facts["uuid"] = f"{'MIG' if gpu is not None and gpu.mig else 'GPU'}-{facts['uuid']}"
    facts |= {} if gpu is None else _nvml_facts(gpu)
    return {f"gpu.own.{key}": value for key, value in facts.items() if value is not None}


def _nvml_facts(gpu: Gpu) -> Facts:
    """What NVML adds. With MIG, memory and processes may be those of other parts of the GPU."""
    if gpu.mig:
        return {"index": gpu.index}
    total = gpu.memory_total_bytes
    used = gpu.memory_used_bytes
    free = None if total is None or used is None else total - used
    return {"index": gpu.index, "users": users(gpu), "memory_free_bytes": free}


def own_pids(proc: Path) -> list[int]:
    """The PIDs of this process in all PID namespaces that `proc` shows (NSpid)."""
    numbers = parse_fields(read_text(proc / "self/status")).get("NSpid", "")
    return list(map(int, numbers.split()))


def users(gpu: Gpu, proc: Path = Path("/proc")) -> str | None:
    """The other processes that hold memory, or how much memory hidden processes use; None if there
    are none.

    In a container NVML may list processes by the PIDs of the host, which a process here may have,
    or none.
    """
    own = {os.getpid(), *own_pids(proc)}
    others = []
    for pid, size in (gpu.processes or {}).items():
        if pid not in own:
            hidden = "" if (proc / str(pid)).exists() else ", a number of another PID namespace"
            others.append(f"{pid} ({'? B' if size is None else about_bytes(size)}{hidden})")
    if others:
        return ", ".join(others)
    used = gpu.memory_used_bytes or 0
    total = gpu.memory_total_bytes or 0
    if gpu.processes or used <= max(UNEXPLAINED_BYTES, UNEXPLAINED_SHARE * total):
        return None
    return f"processes that can't be seen from here ({about_bytes(used)})"


def collect_peer_access() -> Facts:
    """`peer.I-J.access`, `.native_atomics`, `.performance_rank` (0 is the fastest) of GPU I to the
    memory of GPU J. Empty with fewer than two GPUs; `peer.reason` where CUDA does
    not answer.

    Another process asks: this one must not open CUDA, and CUDA_VISIBLE_DEVICES must not hide a GPU.
    """
    if nvml.count() < 2:
        return {}
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    # the default, fastest first, is an order that NVML does not have
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    command = [sys.executable, "-c", PEER_CODE]
    try:
        answer = command_output(command, PEER_TIMEOUT_S, environ, "the query of CUDA")
    except NoReading as error:
        return {"peer.reason": str(error)}
    facts: Facts = json.loads(answer)
    return facts


def peer_facts() -> Facts:
    """These facts as this process sees the GPUs; a value that CUDA refuses is a missing key.

    GPUs have NVML's indices; one that NVML does not know has its CUDA ordinal, as `cuda2`.
    """
    index = {gpu.pci_bus_id: gpu.index for gpu in nvml.gpus()}
    facts = Facts()
    try:
        cuda = CudaDriver()
        names = [
            index.get(cuda.pci_bus_id(ordinal), f"cuda{ordinal}") for ordinal in range(cuda.count())
        ]
        for source, target in permutations(range(len(names)), 2):
            pair = f"peer.{names[source]}-{names[target]}"
            ends = (cuda.device(source), cuda.device(target))
            for key, attribute in PEER_ATTRIBUTES.items():
                with suppress(CudaError):
                    value = cuda.number("cuDeviceGetP2PAttribute", attribute, *ends)
                    facts[f"{pair}.{key}"] = value if key == "performance_rank" else bool(value)
    except CudaError as error:
        return {"peer.reason": str(error)}
    return facts
