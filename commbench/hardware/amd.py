"""The AMD GPUs of this machine as ROCm's amd-smi or rocm-smi describe them.

The commands print JSON, which differs between versions of ROCm (5 to 7). What they don't say, or
not in a known form, is a missing key, and `gpu.reason` names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from commbench.core.terminal import first_line
from commbench.core.units import format_ranges

from .nvml import bus_id
from .sources import LONGEST_MESSAGE, Facts, NoReading, command_output, fact_text
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
DESCRIBED = {"name": "name", "pci_bus_id": "PCI bus id", "memory_total_bytes": "memory"}
DRIVER_VERSION = {"driver_version": "driver version"}  # the same of all GPUs
_DOCUMENT = re.compile(r'\{\s*["}]|\[\s*[\]{]')  # behind warnings
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?:([KMGT]?)I?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # of amd-smi, whose MB is a MiB


@dataclass(frozen=True)
class Listing:
    """The GPUs in the order of a program, None for what is not known of one, and why."""

    gpus: tuple[Facts, ...]
    reason: str | None


def driver_missing() -> str | None:
    """Why there is no AMD driver; None if there is one. No GPU is accessed."""
    return None if DRIVER.exists() else f"no AMD driver: {DRIVER} was not found"


def collect() -> Facts:
    """`gpu.count`, `gpu.driver_version`, `gpu.0.name`, ... by the numbers of the program, and the
    text of `rocm-smi --showtopo`. Empty without a driver."""
    if driver_missing() is not None:
        return {}
    known = listing()
    facts: Facts = {}
    reasons = [known.reason] if known.reason else []
    if known.gpus:
        versions = (gpu["driver_version"] for gpu in known.gpus)
        facts["gpu.count"] = len(known.gpus)
        facts["gpu.driver_version"] = next(filter(None, versions), None)
        try:
            facts[ROCM_TOPOLOGY_FACT] = command_output(TOPOLOGY, TIMEOUT_S)
        except NoReading as error:
            reasons.append(f"links of the GPUs: {error}")
    for number, gpu in enumerate(known.gpus):
        facts |= {f"gpu.{number}.{key}": gpu[key] for key in DESCRIBED}
    facts["gpu.reason"] = "; ".join(reasons) or None
    return {key: value for key, value in facts.items() if value is not None}


def own_facts(environ: Mapping[str, str]) -> Facts:
    """`gpu.own.*` of any rank: what all GPUs share. HIP may number them otherwise than these
    programs, so a rank's PCI bus id is unknown."""
    known = listing().gpus
    lists = [environ[name].split(",") for name in VISIBLE_DEVICES if environ.get(name)]
    counts = [*map(len, lists), *([len(known)] if known else [])]
    facts: Facts = {"gpu.own.visible": min(counts)} if counts else {}
    for key in ("name", "memory_total_bytes", "driver_version"):
        values = {gpu[key] for gpu in known}
        if len(values) == 1 and None not in values:
            facts[f"gpu.own.{key}"] = values.pop()
    return facts


@cache  # amd-smi takes a second
def listing() -> Listing:
    """By the first program that lists a GPU."""
    reasons = []
    for command in (AMD_SMI, ROCM_SMI):
        program = command[0]
        try:
            document = _document(program, command_output(command, TIMEOUT_S))
        except NoReading as error:
            reasons.append(str(error))
            continue
        gpus = _of_amd_smi(document) if command is AMD_SMI else _of_rocm_smi(document)
        if gpus:
            return Listing(tuple(gpus), _missing_text(program, gpus))
        reasons.append(f"{program} lists none")
    return Listing(
        (),
        f"an AMD driver, but neither amd-smi nor rocm-smi lists its GPUs: {'; '.join(reasons)}",
    )


def _document(program: str, text: str) -> Any:
    """The JSON in what a program prints; raises NoReading."""
    start = _DOCUMENT.search(text)
    try:
        return json.JSONDecoder().raw_decode(text, start.start() if start else 0)[0]
    except (ValueError, RecursionError) as error:
        said = fact_text(first_line(text))[:LONGEST_MESSAGE]
        raise NoReading(f"{program} printed no JSON that can be read: {said}") from error


def _missing_text(program: str, gpus: Sequence[Facts]) -> str | None:
    """What a program does not say, or in no known form."""
    missing = {
        noun: [number for number, gpu in enumerate(gpus) if gpu[key] is None]
        for key, noun in (DESCRIBED | DRIVER_VERSION).items()
    }
    texts = [f"{noun} of GPU {format_ranges(of)}" for noun, of in missing.items() if of]
    return f"{program} does not say, or not in a known form: {', '.join(texts)}" if texts else None


def _of_amd_smi(document: Any) -> list[Facts]:
    """A list with an entry for each GPU; ROCm 7 has it below `gpu_data`."""
    entries = _at(document, "gpu_data") if isinstance(document, dict) else document
    return [
        {
            "name": _known(_at(entry, "asic", "market_name")),
            "pci_bus_id": _bus_id(_at(entry, "bus", "bdf")),
            "memory_total_bytes": _bytes(_at(entry, "vram", "size")),
            "driver_version": _known(_at(entry, "driver", "version")),
        }
        for entry in (entries if isinstance(entries, list) else [])
    ]


def _of_rocm_smi(document: Any) -> list[Facts]:
    """`card0`, `card1`, ..., with the driver below `system`. The case of names depends on the
    version."""
    entries = document if isinstance(document, dict) else {}
    driver = _known(_at(entries, "system", "Driver version"))
    cards = [
        {key.lower(): value for key, value in entry.items()} if isinstance(entry, dict) else {}
        for name, entry in entries.items()
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


def _at(value: Any, *keys: str) -> Any:
    """A value within others; None where one of them is missing, or has another form."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _known(value: Any) -> str | None:
    text = fact_text(str(value)) if isinstance(value, str | int | float) else ""
    return None if text in ("", "N/A") else text


def _bus_id(value: Any) -> str | None:
    text = _known(value)
    return None if text is None else bus_id(text)


def _bytes(value: Any) -> int | None:
    """Of `206158430208`, `196592 MB` or `{"value": 196592, "unit": "MB"}`."""
    if isinstance(value, dict):
        value = f"{value.get('value')} {value.get('unit')}"
    size = _SIZE.fullmatch(_known(value) or "")
    return None if size is None else round(float(size[1]) * _UNITS[(size[2] or "").upper()])
