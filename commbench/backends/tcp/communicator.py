"""The ranks that talk over sockets: programs prepared, connections counted."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping, Sequence
from typing import Any, cast

from commbench.buffers.host import HostBuffer
from commbench.core.case import Mode
from commbench.core.errors import Unsupported
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Buffer
from commbench.engines.loop import PythonRunner

from .endpoint import BARRIER, Endpoint, Key
from .lowering import TcpLowering, barrier_partners, peers


class TcpCommunicator:
    """See Communicator; hosts one rank. `ranks` are those of the world, in its own order."""

    def __init__(self, endpoint: Endpoint, ranks: tuple[int, ...]) -> None:
        self._endpoint, self._ranks = endpoint, ranks
        self.size = len(ranks)
        self.hosted = (ranks.index(endpoint.rank),)
        self._used: list[Key] = []  # by the program prepared last: peer in this communicator, stream
        # all of its ranks come by here at once: what can't be reached is found before anything is measured
        partners = {peer for pair in barrier_partners(self.hosted[0], self.size) for peer in pair}
        endpoint.connect((ranks[peer], BARRIER) for peer in partners)

    def subset(self, ranks: Sequence[int]) -> TcpCommunicator | None:
        chosen = tuple(self._ranks[rank] for rank in ranks)
        return TcpCommunicator(self._endpoint, chosen) if self._endpoint.rank in chosen else None

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return HostBuffer(spec, pool)

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> PythonRunner:
        """Also connects to the peers that the program names; raises WorldBroken where one can't be reached."""
        if mode.engine != "python":
            raise Unsupported(f"tcp has no {mode.engine} engine")
        rank = self.hosted[0]
        program, held = programs[rank], cast(Mapping[str, HostBuffer], buffers[rank])
        self._used = [(peer, stream) for peer in peers(program) for stream in range(mode.streams)]
        partners = {peer for pair in barrier_partners(rank, self.size) for peer in pair}
        wanted = [*self._used, *((peer, BARRIER) for peer in partners)]
        self._endpoint.connect((self._ranks[peer], stream) for peer, stream in wanted)
        lowering = TcpLowering(self._endpoint, self._ranks, rank, mode.streams, held)
        pool = max((buffer.pool for buffer in held.values()), default=1)
        return PythonRunner(lowering.lower(program, mode.sync), pool)

    def counters(self) -> dict[str, float]:
        """TCP_INFO of the prepared program's connections, counted since each was made."""
        return {
            f"tcp.peer{peer}.stream{stream}.{name}": value
            for peer, stream in self._used
            for name, value in self._endpoint[self._ranks[peer], stream].info().items()
        }

    def facts(self) -> dict[str, Any]:
        """Of one connection as it is now, or of the listener where there is none; buffers as the kernel counts them."""
        one = self._endpoint.sample()
        control = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        found = {
            "library": f"kernel {platform.release()} tcp",
            "transport": "tcp",
            "address": self._endpoint.listener.address,
            "congestion_control": control.split(b"\0")[0].decode(),
            "sndbuf_bytes": one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            "rcvbuf_bytes": one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        }
        if one is not self._endpoint.listener.socket:
            found["mss_bytes"] = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        return found

    def close(self, abort: bool = False) -> None:
        self._endpoint.close()
