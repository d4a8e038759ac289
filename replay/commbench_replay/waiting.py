"""How long the ranks of a traced job waited for the last one of their group, and which one that
was."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from commbench.stats.interval import Interval

from .busy_times import union_of
from .training_job import Collective, TrainingJob

LATE_NS = 10_000  # a rank is late in an operation if another one waited for it that long
HEAVIEST = 0.8  # share of all waiting in the operations that are looked at apart
CHANCE = 0.01  # with which either look names a rank of a job in which none is late


@dataclass(frozen=True)
class Late:
    """A rank that is last more often than by chance: in `last` of `operations`, all of its own, or
    those with most of the waiting (`is_heaviest`). The others wait `waiting_ns` each for it, over
    all steps, once where they wait in several calls; `share` of all waiting is for it."""

    rank: int
    last: int
    operations: int
    is_heaviest: bool
    waiting_ns: float
    share: float


@dataclass(frozen=True)
class Waiting:
    """Of a rank in a step (or recording), the mean over the ranks. `is_least`: of some operations,
    or of some ranks, it is not known."""

    seconds: Interval
    is_least: bool
    late: Late | None


def waiting_of(job: TrainingJob) -> Waiting | None:
    """None where it is known of no operation.

    A rank has waited until the last one began, which is its duration less the rest of the operation
    after that. The rest is the shortest duration, but for how far apart the ranks end: so much may
    be added or taken away.
    """
    seen = [collective for collective in job.collectives if collective.waiting_ns]
    if not seen:
        return None
    value_ns = sum(sum(collective.waiting_ns.values()) for collective in seen)
    less_ns = 0.0
    more_ns = 0.0
    for ends in _ends_on_one_clock(seen):
        less_ns += sum(ends.values()) - len(ends) * min(ends.values())
        more_ns += len(ends) * max(ends.values()) - sum(ends.values())
    unit_ns = 1e9 * len(job.ranks) * max(job.steps, 1)
    seconds = Interval(
        value_ns / unit_ns, max(0.0, value_ns - less_ns) / unit_ns, (value_ns + more_ns) / unit_ns
    )
    not_seen = any(each.durations_ns and not each.waiting_ns for each in job.collectives)
    is_least = job.is_least or not_seen or any(collective.is_bound for collective in seen)
    return Waiting(seconds, is_least, late_rank(seen))


def _ends_on_one_clock(collectives: Sequence[Collective]) -> list[dict[int, float]]:
    """When each of them ends on each rank. An end before the last start shows that the clocks
    differ, as between hosts: then their medians are set alike."""
    calls = [[call for call in each.calls if call.end_ns is not None] for each in collectives]
    ends = [{call.rank: float(call.end_ns or 0) for call in own} for own in calls]
    if all(
        min(own.values()) >= max(call.start_ns or 0 for call in of_calls)
        for own, of_calls in zip(ends, calls, strict=True)
    ):
        return ends
    behind: dict[int, list[float]] = defaultdict(list)
    for own in ends:
        for rank, end_ns in own.items():
            behind[rank].append(end_ns - median(own.values()))
    offset = {rank: median(values) for rank, values in behind.items()}
    return [{rank: end_ns - offset[rank] for rank, end_ns in own.items()} for own in ends]


def late_rank(collectives: Sequence[Collective]) -> Late | None:
    """The rank that others waited for longest, of those that were last more often than by chance,
    which makes each rank of a group last alike: in all operations, or in those with most of the
    waiting, as a rank that is late once a step."""
    ordered = sorted(collectives, key=_waiting_sum, reverse=True)
    totals = list(accumulate(map(_waiting_sum, ordered)))
    heaviest = ordered[: bisect_left(totals, HEAVIEST * totals[-1]) + 1]
    found = [*_late_ranks(ordered, ordered), *_late_ranks(heaviest, ordered, is_heaviest=True)]
    return max(found, key=lambda late: late.waiting_ns, default=None)


def _late_ranks(
    looked_at: Sequence[Collective], collectives: Sequence[Collective], *, is_heaviest: bool = False
) -> Iterator[Late]:
    calls: Counter[int] = Counter()
    by_chance: dict[int, float] = defaultdict(float)
    for collective in looked_at:
        ranks = collective.waiting_ns.keys()
        calls.update(ranks)
        for rank in ranks:
            by_chance[rank] += 1 / len(ranks)
    last = Counter(map(_last_rank, looked_at))
    for rank, operations in calls.items():
        chance = binomial_tail(last[rank], operations, by_chance[rank] / operations)
        if chance < CHANCE / len(calls):
            own = [collective for collective in collectives if _last_rank(collective) == rank]
            share = sum(map(_waiting_sum, own)) / sum(map(_waiting_sum, collectives))
            yield Late(rank, last[rank], operations, is_heaviest, _cost_ns(own, rank), share)


def _waiting_sum(collective: Collective) -> int:
    return sum(collective.waiting_ns.values())


def _last_rank(collective: Collective) -> int | None:
    """None where all came together."""
    waiting = collective.waiting_ns
    if max(waiting.values()) < LATE_NS:
        return None
    return min(waiting, key=lambda rank: (waiting[rank], rank))


def _cost_ns(collectives: Sequence[Collective], late: int) -> float:
    """How long the other ranks waited in these, the mean over them."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for collective in collectives:
        for call in collective.calls:
            if call.start_ns is not None and call.rank != late:
                waiting_ns = collective.waiting_ns[call.rank]
                spans[call.rank].append((call.start_ns, call.start_ns + waiting_ns))
    return fmean(sum(end - start for start, end in union_of(own)) for own in spans.values())


def binomial_tail(least: int, n: int, p: float) -> float:
    """The probability of `least` or more of n, each of which has the probability p."""
    if least <= 0 or p >= 1:
        return 1.0
    log_choices = math.lgamma(n + 1) - math.lgamma(least + 1) - math.lgamma(n - least + 1)
    term = math.exp(log_choices + least * math.log(p) + (n - least) * math.log1p(-p))
    total = 0.0
    for count in range(least, n + 1):
        total += term
        term *= (n - count) / (count + 1) * p / (1 - p)
    return total
