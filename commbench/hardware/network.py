"""The network of this machine: addresses, interfaces and RDMA devices, TCP settings, and counters
of bytes."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil

from commbench.core.errors import ConfigError
from commbench.core.units import natural_key, parse_rate
from commbench.results.network_cards import interfaces_of, ports_of, usable_ports_of

from .sources import (
    MASKED,
    ROOT,
    Facts,
    children,
    gather,
    key_part,
    parse_int,
    read_int,
    read_line,
    read_link,
    read_text,
)

LOOPBACK = "127.0.0.1"
BACKLOG = 1024  # of a listener: all ranks of a world connect at once
INTERFACE_NAME = re.compile(r"[^/\s]{1,15}")  # IFNAMSIZ, linux/if.h
ANY_PORT = 9  # connecting a UDP socket sends nothing: the kernel only looks up the route
UNKNOWN_SPEEDS = (0, -1, 2**32 - 1, 65535)  # as drivers report them
CLOUD_ADAPTER = re.compile("1d0f:efa.|1ae0:0042|17db:0501")  # EFA, gVNIC, Slingshot
WORD_BYTES = 4  # InfiniBand counts payload in words of four bytes (port_xmit_data, port_rcv_data)
# below /proc/sys/net; rmem and wmem of TCP are three numbers: minimum, default, maximum
SYSCTLS = {
    **{
        f"tcp_{name}": f"ipv4/tcp_{name}"
        for name in (
            "autocorking",
            "congestion_control",
            "limit_output_bytes",
            "moderate_rcvbuf",
            "mtu_probing",
            "no_metrics_save",
            "sack",
            "slow_start_after_idle",
            "timestamps",
            "window_scaling",
        )
    },
    "default_qdisc": "core/default_qdisc",
    "rmem_max_bytes": "core/rmem_max",
    "wmem_max_bytes": "core/wmem_max",
    "tcp_rmem_bytes": "ipv4/tcp_rmem",
    "tcp_wmem_bytes": "ipv4/tcp_wmem",
}


def check_interface(interface: str) -> str:
    """The value of the key `interface`; raises ConfigError if it is neither a name nor a
    network."""
    if _parse_network(interface) is None and not INTERFACE_NAME.fullmatch(interface):
        raise ConfigError(
            f"interface={interface!r} is not a valid interface; give a name (eth0) or a network"
            " (10.0.0.0/24)"
        )
    return interface


def told_rates(words: Iterable[object]) -> dict[str, float]:
    """The line rates of the key `limit` in GB/s, by interface or RDMA port: `eth0:100Gb/s`,
    `mlx5_0:1:400Gb/s`; by an empty name that of each node: `100Gb/s`. Raises ConfigError."""
    rates = dict[str, float]()
    for word in words:
        name, _, rate = str(word).rpartition(":")
        try:
            gb_per_s = parse_rate(rate)
        except ConfigError as error:
            raise ConfigError(f"limit={word}: {error}; write 100Gb/s or eth0:100Gb/s") from error
        if name in rates or (name and not INTERFACE_NAME.fullmatch(name)):
            why = "is given twice" if name in rates else f"{name} is not the name of an interface"
            raise ConfigError(f"limit={word}: {why}; write 100Gb/s or [eth0:10Gb/s,eth1:100Gb/s]")
        rates[name] = gb_per_s
    if "" in rates and len(rates) > 1:
        raise ConfigError("limit takes one rate of a node, or those of its interfaces, not both")
    return rates


def told_problem(rates: Mapping[str, float], nodes: Sequence[Facts]) -> str | None:
    """That no node has an interface of told_rates; None also where those of a node can't be
    seen."""
    seen = [[*interfaces_of(node), *ports_of(node)] for node in nodes]
    unknown = [name for name in rates if name and not any(name in node for node in seen)]
    if not unknown or not all(seen):
        return None
    return f"limit={unknown[0]}:RATE: no host has that interface; they have: {', '.join(seen[0])}"


def interface_name(interface: str) -> str:
    """The interface with this name, or with an address in this network. Raises ConfigError if it
    has no address."""
    return _find_interface(interface)[0]


def _find_interface(interface: str) -> tuple[str, str]:
    """Its name, and its IPv4 address or else an IPv6 address that is not link-local."""
    addresses = _addresses()
    network = _parse_network(interface)
    if network is not None:
        for name, candidates in addresses.items():
            for address in candidates:
                if ipaddress.ip_address(address.partition("%")[0]) in network:
                    return name, address
        available = ", ".join(
            f"{name} {candidates[0]}" for name, candidates in addresses.items() if candidates
        )
        raise ConfigError(
            f"interface={interface}: no address of this host is in that network; it has:"
            f" {available}"
        )
    if interface not in addresses:
        raise ConfigError(
            f"interface={interface} does not exist on this host; it has: {', '.join(addresses)}"
        )
    if not addresses[interface]:
        raise ConfigError(
            f"interface={interface} has no IP address; choose another interface or assign one"
        )
    return interface, addresses[interface][0]


def interface_at(address: str) -> str:
    """The interface with this address; empty if there is none."""
    return next((name for name, addresses in _addresses().items() if address in addresses), "")


def _addresses() -> dict[str, list[str]]:
    """The addresses of each interface, IPv4 first, without link-local ones, which need a scope to
    be reached; eth2 before eth10."""
    return {
        name: [
            address.address
            for family in (socket.AF_INET, socket.AF_INET6)
            for address in addresses
            if address.family == family and not address.address.lower().startswith("fe80")
        ]
        for name, addresses in sorted(
            psutil.net_if_addrs().items(), key=lambda item: natural_key(item[0])
        )
    }


def _down_interfaces() -> set[str]:
    """Those that are known to be down: where /proc is masked, none is."""
    with suppress(*MASKED):
        return {name for name, stats in psutil.net_if_stats().items() if not stats.isup}
    return set()


def _parse_network(interface: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The network 10.0.0.0/24; None for a name."""
    if "/" not in interface:
        return None
    try:
        return ipaddress.ip_network(interface, strict=False)
    except ValueError as error:
        raise ConfigError(
            f"interface={interface}: {error}; write a network such as 10.0.0.0/24"
        ) from error


