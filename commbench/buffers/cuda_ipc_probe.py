"""Does CUDA IPC work between these processes? Tried, not guessed: each opens memory of the others and reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from commbench.core.case import World
from commbench.core.protocols import Control

from .cuda_ipc import Exporter, IpcError

PROBE_BYTES = 4096
WORKED = "worked"


def probe(make: Callable[[int], Exporter], world: World, control: Control, deadline_s: float) -> dict[str, str]:
    """What rank A saw when it opened rank B's memory, as "A-B", for all ranks of a node: `worked`, or who refused what.

    All ranks of the world call it and get the same answer. `make` gives this rank's exporter for its place in its node;
    a little of its memory stays allocated. Raises nothing but Missing.
    """
    here = world.nodes[world.node_of(world.rank)]
    exporter, offer = _offered(make, here.index(world.rank), world.rank)
    offers = control.decide(control.gather(offer, deadline_s, "IPC probe") or None, deadline_s, "IPC probe")
    seen = {f"{world.rank}-{peer}": _seen(exporter, offer, offers[peer], peer) for peer in here if peer != world.rank}
    # nobody leaves, and frees what is open elsewhere, before all have looked
    everything = control.gather(seen, deadline_s, "IPC probe's end")
    merged = {pair: text for part in everything for pair, text in part.items()}
    found: dict[str, str] = control.decide(merged, deadline_s, "IPC probe's end")
    return found


def refusals(found: dict[str, str]) -> list[str]:
    """The distinct reasons, in order."""
    return list(dict.fromkeys(text for text in found.values() if text != WORKED))


def pattern(rank: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """PROBE_BYTES that differ from rank to rank."""
    return ((np.arange(PROBE_BYTES) * 31 + 7 * rank + 1) % 251).astype(np.uint8)


def _offered(make: Callable[[int], Exporter], place: int, rank: int) -> tuple[Exporter | None, Sequence[str]]:
    """The exporter, and ("handle", hex) or ("refused", why)."""
    try:
        exporter = make(place)
        address = exporter.allocate(PROBE_BYTES)
        exporter.upload(address, pattern(rank))
        return exporter, ("handle", exporter.export(address).hex())
    except (IpcError, MemoryError) as error:
        return None, ("refused", str(error))


def _seen(exporter: Exporter | None, own: Sequence[str], other: Sequence[str], peer: int) -> str:
    if exporter is None:
        return own[1]
    kind, word = other
    if kind == "refused":
        return f"rank {peer}: {word}"
    try:
        address = exporter.open(bytes.fromhex(word))
        read = exporter.download(address, PROBE_BYTES)
        exporter.close(address)
    except IpcError as error:
        return str(error)
    wrong = int(np.count_nonzero(read != pattern(peer)))
    return f"{wrong} of {PROBE_BYTES} bytes were read wrong" if wrong else WORKED
