"""The control plane: ranks meet over a key-value store, independently of the library that is
measured.

The store is torch's TCPStore, or that of store.py where ranks do not need torch.

Waiting ranks sleep, every call has a deadline, and late ranks are named. A large world has two
levels: ranks meet on their node, and the first ranks of all nodes meet for them, so that rank 0's
store serves one rank per node.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from commbench.core.case import World
from commbench.core.errors import Missing, StoreLost
from commbench.core.protocols import Control
from commbench.hardware.network import LOOPBACK

from .rendezvous import CONNECT_S, PATIENCE, client_store, server_store
from .store import KeyValueStore, packed, unpacked

REPORTS_PER_WAIT = 8
MIN_WAIT_S = 0.05  # to find out who else is late when the deadline has passed already
FLAT_RANKS = 64  # up to this many, rank 0's store takes less than 0.1 s of CPU time per case

OnWaiting = Callable[[list[int]], None]  # called with the world ranks that have not arrived yet


class StoreControl(Control):
    """See Control. Every rank makes the same calls in the same order; a sequence number keeps their
    keys apart.

    `world_ranks` are those of ranks 0 ... size-1; `owner` is the world rank whose process hosts the
    store. A process that hosts all ranks is alone, and needs no store.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        scope: str = "control",
        world_ranks: Sequence[int] | None = None,
        owner: int = 0,
    ) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self._scope = scope
        self._sequence = 0
        self._owner = owner
        self._world_ranks = range(size) if world_ranks is None else tuple(world_ranks)
        self._decisions: list[str] = []  # keys that may still be unread, on rank 0
        self._contributions: list[str] = []  # own keys that rank 0 may not have read yet, elsewhere
        self._subsets: dict[tuple[int, ...], StoreControl] = {}

    def decide(
        self,
        value: Any,
        deadline_s: float,
        meeting: str = "decide",
        on_waiting: OnWaiting | None = None,
    ) -> Any:
        key = self._next("decision")
        with self.blames_owner(meeting):
            if self.rank == 0:
                if self.size > 1:
                    self.store.set(key, json.dumps(value))
                    self._decisions.append(key)
                return value
            text = self._take({0: key}, PATIENCE * deadline_s, meeting, on_waiting)[0]
            for contribution in self._contributions:  # rank 0 has read them before it decided
                self.store.delete_key(contribution)
            self._contributions.clear()
            return json.loads(text)

    def subset(self, ranks: Sequence[int]) -> StoreControl:
        if self.size == 1:
            return self
        key = tuple(ranks)
        if key not in self._subsets:
            digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
            scope = f"{self._scope}/{digest}"
            world_ranks = [self._world_ranks[rank] for rank in key]
            self._subsets[key] = StoreControl(
                self.store, key.index(self.rank), len(key), scope, world_ranks, self._owner
            )
        return self._subsets[key]

    def meet(
        self, payload: bytes, deadline_s: float, meeting: str, on_waiting: OnWaiting | None = None
    ) -> list[bytes]:
        base = self._next("gather")
        with self.blames_owner(meeting):
            if self.rank != 0:
                self.store.set(f"{base}/{self.rank}", payload)
                self._contributions.append(f"{base}/{self.rank}")
                return []
            keys = {rank: f"{base}/{rank}" for rank in range(1, self.size)}
            values = self._take(keys, deadline_s, meeting, on_waiting)
            # all ranks that have arrived have read all earlier decisions
            for key in self._decisions:
                self.store.delete_key(key)
            self._decisions.clear()
            return [payload, *values]

    def gone(self) -> bool:
        """Whether the store is unreachable, and with it its owner."""
        try:
            self.store.check([self._scope])
        except RuntimeError:
            return True
        return False

    def _take(
        self, keys: dict[int, str], deadline_s: float, meeting: str, on_waiting: OnWaiting | None
    ) -> list[bytes]:
        """The values of keys as soon as all are there: one request, however many ranks there are.
        Raises Missing."""
        late = list[int]()
        cause = None
        waits = 1 if on_waiting is None else REPORTS_PER_WAIT
        for _ in range(waits):
            try:
                return self._values(keys, deadline_s / waits)
            # a timeout, or the store is gone: then `check` raises it again
            except RuntimeError as error:
                late = [
                    self._world_ranks[rank]
                    for rank, key in keys.items()
                    if not self.store.check([key])
                ]
                cause = error
            if not late:  # the last one arrived between the two requests
                return self._values(keys, deadline_s / waits)
            if on_waiting is not None:
                on_waiting(late)
        raise Missing(late, meeting, deadline_s) from cause

    def _values(self, keys: dict[int, str], deadline_s: float) -> list[bytes]:
        if not keys:
            return []
        self.store.set_timeout(timedelta(seconds=deadline_s))
        values: list[bytes] = self.store.multi_get(list(keys.values()))
        return values

    def _next(self, kind: str) -> str:
        self._sequence += 1
        return f"{self._scope}/{self._sequence}/{kind}"

    @contextmanager
    def blames_owner(self, meeting: str) -> Iterator[None]:
        """Report the store of its owner as lost where it is gone."""
        begun_s = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            waited_s = time.monotonic() - begun_s
            cause = str(error).partition("\n")[0]
            raise StoreLost(self._owner, meeting, waited_s, cause) from error