def meeting_address(interface: str | None, *peers: str) -> str:
    """The address at which the peers reach this host; loopback without peers. Raises ConfigError if
    there is none.

    It is on the given interface, else on the route to the peers.
    """
    if interface is not None:
        return _find_interface(interface)[1]
    return outer_address(*peers) if peers else LOOPBACK


def outer_address(*peers: str) -> str:
    """The address at which other hosts reach this one. Raises ConfigError if it has only loopback
    addresses.

    It is that on the route to a peer, else that of the host name, else that of any interface.
    """
    for peer in peers:
        with suppress(OSError, UnicodeError):  # a label of a name may be too long for DNS
            family, _, _, _, target = socket.getaddrinfo(peer, ANY_PORT, type=socket.SOCK_DGRAM)[0]
            with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
                probe.connect(target)
                address = str(probe.getsockname()[0])
            if not is_loopback(address):
                return address
    with suppress(OSError, UnicodeError):
        address = socket.gethostbyname(socket.gethostname())
        if not is_loopback(address):
            return address
    # on the host of the peer itself both may be loopback: /etc/hosts often maps the host's name to
    # it
    down = _down_interfaces()
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries if name not in down else ():
            if entry.family == socket.AF_INET and not is_loopback(entry.address):
                return entry.address
    raise ConfigError(
        "this host has only loopback addresses, but there are ranks on other nodes; choose one with"
        " interface=NAME"
    )


def network_advice(reason: str) -> str:
    """How to choose the network between the hosts, for ranks that do not reach each other.

    An interface that each host has for itself (docker0) often has the same address on all.
    """
    down = _down_interfaces()
    own = {
        name: addresses[0]
        for name, addresses in _addresses().items()
        if name not in down and addresses and not is_loopback(addresses[0])
    }
    if not own:
        return f"{reason}; this host has only loopback addresses"
    bridges = [name for name in own if (ROOT / "sys/class/net" / name / "bridge").exists()]
    example = next((name for name in own if name not in bridges), next(iter(own)))
    listed = ", ".join(f"{name} {address}" for name, address in own.items())
    doubt = f"; {bridges[0]} may be a bridge inside of each" if bridges else ""
    return f"{reason}: choose the network with interface={example} (here: {listed}{doubt})"


