"""The rows of a round: what its pairs share is found out once, and their times are computed
together.

A round of 512 ranks has 256 rows. The ranks wait while rank 0 makes them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from commbench.core.case import Planned
from commbench.core.layout import Pair, pairs_by_kind, pairs_text

from .conditions import Conditions
from .rows import RowFacts, row_of, sample_table
from .samples import NS_PER_S, Counts, Outcome, RowTimes, Samples, counted_rows
from .visits import CaseRecord

PairTable = dict[str, NDArray[Any]]


def is_recorded_together(planned: Planned, outcome: Outcome) -> bool:
    """Whether these are the samples of a round whose pairs were all measured alike: with the stamps
    of all ranks, and the right payload."""
    if not planned.case.is_round or not isinstance(outcome, Samples):
        return False
    has_all_stamps = bool(outcome.blocks) and all(block.decided is None for block in outcome.blocks)
    return has_all_stamps and not outcome.wrong_elements


@dataclass(frozen=True)
class MeasuredRound:
    """The pairs of a round, in the order of its rows."""

    planned: Planned
    conditions: Conditions
    _facts: dict[Hashable, RowFacts] = field(default_factory=dict)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.planned.case.pairs

    def row(self, index: int, record: CaseRecord, started: datetime) -> dict[str, Any]:
        """The row of a pair, whose first visit began at `started`, without the identity of the
        run."""
        pair = self.pairs[index]
        values = row_of(self._facts_of(pair), record, started)
        values |= {
            "case_id": self.planned.case.row_ids[index],
            "pair": pairs_text([pair]),
            "source": pair[0],
            "destination": pair[1],
        }
        return values

    def times(self, samples: Samples) -> list[RowTimes]:
        """The times of each pair in a visit."""
        of_pairs: dict[Pair, RowTimes] = {}
        for pairs, single in self._kinds:
            operations = single.shape.operations_per_sample * samples.block_k
            counted = [pairs[0].index(single.active[row]) for row in counted_rows(single)]
            measured = _stamps_of_pairs(samples, "measure", pairs)
            times = _longest_s(measured[:, counted]) / operations
            connect_s = _longest_s(_stamps_of_pairs(samples, "connect", pairs)[:, counted])
            skew_s = np.median(np.ptp(measured[..., 0], axis=1), axis=1) * 1e-9
            for index, pair in enumerate(pairs):
                of_pairs[pair] = RowTimes(
                    times[index], float(connect_s[index, 0]), float(skew_s[index])
                )
        return [of_pairs[pair] for pair in self.pairs]

    def tables(self, samples: Samples, run_id: str, visit: int) -> list[PairTable]:
        """The columns of samples.parquet of each pair."""
        ids = dict(zip(self.pairs, self.planned.case.row_ids, strict=True))
        of_pairs: dict[Pair, PairTable] = {}
        for pairs, single in self._kinds:
            shared = sample_table(single, samples.of_ranks(single.active), run_id, visit)
            own = _own_columns(samples, pairs)
            if shared["start_ns"].dtype == object:  # of events, which have no instants
                own = {"rank": own["rank"], "elapsed_ns": own["elapsed_ns"]}
            case_ids = np.array([[ids[pair]] for pair in pairs], dtype=object)
            own["case_id"] = np.broadcast_to(case_ids, own["rank"].shape)
            for index, pair in enumerate(pairs):
                of_pairs[pair] = {
                    name: own[name][index] if name in own else column
                    for name, column in shared.items()
                }
        return [of_pairs[pair] for pair in self.pairs]

    def counts(self, samples: Samples) -> list[tuple[Counts, ...]]:
        """The counters of the ranks of each pair, in the order in which they were read."""
        of_ranks: dict[int, list[tuple[int, Counts]]] = {}
        for place, counts in enumerate(samples.counts):
            of_ranks.setdefault(counts.rank, []).append((place, counts))
        by_place = itemgetter(0)
        return [
            tuple(
                counts
                for _, counts in sorted(
                    chain.from_iterable(of_ranks.get(rank, ()) for rank in set(pair)), key=by_place
                )
            )
            for pair in self.pairs
        ]

    @cached_property
    def _kinds(self) -> list[tuple[tuple[Pair, ...], Planned]]:
        """The pairs of each kind, and the first of them as a case of its own."""
        return [(pairs, self._single(pairs[0])) for pairs in pairs_by_kind(self.pairs)]

    def _single(self, pair: Pair) -> Planned:
        case = replace(self.planned.case, pair=pairs_text([pair]))
        return replace(self.planned, case=case)

    def _facts_of(self, pair: Pair) -> RowFacts:
        """What is known of a pair, and of all pairs that are alike."""
        key = self._alike(pair)
        if key not in self._facts:
            self._facts[key] = RowFacts(self._single(pair), self.conditions)
        return self._facts[key]

    def _alike(self, pair: Pair) -> Hashable:
        """What the facts of a pair depend on: the pair itself, where its path or its GPUs are
        known."""
        evidence = self.conditions.evidence
        if evidence.logged or evidence.kinds or evidence.gpus:
            return pair
        nodes = [self.conditions.world.node_of(self.planned.members[rank]) for rank in pair]
        wires = [evidence.interfaces[node : node + 1] for node in nodes]
        small_shm = [node in self.conditions.small_shm_nodes for node in nodes]
        return pair[0] == pair[1], nodes[0] == nodes[1], *wires, *small_shm


def _stamps_of_pairs(samples: Samples, phase: str, pairs: Sequence[Pair]) -> NDArray[np.int64]:
    """The stamps [pairs, ranks of a pair, n, 2] of a phase."""
    return samples.stamps(phase)[_rows_of_pairs(samples, [*map(_distinct_ranks, pairs)])]


def _distinct_ranks(pair: Pair) -> tuple[int, ...]:
    return tuple(dict.fromkeys(pair))


def _rows_of_pairs(samples: Samples, ranks: ArrayLike) -> NDArray[np.intp]:
    """The rows of the stamps [pairs, ranks of a pair]."""
    return np.searchsorted(np.asarray(samples.ranks), np.asarray(ranks))


def _longest_s(stamps: NDArray[np.int64]) -> NDArray[np.float64]:
    """The longest time in each repetition [pairs, n], from stamps [pairs, ranks, n, 2]."""
    longest_ns = (stamps[..., 1] - stamps[..., 0]).max(axis=1)
    return np.asarray(longest_ns / NS_PER_S, dtype=np.float64)


def _own_columns(samples: Samples, pairs: Sequence[Pair]) -> dict[str, NDArray[Any]]:
    """The columns [pairs, rows] that differ from pair to pair; of each, the repetitions of its
    lower rank come first in a block."""
    ranks = np.array([sorted(set(pair)) for pair in pairs])
    rows = _rows_of_pairs(samples, ranks)
    stamps = [block.stamps[rows] for block in samples.blocks]
    of_blocks = [np.repeat(ranks, block.shape[2], axis=1) for block in stamps]
    joined = np.concatenate([block.reshape(len(pairs), -1, 2) for block in stamps], axis=1)
    return {
        "rank": np.concatenate(of_blocks, axis=1),
        "start_ns": joined[..., 0],
        "end_ns": joined[..., 1],
        "elapsed_ns": joined[..., 1] - joined[..., 0],
    }
