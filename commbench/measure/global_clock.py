"""The global clock of sync=clock: rank 0's CLOCK_MONOTONIC, and for each node a line that maps the
node's own clock to it.

1. The first rank of each node connects to that of its parent node, in a tree of depth log2.
2. It compares its clock with its parent's by bursts of ping-pongs, whose shortest round trip tells
   most (`ask`, `answer`). The bounds of a ping-pong are Cristian's (1989).
3. It fits a line through the readings of the last 30 s (`fit`).
4. Rank 0 adds the lines up along the tree, with their errors (`Line.onward`), and gives each rank
   its own. The tree is that of HCA3 (Hunold and Carpen-Amarie, Hierarchical Clock Synchronization
   in MPI, 2018).
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean, linear_regression
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import World
from commbench.core.errors import ConfigError, Unsupported, WorldBroken
from commbench.core.protocols import Control
from commbench.engines.lowered import now_ns
from commbench.hardware.network import meeting_address
from commbench.runtime.peer_listener import PeerListener, greet

Clock = Callable[[], int]
Nodes = Sequence[Sequence[int]]
PINGS = 60  # per burst: 3 to 6 ms; the one with the shortest round trip counts
STAR_NODES = 8  # up to which rank 0 compares its clock with each node: 3 to 6 ms each
FIRST_BURSTS = 4
FIRST_PAUSE_S = 0.1  # of the first measurement
MAX_AGE_S = 2.0  # of lines before another burst
KEPT_S = 30.0  # age of the readings that a line is fitted to: clocks are not linear for longer
MAX_WIDTH_RATIO = 1.5  # to the tightest reading: wider ones were disturbed
# of clocks that were compared only once: the largest correction by an NTP client
UNKNOWN_DRIFT = 5e-4
RATE_CHANGE = 1e-6  # of a clock in the meantime, by its temperature
CLOCK_READING = struct.Struct("!q")
PING = b"?"


@dataclass(frozen=True)
class Reading:
    """At own_ns the other clock was ahead by low_ns to high_ns: it was read between two reads of
    the own clock."""

    own_ns: int
    low_ns: int
    high_ns: int

    @property
    def width_ns(self) -> int:
        return self.high_ns - self.low_ns


@dataclass(frozen=True)
class Line:
    """reference = own + offset_ns + slope x (own - at_ns), in ns.

    The error is at most error_ns until until_ns on the own clock, and may grow by `drift` per ns
    afterwards.
    """

    at_ns: int = 0
    offset_ns: int = 0
    slope: float = 0.0
    error_ns: float = 0.0
    drift: float = 0.0
    until_ns: int = 2**62  # by default the reference is the own clock, without any error

    def reference(self, own_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of the reference clock from times of the own clock."""
        drifted = np.rint(self.slope * (own_ns - self.at_ns)).astype(np.int64)
        return np.asarray(own_ns + self.offset_ns + drifted, dtype=np.int64)

    def own(self, reference_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of the own clock from times of the reference clock, to the nanosecond."""
        since = reference_ns - (self.at_ns + self.offset_ns)
        return np.asarray(
            self.at_ns + since - np.rint(since * (self.slope / (1 + self.slope))).astype(np.int64)
        )

    def error_at(self, own_ns: int) -> float:
        """Nanoseconds."""
        return self.error_ns + self.drift * max(0, own_ns - self.until_ns)

    def onward(self, parent: Line) -> Line:
        """The line from the own clock to the reference clock of `parent`; the errors add."""
        middle = int(self.reference(np.array([self.at_ns]))[0])
        end = int(parent.reference(np.array([middle]))[0])
        slope = (1 + self.slope) * (1 + parent.slope) - 1
        until = min(self.until_ns, int(self.own(np.array([parent.until_ns]))[0]))
        error = self.error_ns + parent.error_ns
        return Line(self.at_ns, end - self.at_ns, slope, error, self.drift + parent.drift, until)


def fit(readings: Sequence[Reading]) -> Line:
    """The line of least squares through the middles of the tight readings, at least the two
    tightest.

    The error is half of the widest of them plus the largest distance of a middle from the line.
    Half of the tightest is a constant of the path: only what exceeds it can tilt the line, so only
    that part grows after the last reading.
    """
    by_width = sorted(readings, key=lambda reading: reading.width_ns)
    limit_ns = MAX_WIDTH_RATIO * by_width[0].width_ns
    used = by_width[:2] + [reading for reading in by_width[2:] if reading.width_ns <= limit_ns]
    last = max(used, key=lambda reading: reading.own_ns)
    # relative to the last one, and in integers until then: floats are exact up to 104 days
    since_ns = [float(reading.own_ns - last.own_ns) for reading in used]
    ahead_ns = [
        (reading.low_ns - last.low_ns + reading.high_ns - last.high_ns) / 2 for reading in used
    ]
    half_widths_ns = [reading.width_ns / 2 for reading in used]
    span_ns = -min(since_ns)
    slope = 0.0
    intercept_ns = fmean(ahead_ns)
    if span_ns:
        slope, intercept_ns = linear_regression(since_ns, ahead_ns)
    residual_ns = max(
        abs(ahead - intercept_ns - slope * since)
        for since, ahead in zip(since_ns, ahead_ns, strict=True)
    )
    drift = UNKNOWN_DRIFT
    if span_ns:
        tilt_ns = max(half_widths_ns) - min(half_widths_ns) + residual_ns
        drift = 2 * tilt_ns / span_ns + RATE_CHANGE
    offset_ns = (last.low_ns + last.high_ns) // 2 + round(intercept_ns)
    error_ns = max(half_widths_ns) + residual_ns + 1
    return Line(last.own_ns, offset_ns, slope, error_ns, drift, last.own_ns)


def parent_of(index: int, count: int) -> int:
    """The node whose clock a node compares its own with: 0 for few nodes, as errors add from level
    to level, else the parent in a binomial tree, to which round k adds nodes 2^k to 2^(k+1)-1.
    """
    if count <= STAR_NODES:
        return 0
    return index - (1 << (index.bit_length() - 1))


def children_of(index: int, count: int) -> list[int]:
    return [child for child in range(index + 1, count) if parent_of(child, count) == index]


def ask(peer: socket.socket, clock: Clock, pings: int = PINGS) -> Reading:
    """The tightest reading of some ping-pongs, which begin when the peer is ready."""
    _receive(peer, len(PING))
    readings = []
    for _ in range(pings):
        begin = clock()
        peer.sendall(PING)
        answered = _receive(peer, CLOCK_READING.size)
        end = clock()
        other = CLOCK_READING.unpack(answered)[0]
        readings.append(Reading((begin + end) // 2, other - end, other - begin))
    return min(readings, key=lambda reading: reading.width_ns)


def answer(peer: socket.socket, clock: Clock) -> None:
    """The other side of `ask`."""
    peer.sendall(PING)
    for _ in range(PINGS):
        _receive(peer, len(PING))
        peer.sendall(CLOCK_READING.pack(clock()))


def _receive(peer: socket.socket, size: int) -> bytes:
    received = peer.recv(size)
    while len(received) < size:
        if not (more := peer.recv(size - len(received))):
            raise ConnectionError("the other side has gone")
        received += more
    return received


class GlobalClock:
    """The clock of a group of ranks, which make all calls together. `lines` has a line per rank,
    the same on all ranks.

    `nodes` are the group's ranks by node, with rank 0 on the first; `leaders` are the first ranks
    of the nodes. `now` reads the clock of this rank, in ns.
    """

    def __init__(
        self,
        control: Control,
        nodes: Nodes,
        interface: str | None,
        deadline_s: float,
        clock: Clock = now_ns,
    ) -> None:
        """Raises Unsupported on all ranks if nodes can't reach one another."""
        self._control = control
        self._nodes = nodes
        self.now = clock
        self.leaders = [node[0] for node in nodes]
        self._index = self.leaders.index(control.rank) if control.rank in self.leaders else None
        self._readings: list[Reading] = []
        self._measured_s: float | None = None
        self.lines = [Line()] * control.size
        self._parent: socket.socket | None = None
        self._children: list[socket.socket] = []
        if len(nodes) > 1:
            self._connect_nodes(interface, deadline_s)

    @property
    def due(self) -> bool:
        """Whether the lines are missing or too old, on rank 0."""
        old = self._measured_s is None or time.monotonic() - self._measured_s > MAX_AGE_S
        return old and len(self._nodes) > 1

    def refresh(self, deadline_s: float) -> None:
        """Compare the clocks again, the first time by several bursts, and set new lines on all
        ranks. Raises WorldBroken."""
        bursts = FIRST_BURSTS if self._measured_s is None else 1
        try:
            for burst in range(bursts):
                time.sleep(FIRST_PAUSE_S if burst > 0 else 0)
                self._compare()
        except OSError as error:
            raise WorldBroken(f"the clocks of the nodes can't be compared: {error}") from error
        line = fit(self._readings) if self._readings else Line()
        to_parents = self._control.gather(astuple(line), deadline_s, "clocks")
        lines = self._to_rank_0([Line(*values) for values in to_parents])
        decided = self._control.decide([astuple(line) for line in lines], deadline_s, "clocks")
        self.lines = [Line(*values) for values in decided]
        self._measured_s = time.monotonic()

    def _compare(self) -> None:
        """A burst with the parent node, then one with each child. Raises OSError."""
        if self._parent is not None:
            newest = ask(self._parent, self.now)
            oldest_ns = newest.own_ns - round(KEPT_S * 1e9)
            kept = [reading for reading in self._readings if reading.own_ns >= oldest_ns]
            self._readings = [*kept, newest]
        for child in self._children:
            answer(child, self.now)

    def _to_rank_0(self, to_parents: Sequence[Line]) -> list[Line]:
        """The line of each rank, on rank 0, which has those of the leaders to their parents."""
        if not to_parents:
            return []
        by_node = [Line()]
        for index in range(1, len(self._nodes)):  # parents come before their children
            parent = by_node[parent_of(index, len(self._nodes))]
            by_node.append(to_parents[self.leaders[index]].onward(parent))
        node_of = {rank: index for index, node in enumerate(self._nodes) for rank in node}
        return [by_node[node_of[rank]] for rank in range(self._control.size)]

    def error_ns(self, at_ns: int) -> float:
        """The largest error of a line at a time of rank 0's clock."""
        instant = np.array([at_ns])
        return max(line.error_at(int(line.own(instant)[0])) for line in self.lines)

    def close(self) -> None:
        for peer in filter(None, (self._parent, *self._children)):
            peer.close()

    def _connect_nodes(self, interface: str | None, deadline_s: float) -> None:
        """Parents listen, children connect; addresses and a secret travel over the control
        plane."""
        until = time.monotonic() + deadline_s
        control = self._control
        here = socket.gethostname()
        hosts = control.exchange(here, deadline_s)
        listener = None
        problem = None
        try:
            if self._index is not None and children_of(self._index, len(self.leaders)):
                others = [host for host in dict.fromkeys(hosts) if host != here]
                listener = PeerListener("clock", _address_for(interface, others))
        except (OSError, ConfigError) as error:
            problem = f"rank {control.rank} can't listen for the clocks of other nodes: {error}"
        problem = control.agree(problem, deadline_s, "listeners of clocks")
        address = None if listener is None else [listener.address, listener.port]
        mine = [address, secrets.token_hex(16)]
        of_ranks = control.exchange(mine, deadline_s, "addresses of clocks")
        secret = bytes.fromhex(of_ranks[0][1])
        try:
            if problem is None and self._index is not None:
                addresses = [of_ranks[leader][0] for leader in self.leaders]
                self._connect_tree(self._index, addresses, secret, listener, until)
        except OSError as error:
            problem = (
                f"rank {control.rank} on {here} can't connect to the clock of another node: {error}"
            )
        finally:
            if listener is not None:
                listener.close()
        problem = control.agree(problem, deadline_s, "sockets of clocks")
        if problem is not None:
            self.close()
            raise Unsupported(f"sync=clock: {problem}")

    def _connect_tree(
        self,
        index: int,
        addresses: Sequence[Any],
        secret: bytes,
        listener: PeerListener | None,
        until: float,
    ) -> None:
        """Connect to the parent node and wait for the children. Raises OSError."""
        children = children_of(index, len(addresses))
        if listener is not None:
            listener.serve(secret, lambda child, stream, _: child in children and stream == 0)
        if index > 0:
            host, port = addresses[parent_of(index, len(addresses))]
            self._parent = socket.create_connection((host, port), _remaining_s(until))
            greet(self._parent, secret, index)
        for child in children:
            assert listener is not None
            accepted = listener.wait_for((child, 0), _remaining_s(until))
            if accepted is None:
                raise TimeoutError(f"rank {self.leaders[child]} did not connect in time")
            self._children.append(accepted)
        for peer in filter(None, (self._parent, *self._children)):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(_remaining_s(until))


def _address_for(interface: str | None, others: Sequence[str]) -> str:
    """Where a node listens for `others`, the names of the other hosts: on the chosen interface,
    else where these reach it; loopback if there is only one host."""
    rank_0 = os.environ.get("MASTER_ADDR")
    return meeting_address(interface, *([rank_0] if rank_0 and others else []), *others)


def _remaining_s(until: float) -> float:
    return max(0.01, until - time.monotonic())


class GlobalClocks:
    """The global clocks of a run, one per group of ranks, made when first needed."""

    def __init__(self, world: World, interface: str | None) -> None:
        self._world = world
        self._interface = interface
        self._known: dict[tuple[int, ...], GlobalClock] = {}

    def of(self, members: tuple[int, ...], control: Control, deadline_s: float) -> GlobalClock:
        """The clock of these world ranks; all of them call this. Raises Unsupported on all of
        them."""
        if members not in self._known:
            by_node = [
                [rank for rank, world in enumerate(members) if world in node]
                for node in self._world.nodes
            ]
            self._known[members] = GlobalClock(
                control, sorted(filter(None, by_node)), self._interface, deadline_s
            )
        return self._known[members]