def own_address(host: str) -> str | None:
    """The address of a host name, IPv4 first; None if it is not an address of this machine."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            address = str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0])
            with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
                probe.bind((address, 0))
        except (OSError, UnicodeError):
            continue
        return address
    return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def socket_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def collect(root: Path = ROOT) -> Facts:
    """The facts as `network.*`, without hardware addresses."""
    return gather("network", SOURCES, root)


def outgoing_facts(interface: str | None, peers: Sequence[str]) -> Facts:
    """The interface to other nodes as `network.used.*`: the given one, else that on the route to
    the peers.

    Empty if there is none. Unless it is given, a library may use another one.
    """
    try:
        if interface is not None:
            name, address = _find_interface(interface)
        else:
            address = outer_address(*peers)
            name = interface_at(address)
    except (ConfigError, OSError):  # a sandbox may refuse to list interfaces
        return {}
    speed = known_speed(read_int(ROOT / "sys/class/net" / name / "speed")) if name else None
    facts = {"interface": name or None, "address": address, "speed_mbit_per_s": speed}
    return {f"network.used.{key}": value for key, value in facts.items() if value is not None}


def known_speed(speed: int | None) -> int | None:
    """The speed of an interface; None for the numbers that mean unknown."""
    return None if speed in UNKNOWN_SPEEDS else speed


def interface_facts(root: Path) -> Facts:
    """State, MTU, line rate, driver, NUMA node, IPv4 addresses and network of every interface."""
    facts = Facts()
    addresses = psutil.net_if_addrs()
    for folder in children(root / "sys/class/net"):
        if not folder.is_dir():  # bonding_masters
            continue
        driver = read_link(folder / "device/driver")
        network = None
        entries = [
            entry for entry in addresses.get(folder.name, []) if entry.family == socket.AF_INET
        ]
        if entries and entries[0].netmask:
            network = str(
                ipaddress.ip_network(f"{entries[0].address}/{entries[0].netmask}", strict=False)
            )
        of_interface = {
            "state": read_line(folder / "operstate"),
            "mtu_bytes": read_int(folder / "mtu"),
            "speed_mbit_per_s": known_speed(read_int(folder / "speed")),
            "driver": Path(driver).name if driver else None,
            "numa_node": _numa_node(folder),
            "ipv4": ",".join(sorted(entry.address for entry in entries)) or None,
            "network": network,
        }
        facts |= {
            f"network.interface.{key_part(folder.name)}.{key}": value
            for key, value in of_interface.items()
        }
    return facts


def networks_behind(variable: str, value: str, facts: Facts) -> str | None:
    """The networks that an environment variable selects on the host of these facts: `10.0.0.0/24 at
    100 Gb/s`.

    NCCL's variables select by prefix (see `nccl_chooses`). Names in any other variable are exact,
    and the result is None unless each of them is an interface with an address, or a port.
    """
    interfaces = {}
    for name, own in interfaces_of(facts).items():
        if name != "lo" and "network" in own:
            mbit_per_s = own.get("speed_mbit_per_s")
            rate = "an unknown rate" if mbit_per_s is None else f"{mbit_per_s / 1000:g} Gb/s"
            interfaces[name] = f"{own['network']} at {rate}"
    ports = {
        name: f"{own.get('link_layer')} at {own['rate_gbit_per_s']:g} Gb/s"
        for name, own in usable_ports_of(facts).items()
        if "rate_gbit_per_s" in own
    }
    if variable.startswith("NCCL_"):
        links = ports if variable.endswith("_HCA") else interfaces
        chosen = [links[name] for name in links if value and nccl_chooses(value, name)]
        return ", ".join(sorted(chosen)) or None
    names = [key_part(name) for name in value.split(",")]
    exact = [
        interfaces.get(name) or ports.get(name if ":" in name else f"{name}:1") for name in names
    ]
    return None if None in exact else ", ".join(sorted(map(str, exact)))


def nccl_chooses(value: str, name: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME or NCCL_IB_HCA with this value selects an interface (eth0) or a
    port (mlx5_0:1).

    Names are prefixes, after `=` exact; `^` selects all others (NCCL user guide, environment
    variables).
    """
    listed = value.removeprefix("^")
    device, _, port = name.partition(":")
    exact = listed.startswith("=")
    matched = False
    for entry in listed.removeprefix("=").split(","):
        wanted, _, wanted_port = entry.partition(":")
        same = device == wanted if exact else device.startswith(wanted)
        matched |= bool(wanted) and same and wanted_port in ("", port)
    return matched != value.startswith("^")