# ---------------------------------------------------------------- two levels


class NodeControl(Control):
    """See Control; `wide` has all ranks of the world, `local` those of this rank's node, in the
    order of `nodes`.

    The first rank of this control on each node is its leader: it takes the node's payloads to rank
    0, and decisions back. While a leader waits, it writes for which ranks to the wide store, so
    that all can name them.
    """

    def __init__(
        self,
        wide: StoreControl,
        local: StoreControl,
        nodes: Sequence[Sequence[int]],
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._wide = wide
        self._node = local
        self._nodes = nodes
        self._ranks = range(wide.size) if ranks is None else tuple(ranks)  # of the world
        self.store = wide.store
        self.rank = self._ranks.index(wide.rank)
        self.size = len(self._ranks)
        node_index = {rank: index for index, node in enumerate(nodes) for rank in node}
        # by node, in the order of `ranks`: rank 0 of this control leads the first
        positions = dict[int, list[int]]()
        for position, rank in enumerate(self._ranks):
            positions.setdefault(node_index[rank], []).append(position)
        here = node_index[wide.rank]
        self._local = local.subset(
            [nodes[here].index(self._ranks[position]) for position in positions[here]]
        )
        leaders = [self._ranks[group[0]] for group in positions.values()]
        self._across = wide.subset(leaders) if wide.rank in leaders else None
        # of the payloads on rank 0
        self._order = [position for group in positions.values() for position in group]
        self._reported = False
        self._subsets: dict[tuple[int, ...], NodeControl] = {}

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any:
        if self._across is None:
            with self._names_late_ranks(meeting, PATIENCE * deadline_s):
                return self._local.decide(None, deadline_s, meeting)
        value = self._across.decide(value, deadline_s, meeting, self._report)
        self._report([])
        return self._local.decide(value, deadline_s, meeting)

    def subset(self, ranks: Sequence[int]) -> NodeControl:
        key = tuple(ranks)
        if key not in self._subsets:
            chosen = [self._ranks[rank] for rank in key]
            self._subsets[key] = NodeControl(self._wide, self._node, self._nodes, chosen)
        return self._subsets[key]

    def meet(self, payload: bytes, deadline_s: float, meeting: str) -> list[bytes]:
        if self._across is None:
            with self._names_late_ranks(meeting, deadline_s):
                return self._local.meet(payload, deadline_s, meeting)
        if self.rank != 0:
            # longer than rank 0, whose deadline decides whether the ranks of this node are late
            parts = self._local.meet(payload, PATIENCE * deadline_s, meeting, self._report)
            self._report([])
            return self._across.meet(packed(parts), deadline_s, meeting)
        late = list[int]()
        until = time.monotonic() + deadline_s  # the late ranks and the deadline of both levels
        parts = list[bytes]()
        packages = list[bytes]()
        try:
            parts = self._local.meet(payload, deadline_s, meeting)
        except Missing as missing:
            late += missing.ranks
        try:
            packages = self._across.meet(b"", max(MIN_WAIT_S, until - time.monotonic()), meeting)
        except Missing as missing:
            late += self._late_behind(missing.ranks)
        if late:
            raise Missing(sorted(late), meeting, deadline_s)
        parts += [part for package in packages[1:] for part in unpacked(package)]
        return [part for _, part in sorted(zip(self._order, parts, strict=True))]

    # ------------------------------------------------------------ who is late

    def _report(self, late: list[int]) -> None:
        """Write to the wide store which ranks this leader waits for, or remove that."""
        key = _report_key(self._wide.rank)
        with self._wide.blames_owner("a report of late ranks"):
            if late:
                self.store.set(key, json.dumps(late))
            elif self._reported:
                self.store.delete_key(key)
        self._reported = bool(late)

    def _late_behind(self, leaders: Iterable[int]) -> Iterator[int]:
        """The world ranks that absent leaders wait for; a leader itself if it waits for nobody."""
        for leader in leaders:
            key = _report_key(leader)
            try:
                self.store.set_timeout(timedelta(seconds=MIN_WAIT_S))
                late = json.loads(self.store.get(key)) if self.store.check([key]) else []
            except RuntimeError:  # it was retracted just now
                late = []
            yield from late if late and self._wide.rank not in late else [leader]

    @contextmanager
    def _names_late_ranks(self, meeting: str, waited_s: float) -> Iterator[None]:
        """Name the ranks that a leader waits for instead of the leader: it may have died because of
        them."""
        begun_s = time.monotonic()
        try:
            yield
        except Missing as missing:
            if self._wide.gone():
                spent_s = time.monotonic() - begun_s
                raise StoreLost(0, meeting, spent_s, "it gives no answer") from missing
            if self._node.gone():
                raise
            late = sorted(self._late_behind(missing.ranks))
            raise Missing(late, meeting, waited_s) from missing


# ---------------------------------------------------------------- worlds


def hosted_world(nodes: int, ranks_per_node: int) -> tuple[World, StoreControl]:
    """A world whose ranks all live in this process, with its control plane."""
    size = nodes * ranks_per_node
    ranks = tuple(
        tuple(range(node * ranks_per_node, (node + 1) * ranks_per_node)) for node in range(nodes)
    )
    return World(0, size, ranks, tuple(range(size))), StoreControl(None, 0, 1)


def by_node(world: World, control: StoreControl) -> Control:
    """The control plane to continue with: one of two levels in a large world of several nodes.
    Called by all ranks."""
    worthwhile = world.size > FLAT_RANKS and 1 < len(world.nodes) < world.size
    return join_nodes(world, control, CONNECT_S) if worthwhile else control


def join_nodes(world: World, wide: StoreControl, deadline_s: float) -> Control:
    """Each node's first rank hosts a store for its node; if one of them can't, all ranks stay with
    `wide`."""
    node = world.nodes[world.node_of(world.rank)]
    key = f"node store/{node[0]}"
    is_leader = world.rank == node[0]
    is_torchs = not isinstance(wide.store, KeyValueStore)
    store = None
    problem = None
    with wide.blames_owner("opening the nodes' stores"):
        try:
            if is_leader:  # at an address that only this node can reach
                store = server_store(LOOPBACK, 0, LOOPBACK, is_torchs)
                wide.store.set(key, str(store.port))
            else:
                wide.store.set_timeout(timedelta(seconds=deadline_s / 2))  # rank 0 waits in `agree`
                store = client_store(LOOPBACK, int(wide.store.get(key)), is_torchs, deadline_s / 2)
        except (OSError, RuntimeError, ValueError) as error:
            problem = f"rank {world.rank} has no store of its node: {error}"
            if is_leader:
                wide.store.set(key, "none")
    failure = wide.agree(problem, deadline_s, "opening the nodes' stores")
    if is_leader:
        with wide.blames_owner("opening the nodes' stores"):
            wide.store.delete_key(key)
    if failure is not None:
        return wide
    local = StoreControl(store, node.index(world.rank), len(node), "node", node, owner=node[0])
    return NodeControl(wide, local, world.nodes)


def _report_key(leader: int) -> str:
    return f"waits/{leader}"
