"""Sections loopback and link: backend tcp against iperf3, in turns between the same two ranks."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from claim import LAUNCHES, MIB, Claim, Skipped, run
from wire_ranks import STREAMS, Rates, free_port

# the virtual hosts of the tests
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from virtual_hosts import Link, missing, virtual_hosts

HERE = Path(__file__).parent
MOST_LAUNCHES = 3  # of about 40 s each
LAUNCH_S = 180
SLOW = Link(rate_mbit=500)
LINK_WINDOW = 64
LINK_MESSAGE_BYTES = MIB // 2  # a window of them takes half a second
LOOPBACK_WINDOW = 16
LOOPBACK_MESSAGE_BYTES = MIB  # iperf3's block, and memory that stays in the last-level cache
LOOPBACK_S = 1
LINK_S = 3  # per turn; the queue of the link at its begin and end must be negligible
LOOPBACK_BOUND = 1 / 0.9
LINK_BOUND = 1.03


@dataclass(frozen=True)
class Ends:
    """The prefixes of commands on the hosts of both ranks, and the address of rank 0."""

    starts: tuple[list[str], list[str]]
    host: str
    nodes: int
    message_bytes: int
    window: int
    seconds: int  # of a turn

    def launches(self) -> list[dict[str, Rates]]:
        """For each launch: the number of streams -> the rates of both sides."""
        return [self._launch() for _ in range(min(MOST_LAUNCHES, LAUNCHES))]

    def _launch(self) -> dict[str, Rates]:
        numbers = (free_port(), self.nodes, self.message_bytes, self.window, self.seconds)
        where = [self.host, *map(str, numbers)]
        first, second = (
            [*start, sys.executable, str(HERE / "wire_ranks.py"), str(rank), *where]
            for rank, start in enumerate(self.starts)
        )
        with tempfile.TemporaryFile() as log:
            other = subprocess.Popen(
                ["timeout", "-k", "5", str(LAUNCH_S), *second], stdout=log, stderr=log
            )
            try:
                rates: dict[str, Rates] = json.loads(run(first, LAUNCH_S).stdout)
                other.wait(LAUNCH_S)
            finally:
                other.terminate()
                other.wait()
        return rates


def claims_loopback() -> list[Claim]:
    """tcp reaches 0.9 of iperf3; both send the same block of cached memory again and again
    (buffers=shared)."""
    need_iperf3()
    seen = Ends(
        ([], []), "127.0.0.1", 1, LOOPBACK_MESSAGE_BYTES, LOOPBACK_WINDOW, LOOPBACK_S
    ).launches()
    made = []
    for streams in STREAMS:
        ratio, detail = compared([launch[str(streams)] for launch in seen])
        made.append(
            Claim(f"loopback: iperf3 / tcp at {named(streams)}", ratio, LOOPBACK_BOUND, detail)
        )
    return made


def claims_link() -> list[Claim]:
    """tcp is within 3 % of iperf3, above or below: the link limits both."""
    need_iperf3()
    reason = missing(SLOW)
    if reason is not None:
        raise Skipped(reason)
    seen = launches_over(SLOW, LINK_MESSAGE_BYTES, LINK_WINDOW)
    claims = []
    for streams in STREAMS:
        ratio, detail = compared([launch[str(streams)] for launch in seen])
        name = f"link of {SLOW.rate_mbit} Mbit/s: iperf3 and tcp at {named(streams)}"
        claims.append(
            Claim(name, max(ratio, 1 / ratio), LINK_BOUND, f"{detail}; the larger over the smaller")
        )
    return claims


def launches_over(link: Link, message_bytes: int, window: int) -> list[dict[str, Rates]]:
    """The launches of two virtual hosts with such a link between them; see Ends."""
    with (
        tempfile.TemporaryDirectory(prefix="commbench-perf-") as folder,
        virtual_hosts(2, Path(folder), link) as made,
    ):
        first, second = made.hosts
        starts = (first.command(), second.command())
        return Ends(starts, first.address, 2, message_bytes, window, LINK_S).launches()


def need_iperf3() -> None:
    if shutil.which("iperf3") is None:
        raise Skipped("iperf3 is not installed (apt-get install iperf3)")


def named(streams: int) -> str:
    return f"{streams} stream{'s' if streams > 1 else ''}"


def compared(launches: list[Rates]) -> tuple[float, str]:
    """iperf3 over tcp: the median over launches of the ratio of the medians of their turns, and a
    text."""
    ratios = [
        statistics.median(rates["iperf3"]) / statistics.median(rates["ours"]) for rates in launches
    ]
    median, best = (
        [
            f([rate for rates in launches for rate in rates[side]]) / 1e9
            for side in ("ours", "iperf3")
        ]
        for f in (statistics.median, max)
    )
    text = (
        f"{median[0]:.3f} GB/s against {median[1]:.3f} GB/s, best {best[0]:.3f} and {best[1]:.3f}"
    )
    return statistics.median(ratios), f"{text}; launches {min(ratios):.3f} to {max(ratios):.3f}"