def sysctl_facts(root: Path) -> Facts:
    """The settings of TCP: limits of its windows, congestion control, slow start after a pause."""
    texts = {
        f"network.{name}": read_line(root / "proc/sys/net" / path) for name, path in SYSCTLS.items()
    }
    return {
        name: text if (number := parse_int(text or "")) is None else number
        for name, text in texts.items()
    }


def rdma_facts(root: Path) -> Facts:
    """Firmware, NUMA node and ports of every InfiniBand or RoCE device."""
    facts: Facts = {}
    for device in children(root / "sys/class/infiniband"):
        key = f"network.rdma.{key_part(device.name)}"
        facts |= {
            f"{key}.firmware": read_line(device / "fw_ver"),
            f"{key}.numa_node": _numa_node(device),
        }
        for port in children(device / "ports", r"\d+"):
            state = read_line(port / "state") or ""
            # 200 Gb/sec (4X HDR)
            rate = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) Gb/sec", read_text(port / "rate"))
            facts |= {
                # "4: ACTIVE"
                f"{key}:{port.name}.state": state.partition(": ")[2] or state or None,
                f"{key}:{port.name}.link_layer": read_line(port / "link_layer"),
                f"{key}:{port.name}.rate_gbit_per_s": float(rate[1]) if rate else None,
            }
    return facts


def pci_facts(root: Path) -> Facts:
    """How many PCI devices of each kind there are that tell the network of a cloud."""
    ids = (
        f"{read_line(device / 'vendor')}:{read_line(device / 'device')}".replace("0x", "")
        for device in children(root / "sys/bus/pci/devices")
    )
    return {f"network.pci.{key}": n for key, n in Counter(filter(CLOUD_ADAPTER.match, ids)).items()}


def line_rates(facts: Facts) -> dict[str, float]:
    """The rates of a node's interfaces (eth0) and RDMA ports (mlx5_0:1) in Mbit/s.

    Without bonded devices (mlx5_bond_0), of which the kernel may report the rate of one port
    (NVIDIA/nccl#1015).
    """
    rates = {name: own.get("speed_mbit_per_s") for name, own in interfaces_of(facts).items()}
    for name, own in ports_of(facts).items():
        rates[name] = 1e3 * (own.get("rate_gbit_per_s") or 0)
    return {name: rate for name, rate in rates.items() if rate and "_bond_" not in name}


def _numa_node(folder: Path) -> int | None:
    node = read_int(folder / "device/numa_node")
    return None if node is None or node < 0 else node


def byte_counters(root: Path = ROOT) -> dict[str, float]:
    """The bytes that every interface which is up and every InfiniBand port has sent and received,
    without loopback.

    Keys are `nic.eth0.tx_bytes`, `nic.mlx5_0:1.rx_bytes`. The kernel counts for all processes since
    the host booted.
    """
    counters = dict[str, float]()
    for interface in children(root / "sys/class/net"):
        if interface.name != "lo" and read_line(interface / "operstate") != "down":
            for key in ("rx_bytes", "tx_bytes"):
                if (count := read_int(interface / "statistics" / key)) is not None:
                    counters[f"nic.{interface.name}.{key}"] = float(count)
    for port in (
        port
        for device in children(root / "sys/class/infiniband")
        for port in children(device / "ports")
    ):
        for key, name in (("rx_bytes", "port_rcv_data"), ("tx_bytes", "port_xmit_data")):
            if (words := read_int(port / "counters" / name)) is not None:
                counters[f"nic.{port.parent.parent.name}:{port.name}.{key}"] = float(
                    WORD_BYTES * words
                )
    return counters


SOURCES = (interface_facts, sysctl_facts, rdma_facts, pci_facts)
