"""The flags of a case: what each means and what to do about it.

How certain a number is, its interval says. A flag is something to act on, or a fact without which
the number is read wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .row import Row
from .run_folder import mapping_or_empty


class Flag(NamedTuple):
    """`meaning` completes "this case has the flag because"; `advice` says what to do."""

    meaning: str
    advice: str


FLAGS = {
    "oversubscribed": Flag(
        "there are more threads than cores, or several ranks share one GPU",
        "use fewer ranks per node, or a machine with more cores or GPUs",
    ),
    "waited": Flag(
        "a rank was ready but had no core for more than 5 % of the measured time (column"
        " core_wait_share): other processes or threads had it",
        "end other load, use fewer ranks per node, or take the time as an upper bound",
    ),
    "throttled": Flag(
        "a GPU lowered its clock during the measurement: heat, power or a hardware brake",
        "look at clocks and temperature in counters.parquet; improve the cooling, raise the power"
        " limit or lock the clocks",
    ),
    "fallback": Flag(
        "the library used a slower transport than the machine has: TCP beside EFA, InfiniBand,"
        " RoCE, Slingshot or a network of Google Cloud, or MPI without room in /dev/shm (64 MiB or"
        " less)",
        "the column reason has the network that is expected, and what to look at. MPI: start the"
        " container with --shm-size=8g or --ipc=host",
    ),
    "unregistered": Flag(
        "windows were asked for (registration=symmetric), and NCCL did not use them",
        "the column reason has the kernel that ran, or the settings that decide: see docs/gpu.md",
    ),
    "skewed": Flag(
        "ranks began a repetition more than 5 % of its time apart (column skew_s)",
        "the wait for the last rank is a part of the time; larger messages are less affected",
    ),
    "impossible": Flag(
        "the bus bandwidth is above a limit of the hardware (columns limit_gb_per_s, limit_kind),"
        " so one of the two is wrong",
        "see the column reason: in-network reduction (NVLS, SHARP) moves fewer bytes than the bus"
        " factor assumes, and limit= may tell too little",
    ),
    "in_cache": Flag(
        "the buffers of this size stay in the last-level cache although they rotate",
        "the rate is that of the cache; larger messages show that of the memory",
    ),
    "overhead": Flag(
        "reading the clock takes more than 5 % of a sample, or the call from Python more than 10 %"
        " of the time",
        "take the time as an upper bound for the library; use engine=native where the backend has"
        " it, or larger messages",
    ),
    "unchecked": Flag(
        "only the last of several messages to the same memory was checked",
        "use buffers=own, which gives each message its own memory and checks all of them",
    ),
}
# the time includes something other than the link
UNUSABLE = frozenset({"oversubscribed", "waited", "throttled", "impossible"})
UNBOUND = "ranks not bound"
UNKNOWN_FLAG = Flag(
    "a flag of another version of commbench", "see that version's documentation (run.json names it)"
)


def flag_named(name: str) -> Flag:
    return FLAGS.get(name, UNKNOWN_FLAG)


def binding_text(run: Mapping[str, Any]) -> str:
    """Whether each rank has cores of its own, from run.json; empty where that is not recorded."""
    provenance = mapping_or_empty(run.get("provenance"))
    differing = mapping_or_empty(provenance.get("differences"))
    if "run.bind" in differing:
        return "ranks bound to cores"
    if "host.cpu_affinity" in differing:
        return "ranks bound by the launcher"
    nodes = provenance.get("nodes")
    listed = nodes if isinstance(nodes, list) else []
    bindings = {str(mapping_or_empty(node).get("run.bind")) for node in listed}
    if bindings and all(text.startswith(("core ", "numa ")) for text in bindings):
        return "ranks bound to cores"  # where each node has one rank, or two the same cores
    return UNBOUND if bindings == {"none"} else ""


def is_bound(run: Mapping[str, Any]) -> bool:
    """Whether each rank of the run is known to have cores of its own."""
    return binding_text(run) not in ("", UNBOUND)


def shared_flags(rows: Iterable[Row]) -> frozenset[str]:
    """The flags that all of these rows have."""
    flags = [frozenset(row.warnings) for row in rows]
    return frozenset.intersection(*flags) if flags else frozenset()
