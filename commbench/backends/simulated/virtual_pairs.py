"""The simulated engine for pairs of ranks that do the same at once: one pass over the programs of
the first pair is one over those of all, in vectors over the pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from commbench.backends.buffers.pair_buffers import PairBuffers, RanksBuffer
from commbench.core.layout import Pair
from commbench.core.program import Program, View

from .virtual import Model, VirtualBlock, VirtualRunner, VirtualTimes, Words


class PairsRunner(VirtualRunner):
    """See VirtualRunner; `programs` are those of the first pair of each kind (pairs_by_kind)."""

    def __init__(
        self,
        programs: Mapping[int, Program],
        payload: PairBuffers,
        model: Model,
        seed: int,
        nodes: Sequence[int],
    ) -> None:
        super().__init__(programs, {}, model, seed, nodes)
        self._payload = payload

    @property
    def _pool(self) -> int:
        return self._payload.pool

    @property
    def _writes(self) -> int:
        return self._payload.writes

    def _corrupt(self, rank: int) -> None:
        for pairs, of_positions in self._payload.of_kinds:
            for position, buffers in enumerate(of_positions):
                ranks = [pair[position] for pair in pairs]
                if rank in ranks and "recv" in buffers:
                    buffers["recv"].words(View("recv"), copies=1)[ranks.index(rank), 0, 0] += 1

    def _run(self, delays: Mapping[int, VirtualTimes], copies: int) -> VirtualTimes:
        """Seconds [2, ranks, n] of all ranks of the world; 0 of those in no pair."""
        parts = [
            (block.pairs, block.run())
            for block in (self._block(kind, delays, copies) for kind in range(len(self._kinds)))
        ]
        n = max(times.shape[-1] for _, times in parts)
        seconds = np.zeros((2, len(self._nodes), n))
        for pairs, times in parts:
            for position in range(times.shape[1]):
                seconds[:, [pair[position] for pair in pairs]] = times[:, position]
        return seconds

    def _block(self, kind: int, delays: Mapping[int, VirtualTimes], copies: int) -> PairsBlock:
        pairs, of_positions = self._payload.of_kinds[kind]
        return PairsBlock(
            {rank: self._programs[rank] for rank in pairs[0]},
            {},
            self._model,
            self._nodes,
            _delays_of_pairs(pairs, delays),
            copies,
            pairs=pairs,
            of_positions=of_positions,
            link_factors=self._kinds[kind],
        )

    @cached_property
    def _kinds(self) -> list[dict[Pair, VirtualTimes]]:
        """Of each kind of pairs, the factors [pairs, 1] of their links, by the ends of that of the
        first pair."""
        return [
            {
                (first, second): np.array([[self._link_factor(*pair)] for pair in pairs]),
                (second, first): np.array([[self._link_factor(*pair[::-1])] for pair in pairs]),
            }
            for pairs, _ in self._payload.of_kinds
            for first, second in pairs[:1]
        ]

    def _link_factor(self, sender: int, receiver: int) -> float:
        is_same_node = self._nodes[sender] == self._nodes[receiver]
        return self._model.link_factor(sender, receiver, is_same_node)


@dataclass
class PairsBlock(VirtualBlock):
    """See VirtualBlock; the ranks of the first pair stand for those of all pairs. Times are scalars
    or arrays [pairs, n], words [pairs, copies, elements]. `of_positions` has the buffers of the
    first and of the second rank of each pair."""

    pairs: Sequence[Pair] = ()
    of_positions: Sequence[Mapping[str, RanksBuffer]] = ()
    link_factors: Mapping[Pair, VirtualTimes] = field(default_factory=dict)

    def run(self) -> VirtualTimes:
        """Seconds [2, positions, pairs, n] at which the timed steps begin and end."""
        self.run_steps()
        ranks = dict.fromkeys(self.pairs[0])
        times = [
            np.atleast_2d(seconds.get(rank, 0.0))
            for seconds in (self.begins, self.ends)
            for rank in ranks
        ]
        shape = np.broadcast_shapes((len(self.pairs), 1), *(each.shape for each in times))
        all_pairs = np.stack([np.broadcast_to(each, shape) for each in times])
        return all_pairs.reshape(2, len(ranks), *shape)

    def words(self, rank: int, view: View) -> Words:
        position = self.pairs[0].index(rank)
        return self.of_positions[position][view.buffer].words(view, self.copies)

    def _link_factor(self, sender: int, receiver: int) -> VirtualTimes:
        return self.link_factors[sender, receiver]


def _delays_of_pairs(
    pairs: Sequence[Pair], delays: Mapping[int, VirtualTimes]
) -> dict[int, VirtualTimes]:
    """How late the ranks at each position of the pairs are [pairs, n], by that of the first
    pair."""
    of_positions = {}
    for position, rank in enumerate(pairs[0]):
        late = [delays.get(pair[position]) for pair in pairs]
        known = next((each for each in late if each is not None), None)
        if known is not None:
            in_time = np.zeros_like(known)
            of_positions[rank] = np.stack([in_time if each is None else each for each in late])
    return of_positions
