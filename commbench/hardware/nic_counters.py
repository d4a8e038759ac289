"""Bytes that have gone through this node's network ports, as the kernel counts them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CLASSES = Path("/sys/class")
WORD_BYTES = 4  # InfiniBand counts payload in words of four octets (port_xmit_data, port_rcv_data)


def readings(classes: Path = CLASSES) -> dict[str, float]:
    """`nic.eth0.tx_bytes` and rx of every interface that is up, and of every InfiniBand port: `nic.mlx5_0:1.tx_bytes`.

    Counted for all processes of the node since it was started; loopback is left out.
    """
    return dict(found for found in (*_interfaces(classes / "net"), *_ports(classes / "infiniband")))


def _interfaces(folder: Path) -> Iterator[tuple[str, float]]:
    for one in _children(folder):
        if one.name != "lo" and _text(one / "operstate") != "down":
            for way in ("rx", "tx"):
                yield from _counted(f"nic.{one.name}.{way}_bytes", one / "statistics" / f"{way}_bytes", 1)


def _ports(folder: Path) -> Iterator[tuple[str, float]]:
    for device in _children(folder):
        for port in _children(device / "ports"):
            for way, name in (("rx", "port_rcv_data"), ("tx", "port_xmit_data")):
                yield from _counted(f"nic.{device.name}:{port.name}.{way}_bytes", port / "counters" / name, WORD_BYTES)


def _counted(name: str, file: Path, factor: int) -> Iterator[tuple[str, float]]:
    text = _text(file)
    if text.isascii() and text.isdigit():
        yield name, float(factor * int(text))


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""
