"""NCCL's log with NCCL_DEBUG=INFO: the transport of each pair of ranks, rings, algorithms.

The patterns match NCCL 2.5 to 2.28, by the format strings in the libraries of 2.18.1, 2.21.5 and
2.28.9. Ranks are those of a communicator, which the lines do not name: in a log of several
communicators they can't be told apart. Algorithms are logged only with
NCCL_DEBUG_SUBSYS=INIT,TUNING, one line per call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from commbench.core.layout import Pair

from .sources import fact_text

Kinds = Mapping[Pair, tuple[str, ...]]
INFO_MARK = "NCCL INFO "
# src/collectives.cc; older versions log numbers
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
# transports by which a process accesses memory of another one; `P2P/direct pointer` is within one
# process
MAPPED_TRANSPORTS = ("P2P/IPC", "P2P/CUMEM", "P2P/MNNVL", "P2P/indirect")

_N = r"(\d{1,9})"
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+){1,3})")
_CHANNEL = re.compile(
    rf"(?:Channel|Ring) \d+(?:/\d+)? : {_N}\[\w+\] -> {_N}\[\w+\] (?:\[\w+\] )?via (\S.*)"
)
_COLLNET = re.compile(r"CollNet \d+/\d+ : \d+ \[\w+\] via (COLLNET/\S.*)")
_KIND = re.compile(
    r"P2P/(?:direct pointer|indirect|IPC|CUMEM|MNNVL)|SHM/(?:direct|CE)/(?:direct|CE)"
)
_NET = re.compile(r"((?:NET|COLLNET)/[^/]{1,60})/\d+(?:\(\d+\))?(/GDRDMA)?")
_RINGS = re.compile(rf"Channel \d+/{_N} :(?:\s+\d+)+\s*$")
_TREES = re.compile(r"Trees((?: \[\d+\] \S+)+)")
_CHANNELS = re.compile(r"\d+ coll channels,(?: \d+ collnet channels,)? (\d{1,9}) nvls channels")
_MULTICAST = re.compile(r"NVLS multicast support is (not )?available")
_NETWORK = re.compile(r"Using network (\S.{0,60})")
_PLUGIN = re.compile(r"NET/Plugin ?: Loaded net plugin (.{1,60}?) \(v\d+\)|P2P plugin (\S.{0,60})")
_INTERFACES = re.compile(r"NET/(?:IB|Socket)\w* : Using(.+)")
_INTERFACE = re.compile(r"\[\d+\]([\w.-]+)(:\d+/\w+)?")
_NUMBERED = re.compile(rf"{_N} Bytes -> Algo (\d) proto [0-2] time")
_NAMED = re.compile(r"(\w{1,40}): (\d{1,18}) Bytes -> Algo (\w{1,40}) proto \w{1,40}")
_SYMMETRIC = re.compile(r"(\w{1,40}) \[Symmetric\]: (\d{1,18}) Bytes -> Kernel (\w{1,80})")


@dataclass(frozen=True)
class Chosen:
    """The algorithm of a call. `operation` (AllReduce) is None if the line does not name it."""

    operation: str | None
    message_bytes: int
    algorithm: str


@dataclass(frozen=True)
class Transport:
    """The contents of a log; None or empty for what it does not contain.

    `kinds` are sorted names such as P2P/IPC, NET/IB/GDRDMA. `multicast` is whether NVLink SHARP is
    available, `nvls_channels` the number of channels that use it. InfiniBand interfaces have port
    and link layer: mlx5_0:1/IB.
    """

    version: str | None = None
    network: str | None = None
    plugin: str | None = None
    interfaces: tuple[str, ...] = ()
    kinds: Kinds = field(default_factory=dict)
    collnet: tuple[str, ...] = ()
    rings: int | None = None
    trees: int | None = None
    multicast: bool | None = None
    nvls_channels: int | None = None
    algorithms: tuple[Chosen, ...] = ()

    @property
    def summary(self) -> str | None:
        """All transports, the most frequent first: `P2P/CUMEM, NET/IB/GDRDMA`."""
        return ", ".join([*by_frequency(self.kinds), *self.collnet]) or None


def by_frequency(kinds: Kinds) -> list[str]:
    """The transports of all pairs, the most frequent first, then by name."""
    return [kind for kind, _ in Counter(sorted(chain.from_iterable(kinds.values()))).most_common()]


def common_algorithm(calls: Iterable[Chosen], message_bytes: int, operation: str) -> str | None:
    """The algorithm of all calls of this operation (all_reduce) and size; None if they differ or
    there are none.

    A line that does not name its operation counts for each.
    """
    wanted = operation.replace("_", "").lower()
    same_size = (call for call in calls if call.message_bytes == message_bytes)
    names = {call.algorithm for call in same_size if (call.operation or wanted).lower() == wanted}
    return names.pop() if len(names) == 1 else None


def parse_log(text: str) -> Transport:
    """Read the log of one rank or of several, which may contain other output; never raises."""
    # NCCL's messages without the host and process before them; a line may have those of several
    # ranks
    messages = [message for line in text.splitlines() for message in line.split(INFO_MARK)[1:]]

    def matches(pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        return (match for message in messages if (match := pattern.match(message)))

    # Using `[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.1<0>`, or `[0]eth0:192.0.2.1<0>`
    used = (
        name
        for match in matches(_INTERFACES)
        for name in _INTERFACE.finditer(match[1].split("; OOB")[0])
    )
    chosen = (call for message in messages if (call := _chosen(message)) is not None)
    pairs: dict[Pair, set[str]] = {}
    for match in matches(_CHANNEL):
        pairs.setdefault((int(match[1]), int(match[2])), set()).add(kind_of(match[3]))
    version = _VERSION.search(text)
    plugin = next(matches(_PLUGIN), None)
    multicast = [match[1] is None for match in matches(_MULTICAST)]
    return Transport(
        version=version[1] if version else None,
        network=next((fact_text(match[1]).strip() for match in matches(_NETWORK)), None),
        plugin=fact_text(plugin[1] or plugin[2]).strip() if plugin else None,
        interfaces=tuple(dict.fromkeys(f"{name[1]}{name[2] or ''}" for name in used)),
        kinds={pair: tuple(sorted(kinds)) for pair, kinds in pairs.items()},
        collnet=tuple(sorted({kind_of(match[1]) for match in matches(_COLLNET)})),
        rings=max((int(match[1]) for match in matches(_RINGS)), default=None),
        trees=max((match[1].count("[") for match in matches(_TREES)), default=None),
        multicast=all(multicast) if multicast else None,
        nvls_channels=max((int(match[1]) for match in matches(_CHANNELS)), default=None),
        algorithms=tuple(dict.fromkeys(chosen)),
    )


def kind_of(text: str) -> str:
    """P2P/IPC of `P2P/IPC/read`, NET/IB/GDRDMA of `NET/IB/0(3)/GDRDMA/Shared`; of an unknown text
    the first word."""
    if net := _NET.match(text):
        return fact_text(f"{net[1]}{net[2] or ''}")
    known = _KIND.match(text)
    return known[0] if known else fact_text(text).split(" ")[0][:60]


def effective_ipc(kinds: Kinds, node_of: Callable[[int], int], multicast: bool) -> str | None:
    """Whether processes of one node accessed each other's GPU memory: on, off, mixed, or None if
    unknown.

    `multicast`: the communicator has NVLS channels, whose collectives access it.
    """
    local = {
        kind
        for pair, names in kinds.items()
        if node_of(pair[0]) == node_of(pair[1])
        for kind in names
    }
    mapped = multicast or not local.isdisjoint(MAPPED_TRANSPORTS)
    copied = any(kind.startswith(("SHM/", "NET/")) for kind in local)
    if mapped and copied:
        return "mixed"
    if mapped:
        return "on"
    return "off" if copied else None


def _chosen(message: str) -> Chosen | None:
    if match := _NAMED.match(message):
        return Chosen(match[1], int(match[2]), match[3].upper())
    if match := _SYMMETRIC.match(message):
        return Chosen(match[1], int(match[2]), match[3])
    if (match := _NUMBERED.match(message)) and int(match[2]) < len(ALGORITHMS):
        return Chosen(None, int(match[1]), ALGORITHMS[int(match[2])])
    return None
