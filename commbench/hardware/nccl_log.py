"""NCCL's log with NCCL_DEBUG=INFO: the transport of each pair of ranks, rings, algorithms.

The patterns match NCCL 2.5 to 2.30: the format strings of all versions are in
tests/data/hardware/nccl_formats.yaml. Ranks are those of a communicator, which the lines do not
name: in a log of several communicators they can't be told apart. Algorithms are logged only with
NCCL_DEBUG_SUBSYS=INIT,TUNING, one line per call, by the communicator's rank 0.
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
Ports = tuple[str, ...]  # of a network device: mlx5_0:1/IB, or eth0
NetDevice = tuple[str, int]  # the network's name and the device's number, as in NET/IB/0
INFO_MARK = "NCCL INFO "
# NCCL_ALGO_* in src/include/nccl_common.h or device.h; 2.20 to 2.23 log the numbers
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
# collectives that NCCL runs by an algorithm in all versions
WITH_ALGORITHM = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
OLD_SHM = "direct shared memory"  # up to 2.12
SHM = "SHM/direct"
# transports by which a process accesses memory of another one; `P2P/direct pointer` is within one
# process
MAPPED_TRANSPORTS = ("P2P/IPC", "P2P/CUMEM", "P2P/MNNVL", "P2P/indirect")

_N = r"(\d{1,9})"
# RCCL version 2.18.6+hip6.2, from ROCm 6.3 on `RCCL version : 2.21.5-...`
_VERSION = re.compile(r"[NR]CCL version (?:: )?(\d+(?:\.\d+){1,3})")
_CHANNEL = re.compile(
    rf"(?:Channel|Ring) \d+(?:/\d+)? : {_N}\[\w+\] -> {_N}\[\w+\]"
    r" (?:\[(send|receive)\] )?via (\S.*)"
)
_COLLNET = re.compile(r"Coll(?:Net)? \d+(?:/\d+)? : \d+ \[\w+\] via (COLLNET/\S.*)")
_KIND = re.compile(
    r"P2P/(?:direct pointer|common device|indirect|IPC|CUMEM|MNNVL)"
    r"|SHM/(?:direct|CE)(?:/(?:direct|CE))?"
)
_NET = re.compile(r"((?:NET|COLLNET)/[^/]{1,60})/\d+(?:\(\d+\))?(/GDRDMA)?")
# the number in brackets is the rank whose proxy sends
_NET_DEVICE = re.compile(
    r"NET/([^/]{1,60})/(\d{1,4})(?:\(\d+\))?(?:/GDRDMA(?:\(PCI\))?)?(?:/Shared)?\s*"
)
_RINGS = re.compile(rf"Channel \d+/{_N} :(?:\s+\d+)+\s*$")
_TREES = re.compile(r"Trees((?: \[\d+\] \S+)+)")
_CHANNELS = re.compile(r"\d+ coll channels,(?: \d+ collnet channels,)? (\d{1,9}) nvls channels")
_MULTICAST = re.compile(r"NVLS multicast support is (not )?available")
_NETWORK = re.compile(r"Using network (\S.{0,60})")
# of libfabric, below the plugins of AWS and HPE; `tcp;ofi_rxm` is TCP
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;.-]{1,40})")
_PLUGIN = re.compile(r"NET/Plugin ?: Loaded net plugin (.{1,60}?) \(v\d+\)|P2P plugin (\S.{0,60})")
# Using [0]mlx5_0:1/IB [1]={[1] mlx5_1:1/IB, [2] mlx5_2:1/IB} [RO]; OOB eth0:192.0.2.1<0>
_DEVICES = re.compile(r"NET/(IB|Socket)\w* : Using(.+)")
_NUMBERED_DEVICE = re.compile(r"\[(\d{1,4})\](?:=\{([^}]{0,300})\}|(\S+))")
# behind the port its rail and plane may follow, and what the plugin IBext can do with it
_PORT = re.compile(r"(?:\[\d+\] )?([^\s:/]+:\d+)(?::\d*){0,2}/(IB|RoCE)(?:/SHARP)?")
_INTERFACE = re.compile(r"([^\s:]+):\S+<\d+>")
_MERGED = re.compile(r"NET/IB : Made virtual device \[(\d{1,4})\] name=(\S+\+\S+) speed=")
_NUMBERED = re.compile(r"(?:(\w{1,40}): )?(\d{1,18}) Bytes -> Algo (\d) proto [0-2] time")
_NAMED = re.compile(r"(\w{1,40}): (\d{1,18}) Bytes -> Algo ([A-Za-z]\w{0,40}) proto \w{1,40}")
_SYMMETRIC = re.compile(r"(\w{1,40}) \[Symmetric\]: (\d{1,18}) Bytes -> Kernel (\w{1,80})")
# 2.29 and newer, with the settings that decide
_NO_WINDOWS = re.compile(r"Symmetric memory is not supported\. (\S.{0,200})")
# with NCCL_DEBUG_SUBSYS=REG
_REGISTERED = re.compile(r"register comm \S+ buffer ")
_COPIES = re.compile(r"(\w{1,40}) \[(Copy Engine|Hierarchical CE)\]: (\d{1,18}) Bytes -> ")

# of a profile: ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32(...), ncclSymDevKernel_ in 2.27
_SYMMETRIC_KERNEL = re.compile(
    r"ncclSymk?DevKernel_([A-Za-z]+_\w+?)(?:_(?:sum|prod|min|max|avg)_\w+)?(?!\w)"
)
_USUAL_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_\w+")


@dataclass(frozen=True)
class Chosen:
    """The algorithm of a call. `operation` (AllReduce) is None if the line does not name it.

    2.20 to 2.23 log the bytes of the message, later versions (`per_block`) those of one of its
    blocks: an all_gather has one for each rank.
    """

    operation: str | None
    logged_bytes: int
    algorithm: str
    per_block: bool = True


@dataclass(frozen=True)
class Transport:
    """The contents of a log; None or empty for what it does not contain.

    `kinds` are sorted names such as P2P/IPC, NET/IB/GDRDMA. `devices` has the ports of each device
    of a network (IB, Socket) by its number; a merged one has several. `net_devices` are those by
    which a rank of this log reaches another one, by (rank, other rank). `multicast` is whether
    NVLink SHARP is available, `nvls_channels` the number of channels that use it. `no_windows`: why
    there is no symmetric memory; `registered`: whether a buffer was registered.
    """

    version: str | None = None
    network: str | None = None
    plugin: str | None = None
    provider: str | None = None
    devices: Mapping[str, Mapping[int, Ports]] = field(default_factory=dict)
    net_devices: Mapping[Pair, frozenset[NetDevice]] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=dict)
    collnet: tuple[str, ...] = ()
    rings: int | None = None
    trees: int | None = None
    multicast: bool | None = None
    nvls_channels: int | None = None
    algorithms: tuple[Chosen, ...] = ()
    no_windows: str | None = None
    registered: bool = False

    @property
    def interfaces(self) -> Ports:
        """All ports and interfaces that NCCL lists."""
        listed = (ports for devices in self.devices.values() for ports in devices.values())
        return tuple(dict.fromkeys(chain.from_iterable(listed)))

    @property
    def transport(self) -> str | None:
        """All transports, the most frequent first: `P2P/CUMEM, NET/IB/GDRDMA`."""
        return ", ".join([*by_frequency(self.kinds), *self.collnet]) or None


def by_frequency(kinds: Kinds) -> list[str]:
    """The transports of all pairs, the most frequent first, then by name."""
    return [kind for kind, _ in Counter(sorted(chain.from_iterable(kinds.values()))).most_common()]


def common_algorithm(
    calls: Iterable[Chosen], operation: str, message_bytes: int, block_bytes: int
) -> str | None:
    """The algorithm of all calls of this operation (all_reduce) and size; None if they differ, or
    there are none.

    A line that does not name its operation counts for each that has an algorithm; the others are
    sends and receives, of which NCCL logs none.
    """
    wanted = operation.replace("_", "")
    names = set()
    for call in calls:
        same_size = call.logged_bytes == (block_bytes if call.per_block else message_bytes)
        if call.operation is None:
            same_operation = wanted in WITH_ALGORITHM
        else:
            same_operation = call.operation.lower() == wanted
        if same_size and same_operation:
            names.add(call.algorithm)
    return names.pop() if len(names) == 1 else None


def symmetric_kernel(kernels: Iterable[str]) -> str | None:
    """AllReduce_RSxLDMC_AGxSTMC, as the log names it: the first kernel for symmetric memory."""
    found = (match[1] for name in kernels if (match := _SYMMETRIC_KERNEL.search(name)))
    return next(found, None)


def usual_kernel(kernels: Iterable[str]) -> str | None:
    """The first of NCCL's other kernels. Its name may have another algorithm than what it runs."""
    return next((match[0] for name in kernels if (match := _USUAL_KERNEL.search(name))), None)


