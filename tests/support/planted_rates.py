"""Rates of virtual hosts that change while a stream runs."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from virtual_hosts import BURST, QUEUE, Host

BEGUN_BYTES = 400_000  # of the interface: more than what goes before the stream


@contextmanager
def staircase(sender: Host, steps: Sequence[tuple[float, float]]) -> Iterator[None]:
    """Change the rate of a host, in Mb/s, so many seconds after it has begun to send."""
    ended = threading.Event()

    def climb() -> None:
        begin_s = _begun(sender, ended)
        for at_s, rate_mbit in steps:
            if ended.wait(max(0.0, begin_s + at_s - time.monotonic())):
                return
            set_rate(sender, rate_mbit)

    thread = threading.Thread(target=climb)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _begun(sender: Host, ended: threading.Event) -> float:
    """When the interface has sent far more within 50 ms than what goes before a stream."""
    before = _sent_bytes(sender)
    while not ended.wait(0.05):
        sent = _sent_bytes(sender)
        if sent - before > BEGUN_BYTES:
            return time.monotonic() - 0.05
        before = sent
    return time.monotonic()


def _sent_bytes(host: Host) -> int:
    shown = subprocess.run(
        ["ip", "-n", host.name, "-s", "-j", "link", "show", "eth0"],
        capture_output=True,
        check=True,
        timeout=10,
    )
    return int(json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"])


def set_rate(host: Host, rate_mbit: float) -> None:
    """Of what the host sends."""
    rate = f"{rate_mbit * 1e6:.0f}bit"
    discipline = ["tbf", "rate", rate, "burst", BURST, "latency", QUEUE]
    change = ["tc", "-n", host.name, "qdisc", "replace", "dev", "eth0", "root", *discipline]
    subprocess.run(change, check=True, timeout=10)
