"""What CUDA_VISIBLE_DEVICES leaves of a machine's GPUs, as CUDA reads it.

The rules (CUDA C++ Programming Guide, environment variables): entries are numbers, `GPU-` and the beginning of a UUID,
or `MIG-` and a UUID; all of one kind. What comes after an invalid entry is hidden, so `-1` hides everything behind it,
and an entry given twice hides all GPUs. Numbers count in the order of CUDA_DEVICE_ORDER.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .nvml import Gpu

VARIABLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def parse_visible(text: str | None) -> tuple[str, ...] | None:
    """The entries that count, numbers without leading zeros; None where the variable is not set: all are visible."""
    if text is None:
        return None
    entries: list[str] = []
    for word in text.split(","):
        entry = _entry(word.strip())
        if entry is None or (entries and _kind(entry) != _kind(entries[0])):
            break
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


def _entry(word: str) -> str | None:
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", word):
        return word
    number = re.match(r"[+]?([0-9]{1,9})(?![0-9])", word)  # as C reads numbers: 2nd is 2
    return str(int(number[1])) if number else None


def _kind(entry: str) -> str:
    return entry[:4] if entry[0] in "GM" else ""


def visible_indices(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> list[int] | None:
    """NVML's numbers of the visible GPUs in CUDA's order; None where only CUDA knows: parts of GPUs (MIG), or numbers
    that count from the fastest GPU of several kinds."""
    entries = parse_visible(environ.get(VARIABLE))
    if any(gpu.mig for gpu in gpus) or (entries and entries[0].startswith("MIG-")):
        return None
    same_order = environ.get(ORDER) == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1
    if not same_order and not (entries == () or (entries and entries[0].startswith("GPU-"))):
        return None
    return [gpu.index for gpu in gpus] if entries is None else _chosen(entries, gpus)


def _chosen(entries: Sequence[str], gpus: Sequence[Gpu]) -> list[int]:
    found: list[int] = []
    for entry in entries:
        matches = [gpu.index for gpu in gpus if _is(gpu, entry)]
        if len(matches) != 1:  # nobody, or a beginning that several have
            break
        if matches[0] in found:
            return []
        found += matches
    return found


def _is(gpu: Gpu, entry: str) -> bool:
    return (gpu.uuid or "").lower().startswith(entry.lower()) if entry[0] == "G" else str(gpu.index) == entry