def parse_log(text: str) -> Transport:
    """Read the log of one rank or of several, which may contain other output; never raises."""
    # NCCL's messages without the host and process before them; a line may have those of several
    # ranks
    messages = [message for line in text.splitlines() for message in line.split(INFO_MARK)[1:]]

    def matches(pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        return (match for message in messages if (match := pattern.match(message)))

    chosen = (call for message in messages if (call := _chosen(message)) is not None)
    pairs = dict[Pair, set[str]]()
    net_devices = dict[Pair, set[NetDevice]]()
    for match in matches(_CHANNEL):
        first = int(match[1])
        second = int(match[2])
        pairs.setdefault((first, second), set()).add(kind_of(match[4]))
        if match[3] is not None:
            ends = (first, second) if match[3] == "send" else (second, first)
            net_devices.setdefault(ends, set()).add(_net_device(match[4]))
    version = _VERSION.search(text)
    plugin = next(matches(_PLUGIN), None)
    multicast = [match[1] is None for match in matches(_MULTICAST)]
    return Transport(
        version=version[1] if version else None,
        network=next((fact_text(match[1]).strip() for match in matches(_NETWORK)), None),
        plugin=fact_text(plugin[1] or plugin[2]).strip() if plugin else None,
        provider=next((match[1] for match in matches(_PROVIDER)), None),
        devices=_listed_devices(messages),
        net_devices={ends: frozenset(devices) for ends, devices in net_devices.items()},
        kinds={pair: tuple(sorted(kinds)) for pair, kinds in pairs.items()},
        collnet=tuple(sorted({kind_of(match[1]) for match in matches(_COLLNET)})),
        rings=max((int(match[1]) for match in matches(_RINGS)), default=None),
        trees=max((match[1].count("[") for match in matches(_TREES)), default=None),
        multicast=all(multicast) if multicast else None,
        nvls_channels=max((int(match[1]) for match in matches(_CHANNELS)), default=None),
        algorithms=tuple(dict.fromkeys(chosen)),
        no_windows=next((fact_text(match[1]).strip() for match in matches(_NO_WINDOWS)), None),
        registered=any(matches(_REGISTERED)),
    )


def kind_of(text: str) -> str:
    """P2P/IPC of `P2P/IPC/read`, NET/IB/GDRDMA of `NET/IB/0(3)/GDRDMA/Shared`; of an unknown text
    the first word."""
    if text.startswith(OLD_SHM):
        return SHM
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


def ports_of(devices: Mapping[str, Mapping[int, Ports]], device: NetDevice) -> Ports:
    """The ports of a network device, without their link layer (mlx5_0:1); the device's own name,
    which is that of no port, if they are unknown."""
    network, number = device
    # a plugin with InfiniBand (IBext_v8) has NCCL's numbers and lists its ports as NCCL does
    listed = devices.get("IB" if network.startswith("IB") else network, {})
    # mlx5_0_dma is the second way from mlx5_0 to GPU memory (NCCL_IB_DATA_DIRECT)
    names = (port.partition("/")[0].replace("_dma:", ":") for port in listed.get(number, ()))
    ports = tuple(dict.fromkeys(names))
    return ports or (f"{network}/{number}",)


def _net_device(text: str) -> NetDevice:
    """(IB, 0) of `NET/IB/0(3)/GDRDMA/Shared`; of another text itself, with a number that no device
    has."""
    match = _NET_DEVICE.fullmatch(text)
    return (fact_text(match[1]), int(match[2])) if match else (fact_text(text)[:60], -1)


def _listed_devices(messages: Iterable[str]) -> dict[str, dict[int, Ports]]:
    """The devices of each network. A network that is listed twice, with different devices, has
    none that are known."""
    networks = dict[str, dict[int, Ports]]()
    merged = dict[int, list[str]]()
    for message in messages:
        if match := _DEVICES.match(message):
            devices = _numbered_ports(match[2].split("; OOB")[0])
            same = networks.setdefault(match[1], devices) == devices
            networks[match[1]] = devices if same else {}
        elif match := _MERGED.match(message):
            merged[int(match[1])] = match[2].split("+")
    infiniband = networks.get("IB", {})
    ports = Counter(chain.from_iterable(infiniband.values()))
    for number, names in merged.items():
        # the line names devices: those of several ports are known if it has all of them
        own = [port for port in ports if port.partition(":")[0] in names]
        if Counter(port.partition(":")[0] for port in own) == Counter(names):
            infiniband.setdefault(number, tuple(own))
    return networks


def _numbered_ports(text: str) -> dict[int, Ports]:
    """The ports of each device, by its number; a device that is not understood is missing.

    2.20 to 2.23 may merge ports into one device. From there on their lines name a port by its own
    number, so a device's number is its place.
    """
    devices = dict[int, Ports]()
    entries = list(_NUMBERED_DEVICE.finditer(text))
    counted = any(entry[2] is not None for entry in entries)
    for place, entry in enumerate(entries):
        ports = [_port(name) for name in (entry[2] or entry[3]).split(", ")]
        if counted or int(entry[1]) == place:
            devices[place] = tuple(port for port in ports if port is not None)
        if None in ports:
            devices.pop(place, None)
    return devices


def _port(text: str) -> str | None:
    """mlx5_0:1/IB of `[0] mlx5_0:1:3:2/IB` (rail 3, plane 2), eth0 of `eth0:192.0.2.1<0>`; None if
    it is neither."""
    if match := _PORT.fullmatch(text):
        return fact_text(f"{match[1]}/{match[2]}")
    match = _INTERFACE.fullmatch(text)
    return fact_text(match[1]) if match else None


def _chosen(message: str) -> Chosen | None:
    if match := _NAMED.match(message):
        return Chosen(match[1], int(match[2]), match[3].upper())
    if match := _SYMMETRIC.match(message):
        return Chosen(match[1], int(match[2]), match[3])
    if match := _COPIES.match(message):
        return Chosen(match[1], int(match[3]), match[2])
    if (match := _NUMBERED.match(message)) and int(match[3]) < len(ALGORITHMS):
        return Chosen(match[1], int(match[2]), ALGORITHMS[int(match[3])], per_block=False)
    return None
