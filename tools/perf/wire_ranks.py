"""One of two ranks on sockets: p2p_bandwidth of backend tcp and iperf3 take turns, each for about
SECONDS.

`wire_ranks.py RANK HOST PORT NODES MESSAGE_BYTES WINDOW SECONDS`; rank 0 prints one line of JSON:
for each number of streams the payload rates of both sides, bytes/s, in the order of their turns.
The receiving rank runs iperf3's server.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from cases import ONE_NODE, TWO_NODES, check, planned

from commbench.core.case import Planned, World
from commbench.features.tcp.backend import Tcp, TcpCommunicator
from commbench.runtime.control import StoreControl

TURNS = 4
STREAMS = (1, 4)
PATIENCE_S = 60.0
IPERF3 = ["timeout", "-k", "5", "300", "iperf3"]  # so that it ends even if this process is killed
BLOCK = "1M"  # the largest that iperf3 accepts; tcp hands whole messages to the kernel
Rates = dict[str, list[float]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextmanager
def iperf3_server() -> Iterator[int]:
    """Run iperf3's server during the block; its port."""
    port = free_port()
    with tempfile.NamedTemporaryFile() as log:
        command = [*IPERF3, "--server", "--forceflush", "--port", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until = time.monotonic() + PATIENCE_S
            while "listening" not in Path(log.name).read_text():
                assert server.poll() is None and time.monotonic() < until, Path(
                    log.name
                ).read_text()
                time.sleep(0.05)
            yield port
        finally:
            server.terminate()
            server.wait()


def iperf3(seconds: int, streams: int, address: str, port: int) -> float:
    """Received bytes/s after an omitted first second: tcp uses warm connections too."""
    words = [
        "--client",
        address,
        "--port",
        str(port),
        "--parallel",
        str(streams),
        "--length",
        BLOCK,
        "--json",
    ]
    timing = ["--time", str(seconds), "--omit", "1"]
    done = subprocess.run([*IPERF3, *words, *timing], capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    assert done.returncode == 0, result.get("error")
    return float(result["end"]["sum_received"]["bits_per_second"]) / 8


class Wire:
    """This rank's side: the control plane, the tcp communicator, and the address of iperf3's
    server."""

    def __init__(
        self,
        control: StoreControl,
        communicator: TcpCommunicator,
        server_port: int | None,
        seconds: int,
    ) -> None:
        self._control = control
        self._communicator = communicator
        self._rank = control.rank
        self._seconds = seconds
        here = control.gather([communicator.facts()["address"], server_port], PATIENCE_S)
        self._server = control.decide(here[1] if here else None, PATIENCE_S)

    def rates(self, job: Planned) -> Rates:
        program = job.benchmark.program(job.case, self._rank, job.size)
        held: Any = {
            spec.name: self._communicator.allocate(spec, job.pool) for spec in program.buffers
        }
        runner = self._communicator.prepare(
            {self._rank: program}, {self._rank: held}, job.case.mode
        )
        check(job, self._rank, held, runner)
        stamps = runner(1)[0]
        n = self._control.decide(
            max(1, round(self._seconds * 1e9 / (stamps[0, 1] - stamps[0, 0]))), PATIENCE_S
        )
        sides = {"ours": lambda: self._ours(job, runner, n), "iperf3": lambda: self._theirs(job)}
        rates: Rates = {name: [] for name in sides}
        for turn in range(TURNS):
            for name in sorted(sides, reverse=turn % 2 == 1):
                rates[name].append(sides[name]())
                # the rank without an iperf3 client waits here
                self._control.decide(None, PATIENCE_S)
        return rates

    def _ours(self, job: Planned, runner: Any, n: int) -> float:
        # like iperf3's omitted second: the congestion window shrinks while the other side runs
        runner(1)
        stamps = runner(n)[0]
        return float(n * job.shape.moved_bytes / (stamps[-1, 1] - stamps[0, 0]) * 1e9)

    def _theirs(self, job: Planned) -> float:
        return (
            iperf3(self._seconds, job.case.streams or 1, *self._server) if self._rank == 0 else 0.0
        )


def main(
    rank: int, host: str, port: int, nodes: int, message_bytes: int, window: int, seconds: int
) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    patience = timedelta(seconds=PATIENCE_S)
    control = StoreControl(
        TCPStore(host, port, None, rank == 0, patience, wait_for_workers=False), rank, 2
    )
    places = ONE_NODE if nodes == 1 else TWO_NODES
    words = [
        "backend=tcp",
        "benchmark=p2p_bandwidth",
        f"window={window}",
        f"streams={list(STREAMS)}",
        "buffers=shared",
    ]
    jobs = planned([*words, f"sizes=[{message_bytes}]"], rank, places)
    communicator = Tcp().open(World(rank, 2, places, (rank,)), control)
    with iperf3_server() if rank == 1 else nullcontext() as server_port:
        wire = Wire(control, communicator, server_port, seconds)
        rates = {str(job.case.streams): wire.rates(job) for job in jobs}
        control.farewell(PATIENCE_S)
    communicator.close()
    if rank == 0:
        print(json.dumps(rates), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *(int(word) for word in sys.argv[3:]))
