"""sync=clock: repetitions that begin at agreed instants of a global clock, and which of them
count.

The global clock is rank 0's CLOCK_MONOTONIC; a line per node maps the node's clock to it. The first
rank of each node compares its clock with that of a parent node by ping-pongs over a socket of their
own, in a tree of depth log2. The tree, along which errors add, is that of HCA3 (Hunold and
Carpen-Amarie, Hierarchical Clock Synchronization in MPI, 2018); the bounds of a ping-pong are
Cristian's (1989).
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import World
from commbench.core.errors import ConfigError, Unsupported, WorldBroken
from commbench.core.protocols import Control
from commbench.engines.lowered import now_ns
from commbench.hardware.network import meeting_address
from commbench.runtime.peer_listener import PeerListener, greet

from .collector import SampleCollector
from .samples import LATE, NS_PER_S, Counts
from .time_limits import BLOCK_S

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
# of agreed starts; ReproMPI calls the time between two of them a window
LATE_NS = 1_000  # an undisturbed wait ends within one read of the clock, 0.2 us at most
LEAD_NS = 5_000_000
MAX_LEAD_NS = 80_000_000  # from the decision to the start of a block: all ranks must receive it
MARGIN_NS = 10_000  # between two repetitions
LENGTH_FACTOR = 1.5  # times what a repetition takes
LENGTH_QUANTILE = 0.9  # of what repetitions take: a few slow ones may delay the next
MAX_LATE_SHARE = (
    0.25  # of repetitions in a block, beyond which the time between two starts is too short
)
MAX_GROWTH = 64
MAX_LENGTH_NS = 50_000_000  # between two starts; a rank that is later than that has lost its core
HOPELESS_BLOCKS = 20  # in a row without one repetition in time


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
    limit = MAX_WIDTH_RATIO * by_width[0].width_ns
    used = [
        reading for rank, reading in enumerate(by_width) if rank < 2 or reading.width_ns <= limit
    ]
    last = max(used, key=lambda reading: reading.own_ns)
    x = np.array([reading.own_ns - last.own_ns for reading in used], dtype=np.float64)
    shifts = [(reading.low_ns - last.low_ns) + (reading.high_ns - last.high_ns) for reading in used]
    y = np.array(shifts, dtype=np.float64) / 2
    span = float(np.ptp(x))
    slope = (
        float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        if span
        else 0.0
    )
    intercept = float(y.mean() - slope * x.mean())
    residual = float(np.abs(y - intercept - slope * x).max())
    widths = [reading.width_ns / 2 for reading in used]
    drift = (
        2 * (max(widths) - min(widths) + residual) / span + RATE_CHANGE if span else UNKNOWN_DRIFT
    )
    # in integers: floats are exact up to 104 days
    offset = (last.low_ns + last.high_ns) // 2 + round(intercept)
    return Line(last.own_ns, offset, slope, max(widths) + residual + 1, drift, last.own_ns)


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
                if self._parent is not None:
                    self._readings.append(ask(self._parent, self.now))
                    oldest = self._readings[-1].own_ns - round(KEPT_S * 1e9)
                    self._readings = [
                        reading for reading in self._readings if reading.own_ns >= oldest
                    ]
                for child in self._children:
                    answer(child, self.now)
                time.sleep(FIRST_PAUSE_S if burst < bursts - 1 else 0)
        except OSError as error:
            raise WorldBroken(f"the clocks of the nodes can't be compared: {error}") from error
        line = fit(self._readings) if self._readings else Line()
        to_parents = [
            Line(*values) for values in self._control.gather(astuple(line), deadline_s, "clocks")
        ]
        lines = []
        if self._control.rank == 0:  # parents come before their children
            by_node = [Line()]
            for index in range(1, len(self._nodes)):
                by_node.append(
                    to_parents[self.leaders[index]].onward(
                        by_node[parent_of(index, len(self._nodes))]
                    )
                )
            node_of = {rank: index for index, node in enumerate(self._nodes) for rank in node}
            lines = [by_node[node_of[rank]] for rank in range(self._control.size)]
        decided = self._control.decide([astuple(line) for line in lines], deadline_s, "clocks")
        self.lines = [Line(*values) for values in decided]
        self._measured_s = time.monotonic()

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
        here = socket.gethostname()
        hosts = self._control.exchange(here, deadline_s)
        listener = None
        problem = None
        try:
            if self._index is not None and children_of(self._index, len(self.leaders)):
                # on the chosen interface, else where the other nodes reach this one; loopback if
                # there is only one host
                others = [host for host in dict.fromkeys(hosts) if host != here]
                meeting = (
                    [os.environ["MASTER_ADDR"]] if others and os.environ.get("MASTER_ADDR") else []
                )
                listener = PeerListener("clock", meeting_address(interface, *meeting, *others))
        except (OSError, ConfigError) as error:
            problem = (
                f"rank {self._control.rank} can't listen for the clocks of other nodes: {error}"
            )
        mine = [problem, listener and [listener.address, listener.port], secrets.token_hex(16)]
        problems, addresses, keys = zip(
            *self._control.exchange(mine, deadline_s, "addresses of clocks"), strict=True
        )
        problem = next(filter(None, problems), None)
        try:
            if problem is None and self._index is not None:
                of_nodes = [addresses[leader] for leader in self.leaders]
                self._connect_tree(self._index, of_nodes, bytes.fromhex(keys[0]), listener, until)
        except OSError as error:
            problem = (
                f"rank {self._control.rank} on {here} can't connect to the clock of another node:"
                f" {error}"
            )
        finally:
            if listener is not None:
                listener.close()
        problem = self._control.agree(problem, deadline_s, "sockets of clocks")
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
            accepted = (
                None if listener is None else listener.wait_for((child, 0), _remaining_s(until))
            )
            if accepted is None:
                raise TimeoutError(f"rank {self.leaders[child]} did not connect in time")
            self._children.append(accepted)
        for peer in filter(None, (self._parent, *self._children)):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(_remaining_s(until))


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


# ---------------------------------------------------------------- the starts of a case


class AgreedStarts:
    """When the repetitions of one case begin, after ReproMPI (Hunold and Carpen-Amarie). All its
    ranks make one.

    Rank 0 sets the start of a block and the time from one repetition to the next; each rank waits
    for the starts on its own clock. A repetition that any rank begins later is late, and counts in
    no statistic; the others are measured from the agreed instant to the end on the last rank.
    """

    def __init__(
        self,
        clock: GlobalClock,
        control: Control,
        ranks: tuple[int, ...],
        collector: SampleCollector,
    ) -> None:
        self._clock = clock
        self._control = control
        self._ranks = ranks
        self._collector = collector
        self._length_ns = 0
        self._longest_ns = 0
        self._lead_ns = LEAD_NS
        # of the last block, on rank 0's clock
        self._starts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._counted_lines: object = None  # the lines that are in the counters already
        self._late_blocks = 0  # in a row, without a repetition in time
        self.late = 0
        self.error_ns = 0.0

    def starts(self, n: int, measured: bool, deadline_s: float) -> NDArray[np.int64]:
        """When the n repetitions of the next block begin, on this rank's clock [n]; all ranks call
        it.

        Before the measured phase only the block has a start: its repetitions show how far
        apart starts must be.
        """
        length_ns = self._length_ns if measured else 0
        due, first, length_ns = self._control.decide(
            [self._clock.due, self._clock.now() + self._lead_ns, length_ns], deadline_s, "clock"
        )
        if due:
            self._clock.refresh(deadline_s)
            first = self._control.decide(self._clock.now() + self._lead_ns, deadline_s, "clock")
        self._starts = first + length_ns * np.arange(n, dtype=np.int64)
        return self._clock.lines[self._control.rank].own(self._starts)

    def add_parts(self, phase: str, parts: Sequence[NDArray[np.int64]]) -> None:
        """Add the stamps of all processes."""
        self.add(phase, np.concatenate(parts)[list(self._ranks)])

    def add(self, phase: str, stamps: NDArray[np.int64]) -> None:
        """Add stamps [ranks, n, 2] of the last block, in ns, to the collector; late ones as a phase
        of their own."""
        if phase != "measure":
            self._collector.add(phase, stamps)
            elapsed = (stamps[:, :, 1] - stamps[:, :, 0]).max(axis=0)
            # includes untimed steps before a repetition
            between = np.diff(stamps[:, :, 0], axis=1).max(axis=0)
            usual_ns = max(
                np.quantile(times, LENGTH_QUANTILE) for times in (elapsed, between) if len(times)
            )
            error_ns = self._clock.error_ns(int(self._starts[-1]))
            self._length_ns = round(LENGTH_FACTOR * float(usual_ns) + MARGIN_NS + 2 * error_ns)
            self._longest_ns = max(
                self._length_ns, min(MAX_GROWTH * self._length_ns, MAX_LENGTH_NS)
            )
            return
        agreed = np.stack([self._clock.lines[rank].own(self._starts) for rank in self._ranks])
        late = np.asarray((stamps[:, :, 0] - agreed > LATE_NS).any(axis=0))
        # on each rank's own clock: an error of the clocks shifts when a rank begins, not how long
        # it takes
        times = (stamps[:, :, 1] - agreed).max(axis=0) / NS_PER_S
        for name, chosen in ((phase, ~late), (LATE, late)):
            if chosen.any():
                self._collector.add(name, stamps[:, chosen], times[chosen])
        self.late += int(late.sum())
        self._late_blocks = self._late_blocks + 1 if late.all() else 0
        self.error_ns = max(
            self.error_ns, self._clock.error_ns(int(self._starts[-1]) + self._length_ns)
        )
        # the following ones may be late because of the first
        if late[0] and self._lead_ns < MAX_LEAD_NS:
            self._lead_ns *= 2
        elif late.mean() > MAX_LATE_SHARE:
            self._length_ns = min(2 * self._length_ns, self._longest_ns)
        self._count()

    def most(self, n: int) -> int:
        """At most n repetitions, and no more than a block has time for."""
        return max(1, min(n, round(BLOCK_S * 1e9) // max(1, self._length_ns)))

    @property
    def problem(self) -> str | None:
        """Why the case can't be measured with sync=clock; None while it can."""
        if self._late_blocks < HOPELESS_BLOCKS:
            return None
        length = f"{self._length_ns * 1e-9:.3g} s from one to the next"
        return (
            f"no repetition of {self._late_blocks} blocks began in time, at last with {length}; use"
            " sync=barrier"
        )

    def _count(self) -> None:
        """Record the time between the starts of the last block, and new lines of the
        nodes' clocks.

        Such a line is recorded for the first rank of the node, with t_ns on its own clock.
        """
        length_s = float(np.diff(self._starts[:2]).sum()) * 1e-9
        self._collector.count(Counts(0, int(self._starts[0]), {"clock.start_interval_s": length_s}))
        new_lines = self._counted_lines is not self._clock.lines
        self._counted_lines = self._clock.lines
        for rank in self._clock.leaders[1:] if new_lines else ():
            line = self._clock.lines[rank]
            values = {
                "offset_s": line.offset_ns * 1e-9,
                "slope": line.slope,
                "error_s": line.error_ns * 1e-9,
            }
            self._collector.count(
                Counts(rank, line.at_ns, {f"clock.{name}": value for name, value in values.items()})
            )
