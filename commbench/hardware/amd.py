"""The AMD GPUs of this machine as ROCm's amd-smi or rocm-smi describe them.

The commands print JSON, which differs between versions of ROCm (5 to 7). What they don't say is a
missing key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from .nvml import bus_id
from .sources import Facts, NoReading, command_output, fact_text
from .topology import ROCM_TOPOLOGY_FACT

DRIVER = Path("/dev/kfd")  # by which ROCm reaches the kernel driver
AMD_SMI = ("amd-smi", "static", "--asic", "--bus", "--vram", "--driver", "--json")
ROCM_SMI = (
    *("rocm-smi", "--showproductname", "--showbus", "--showmeminfo", "vram"),
    *("--showdriverversion", "--json"),
)
TOPOLOGY = ("rocm-smi", "--showtopo")
TIMEOUT_S = 30.0
# HIP reads CUDA's variable, too
VISIBLE_DEVICES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
DESCRIBED = ("name", "pci_bus_id", "memory_total_bytes")
UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}  # of amd-smi, whose MB is a MiB


def driver_missing() -> str | None:
    """Why there is no AMD driver; None if there is one. No GPU is accessed."""
    return None if DRIVER.exists() else f"no AMD driver: {DRIVER} was not found"


def collect() -> Facts:
    """`gpu.count`, `gpu.driver_version`, `gpu.0.name`, ... by the numbers of the program, and the
    text of `rocm-smi --showtopo`. Empty without a driver."""
    if driver_missing() is not None:
        return {}
    known = gpus()
    if not known:
        return {"gpu.reason": "an AMD driver, but neither amd-smi nor rocm-smi lists its GPUs"}
    facts: Facts = {
        "gpu.count": len(known),
        "gpu.driver_version": known[0]["driver_version"],
    }
    with suppress(NoReading):
        facts[ROCM_TOPOLOGY_FACT] = command_output(TOPOLOGY, TIMEOUT_S)
    for number, gpu in enumerate(known):
        facts |= {f"gpu.{number}.{key}": gpu[key] for key in DESCRIBED}
    return {key: value for key, value in facts.items() if value is not None}


def own_facts(environ: Mapping[str, str]) -> Facts:
    """`gpu.own.*` of any rank: what all GPUs share. HIP may number them otherwise than these
    programs, so a rank's PCI bus id is unknown."""
    known = gpus()
    lists = [environ[name].split(",") for name in VISIBLE_DEVICES if environ.get(name)]
    counts = [*map(len, lists), *([len(known)] if known else [])]
    facts: Facts = {"gpu.own.visible": min(counts)} if counts else {}
    for key in ("name", "memory_total_bytes", "driver_version"):
        values = {gpu[key] for gpu in known}
        if len(values) == 1 and None not in values:
            facts[f"gpu.own.{key}"] = values.pop()
    return facts


@cache  # amd-smi takes a second
def gpus() -> list[Facts]:
    """Name, PCI bus id, memory and driver version of each GPU, None for what is not said; empty if
    no program answers."""
    return _listed(AMD_SMI, _of_amd_smi) or _listed(ROCM_SMI, _of_rocm_smi)


def _listed(command: Sequence[str], parse: Callable[[str], list[Facts]]) -> list[Facts]:
    try:
        return parse(command_output(command, TIMEOUT_S))
    # also another format
    except (NoReading, ValueError, LookupError, TypeError, AttributeError):
        return []


def _of_amd_smi(text: str) -> list[Facts]:
    """A list with an entry for each GPU; ROCm 7 has it below `gpu_data`."""
    read = json.loads(text)
    return [
        {
            "name": _known(entry.get("asic", {}).get("market_name")),
            "pci_bus_id": _bus_id(entry.get("bus", {}).get("bdf")),
            "memory_total_bytes": _bytes(entry.get("vram", {}).get("size")),
            "driver_version": _known(entry.get("driver", {}).get("version")),
        }
        for entry in (read["gpu_data"] if isinstance(read, dict) else read)
    ]


def _of_rocm_smi(text: str) -> list[Facts]:
    """`card0`, `card1`, ..., with the driver below `system`; warnings may come before. The case of
    names depends on the version."""
    read = json.loads(text[text.index("{") :])
    driver = _known(read.get("system", {}).get("Driver version"))
    cards = [
        {key.lower(): value for key, value in entry.items()}
        for name, entry in read.items()
        if name.startswith("card")
    ]
    return [
        {
            "name": _known(card.get("card series")),
            "pci_bus_id": _bus_id(card.get("pci bus")),
            "memory_total_bytes": _bytes(card.get("vram total memory (b)")),
            "driver_version": driver,
        }
        for card in cards
    ]


def _known(value: Any) -> str | None:
    text = fact_text(str(value))
    return None if value is None or text in ("", "N/A") else text


def _bus_id(value: Any) -> str | None:
    text = _known(value)
    return None if text is None else bus_id(text)


def _bytes(value: Any) -> int | None:
    """Of `206158430208` or `{"value": 196592, "unit": "MB"}`."""
    number, unit = (value["value"], value["unit"]) if isinstance(value, dict) else (value, "B")
    return None if _known(number) is None else int(number) * UNITS[unit]
