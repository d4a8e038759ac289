"""Traffic of a mixture of experts: each token is sent to the ranks of the experts that it chooses
(dispatch), and comes back from them (combine).

Experts are drawn by a keyed hash in whole numbers, so that every rank, machine and library has the
same traffic.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from commbench.benchmarks.all_to_all_v import TrafficMatrix
from commbench.core.errors import ConfigError, Unsupported
from commbench.core.payload import mixed
from commbench.core.units import INT_MAX

Pool = tuple[
    int, ...
]  # the experts that a token draws from; one with more weight stands in it more often

MOE = "moe"
BALANCED = "W0_balanced"
DISPATCH = "dispatch"
TO_RANKS = "rank"
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's step from one state to the next
FP8_BLOCK = 128  # elements that share a scale of 4 bytes (DeepEP)
TOKEN_BYTES: Mapping[str, Callable[[int], int]] = {
    "bf16": lambda hidden: 2 * hidden,
    "fp8": lambda hidden: hidden + 4 * -(-hidden // FP8_BLOCK),
}


@dataclass(frozen=True)
class Whole:
    """A parameter that is a whole number within bounds."""

    least: int
    most: int

    def read(self, text: str) -> int | None:
        """None for a text that is no such number."""
        number = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else -1
        return number if self.least <= number <= self.most else None

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True)
class Word:
    """A parameter that is one of several words."""

    choices: tuple[str, ...]

    def read(self, text: str) -> str | None:
        """None for a text that is no such word."""
        return text if text in self.choices else None

    def __str__(self) -> str:
        return f"one of {', '.join(self.choices)}"


PARAMETERS: Mapping[str, Whole | Word] = {
    "tokens": Whole(1, 2**20),
    "hidden": Whole(1, 2**20),
    "experts": Whole(1, 2**16),
    "top_k": Whole(1, 64),
    "dtype": Word(tuple(TOKEN_BYTES)),
    "phase": Word((DISPATCH, "combine")),
    "copies": Word((TO_RANKS, "expert")),
    "seed": Whole(0, INT_MAX),
    # a larger one leaves nothing to the other experts
    "imbalance": Whole(1, 100),
    "step": Whole(0, INT_MAX),
}
MOE_ONLY = "imbalance"
WORKLOADS_ONLY = "step"


@dataclass(frozen=True)
class ExpertTraffic:
    """Each rank has `tokens`, of which each chooses `top_k` of all experts, which the ranks share
    in order.

    copies: a token is sent once to each rank that has one of its experts, or once to each expert.
    imbalance: the weight of an expert on the first rank, where the others weigh 1. step: of a
    workload that changes from step to step.
    """

    has_bytes: ClassVar[bool] = True
    name: str
    tokens: int = 4096
    hidden: int = 7168
    experts: int = 256
    top_k: int = 8
    dtype: str = "bf16"
    phase: str = DISPATCH
    copies: str = TO_RANKS
    seed: int = 0
    imbalance: int = 1
    step: int = 0

    @classmethod
    def parse(cls, text: str) -> ExpertTraffic:
        """Read `moe tokens=128 top_k=4`; raises ConfigError."""
        name, *words = text.split()
        usual = USUAL[name]
        values: dict[str, Any] = {}
        foreign = WORKLOADS_ONLY if name == MOE else MOE_ONLY
        known = [parameter for parameter in PARAMETERS if parameter != foreign]
        for word in words:
            parameter, _, value = word.partition("=")
            if parameter not in known:
                raise ConfigError(
                    f"traffic={text}: {name} has no parameter {parameter}; it has:"
                    f" {', '.join(known)}"
                )
            read = PARAMETERS[parameter].read(value)
            if read is None:
                raise ConfigError(
                    f"traffic={text}: {word} is not {PARAMETERS[parameter]}; write e.g."
                    f" {parameter}={getattr(usual, parameter)}"
                )
            values[parameter] = read
        traffic = replace(usual, **values)
        distinct = len(set(traffic.hot_pool))
        if traffic.top_k > distinct:
            raise ConfigError(
                f"traffic={text}: a token can't choose {traffic.top_k} of {distinct} experts; take"
                f" top_k={distinct} or more experts"
            )
        return traffic

    @property
    def text(self) -> str:
        """Its name and the parameters that are not the usual ones."""
        usual = USUAL[self.name]
        values = {name: getattr(self, name) for name in PARAMETERS}
        chosen = (
            f"{name}={value}" for name, value in values.items() if value != getattr(usual, name)
        )
        return " ".join([self.name, *chosen])

    @property
    def token_bytes(self) -> int:
        return TOKEN_BYTES[self.dtype](self.hidden)

    @property
    def hot_pool(self) -> Pool:
        """The experts that the hot tokens of a workload draw from; of moe all, without weights."""
        if self.name not in WORKLOADS:
            return tuple(range(self.experts))
        return WORKLOADS[self.name].pool(self)

    def matrix(self, ranks: int, elements: int) -> TrafficMatrix:
        """Bytes from each rank to each. Raises Unsupported where the ranks can't share the
        experts."""
        if self.experts % ranks:
            raise Unsupported(
                f"traffic={self.text}: {self.experts} experts can't be shared evenly by {ranks}"
                f" ranks; take a multiple of {ranks}"
            )
        copies = np.array([self._copies_from(sender, ranks) for sender in range(ranks)])
        dispatch = self.token_bytes * copies
        return dispatch if self.phase == DISPATCH else dispatch.T

    def _copies_from(self, sender: int, ranks: int) -> TrafficMatrix:
        """How often a rank sends a token to each rank."""
        experts_per_rank = self.experts // ranks
        receivers = np.sort(self.chosen(sender, ranks) // experts_per_rank, axis=1)
        sent = np.ones(receivers.shape, dtype=bool)
        if self.copies == TO_RANKS:
            sent[:, 1:] = receivers[:, 1:] != receivers[:, :-1]
        return np.bincount(receivers[sent], minlength=ranks)

    def chosen(self, sender: int, ranks: int) -> TrafficMatrix:
        """The experts of each token of a rank [tokens, top_k]."""
        numbers = np.arange(self.tokens)
        if self.name == BALANCED:
            first = numbers[:, None] * self.top_k
            return (first + np.arange(self.top_k)) % self.experts
        every: Pool = tuple(range(self.experts))
        if self.name == MOE:
            on_first_rank = every[: self.experts // ranks]
            pool = every + on_first_rank * (self.imbalance - 1)
            return self._drawn(pool, sender, numbers)
        hot = WORKLOADS[self.name].is_hot(numbers, self.step)
        experts = np.empty((self.tokens, self.top_k), dtype=np.int64)
        experts[hot] = self._drawn(self.hot_pool, sender, numbers[hot])
        experts[~hot] = self._drawn(every, sender, numbers[~hot])
        return experts

    def _drawn(self, pool: Pool, sender: int, numbers: TrafficMatrix) -> TrafficMatrix:
        """Distinct experts of these tokens of a rank, drawn one after another from the pool; an
        expert that a token has already is drawn again."""
        key = hashlib.sha256(f"{self.name}|{self.seed}|{self.step}".encode()).digest()
        tokens = (sender * self.tokens + numbers).astype(np.uint64)
        states = mixed(np.uint64(int.from_bytes(key[:8], "little")) ^ (tokens * GOLDEN))
        candidates = np.array(pool)
        experts = np.full((len(numbers), self.top_k), -1)
        for place in range(self.top_k):
            undrawn = np.arange(len(numbers))
            while len(undrawn):
                states[undrawn] = mixed(states[undrawn] + GOLDEN)
                upper = (states[undrawn] >> np.uint64(32)).astype(np.int64)
                drawn = candidates[upper * len(candidates) >> 32]
                repeated = (experts[undrawn, :place] == drawn[:, None]).any(axis=1)
                experts[undrawn, place] = drawn
                undrawn = undrawn[repeated]
        return experts


# ---------------------------------------------------------------- workloads


@dataclass(frozen=True)
class Workload:
    """The experts that its hot tokens draw from, and which of the numbered tokens are hot in a
    step; the others draw from all experts."""

    pool: Callable[[ExpertTraffic], Pool]
    is_hot: Callable[[TrafficMatrix, int], NDArray[np.bool_]]


def _block(traffic: ExpertTraffic, begin: int = 0) -> Pool:
    """A quarter of the experts, one after another."""
    indices = range(begin, begin + _width(traffic))
    return tuple(index % traffic.experts for index in indices)


def _moving_block(traffic: ExpertTraffic) -> Pool:
    """A quarter of the experts, which moves on after three steps."""
    return _block(traffic, begin=traffic.step // 3 * _width(traffic))


def _width(traffic: ExpertTraffic) -> int:
    return max(traffic.top_k, traffic.experts // 4)


def _every_second(traffic: ExpertTraffic) -> Pool:
    pool = tuple(range(0, traffic.experts, 2))
    return pool if len(pool) >= traffic.top_k else tuple(range(traffic.experts))


def _upper_half(traffic: ExpertTraffic) -> Pool:
    return tuple(range(traffic.experts // 2, traffic.experts))


def _three_of_four(numbers: TrafficMatrix, step: int) -> NDArray[np.bool_]:
    return np.asarray(numbers % 4 != 0)


def _all(numbers: TrafficMatrix, step: int) -> NDArray[np.bool_]:
    return np.ones(len(numbers), dtype=bool)


def _half_of_every_fourth_step(numbers: TrafficMatrix, step: int) -> NDArray[np.bool_]:
    return np.asarray((numbers % 2 == 0) & (step % 4 == 3))


# Those of NVIDIA/Megatron-LM pull request 7488, which draws from the same pools with torch's
# generator. W4_source_ragged is missing: how uneven the tokens of its ranks are is not published.
WORKLOADS: Mapping[str, Workload] = {
    "W1_hot_expert_set": Workload(_block, _three_of_four),
    "W2_hot_rank": Workload(_block, _three_of_four),
    "W3_spread_hot_experts": Workload(_every_second, _three_of_four),
    "W5_zero_expert_rank": Workload(_upper_half, _all),
    "W6_rotating_hotspot": Workload(_moving_block, _three_of_four),
    "W7_burst": Workload(_block, _half_of_every_fourth_step),
}
USUAL: Mapping[str, ExpertTraffic] = {
    MOE: ExpertTraffic(MOE),  # DeepSeek-V3's layer
    **{
        name: ExpertTraffic(name, 128, 512, 8, 2, copies="expert")
        for name in (BALANCED, *WORKLOADS)
    },
}
