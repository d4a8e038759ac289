"""The planted truth of a simulated world: what messages, collectives, copies and computations
take."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from commbench.core import program as steps
from commbench.core.errors import ConfigError
from commbench.core.program import Compute, Step

ORDERS = ("fixed", "by_rank", "by_chunk", "by_call")
# what is planted, its value that changes nothing, and the fields that say where
PLACES = (
    ("slow_factor", 1.0, ("slow_pair", "slow_rank", "slow_node")),
    ("straggler_s", 0.0, ("straggler_rank",)),
    ("corrupt_bit", None, ("corrupt_rank",)),
    ("corrupt_after", 0, ("corrupt_rank",)),
)


@dataclass(frozen=True)
class Model:
    """The planted truth. Times in seconds, bandwidth in GB/s (10^9 B/s) per direction of a pair.

    noise: standard deviation of the logarithm of a repetition's duration; rho: its lag-1
    autocorrelation. A straggler arrives `straggler_s` late in one of `straggler_every` repetitions.
    From repetition `corrupt_after` on, `corrupt_rank` receives one wrong element: plus 1, or with
    `corrupt_bit` flipped (0 is the last place). `order`: that in which a sum is rounded; see
    Payload; None: once.

    Factors multiply the latency and the wire time of single links: `slow_factor` from the first to
    the second rank of `slow_pair` ("0-2", one direction), on all links of `slow_rank` and of the
    ranks of `slow_node`, `other_node_factor` between nodes. Ranks are those of the layout. The
    slowest link of the ring over its ranks sets the pace of a collective.

    Operations that a rank has started go on at `progress_share` of their speed while it computes
    (1: the computation hides them, 0: they wait), and it computes `compute_factor` times longer.
    """

    latency_s: float = 2e-6
    bandwidth_gb_per_s: float = 10.0
    call_s: float = 1e-7
    copy_gb_per_s: float = 25.0  # of a copy within a rank, each direction
    matmul_gflop_per_s: float = 50.0
    noise: float = 0.0
    rho: float = 0.0
    straggler_rank: int | None = None
    straggler_every: int = 100
    straggler_s: float = 0.0
    corrupt_rank: int | None = None
    corrupt_after: int = 0
    corrupt_bit: int | None = None
    slow_pair: str | None = None
    slow_rank: int | None = None
    # not in the text that noise is drawn from: earlier runs can be repeated
    slow_node: int | None = field(default=None, repr=False)
    slow_factor: float = 1.0
    other_node_factor: float = 1.0
    progress_share: float = 1.0
    compute_factor: float = 1.0
    order: str | None = None

    def __post_init__(self) -> None:
        if self.slow_pair is not None and not re.fullmatch(
            r"(0|[1-9]\d*)-(0|[1-9]\d*)", self.slow_pair
        ):
            raise ConfigError(
                f"slow_pair={self.slow_pair} is not a pair of ranks; write sender-receiver,"
                " e.g. 0-2"
            )
        if not 0 <= self.progress_share <= 1:
            raise ConfigError(f"progress_share={self.progress_share} is no share; give 0 to 1")
        if self.order not in (None, *ORDERS):
            raise ConfigError(f"order={self.order} is unknown; allowed: {', '.join(ORDERS)}")
        for name in ("slow_factor", "other_node_factor", "compute_factor"):
            factor = getattr(self, name)
            if not 0 < factor < math.inf:
                raise ConfigError(
                    f"{name}={factor} is not a valid factor; give a number above 0 (1 changes"
                    " nothing)"
                )
        self._check_places()

    def _check_places(self) -> None:
        """Raises ConfigError for a fault without its place, and a place without its fault."""
        for name, nothing, places in PLACES:
            value = getattr(self, name)
            given = [place for place in places if getattr(self, place) is not None]
            if value != nothing and not given:
                where = " or ".join(places)
                raise ConfigError(f"{name}={value} plants nothing without {where}; give both")
            if value == nothing and given and given != ["corrupt_rank"]:  # it adds 1
                raise ConfigError(
                    f"{given[0]}={getattr(self, given[0])} plants nothing with {name}={value};"
                    " give both"
                )

    @property
    def planted_ranks(self) -> list[tuple[str, int]]:
        """Each rank that a field names, with the field."""
        named = [
            (name, getattr(self, name)) for name in ("straggler_rank", "corrupt_rank", "slow_rank")
        ]
        of_pair = [("slow_pair", int(rank)) for rank in (self.slow_pair or "").split("-") if rank]
        return [(name, rank) for name, rank in named if rank is not None] + of_pair

    def link_factor(self, sender: int, receiver: int, nodes: Sequence[int]) -> float:
        """How many times slower this direction of a link is than planted for all links. `nodes`
        holds the node of each rank."""
        ends = nodes[sender], nodes[receiver]
        slow = (
            self.slow_pair == f"{sender}-{receiver}"
            or self.slow_rank in (sender, receiver)
            or self.slow_node in ends
        )
        between = 1.0 if ends[0] == ends[1] else self.other_node_factor
        return (self.slow_factor if slow else 1.0) * between

    def message_s(self, message_bytes: int) -> float:
        """Time on the wire, without latency."""
        return message_bytes / (self.bandwidth_gb_per_s * 1e9)

    def copy_s(self, copied_bytes: int) -> float:
        return copied_bytes / (self.copy_gb_per_s * 1e9)

    def compute_s(self, step: Compute) -> float:
        """The time of a computation without communication beside it."""
        match step:
            case steps.Sleep(duration_ns) | steps.MatmulFor(_, duration_ns):
                return duration_ns * 1e-9
            case steps.MemoryStream(size_bytes):
                return self.copy_s(size_bytes)
            case steps.Matmul(size, repetitions):
                return repetitions * 2 * size**3 / (self.matmul_gflop_per_s * 1e9)

    def collective_s(self, step: Step, size: int, message_bytes: int) -> float:
        """Textbook costs: rings for reductions and gathers, binomial trees from a root,
        dissemination barrier."""
        if size == 1:
            return self.call_s
        rounds = math.ceil(math.log2(size))
        if isinstance(step, steps.Barrier):
            return rounds * self.latency_s
        if isinstance(step, steps.Broadcast | steps.Reduce):
            return rounds * (self.latency_s + self.message_s(message_bytes))
        factor = 2 if isinstance(step, steps.AllReduce) else 1
        return factor * (size - 1) * (self.latency_s + self.message_s(message_bytes) / size)
