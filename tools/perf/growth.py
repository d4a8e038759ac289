"""Section scale: the cost of commbench itself as the world grows, measured by scale.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from claim import LAUNCHES, Claim, run

HERE = Path(__file__).parent
RANKS = (8, 64, 512, 4096)
MOST_RUNS = 3
RUN_S = 240
CASE_S = 1.0  # processor time of rank 0 for a case of 4096 ranks
GROWTH = 1.1  # of the cost per further rank
Cost = dict[str, float]


@dataclass(frozen=True)
class Part:
    """A number of scale.py that should not grow faster than its work."""

    what: str
    key: str
    work: Callable[[Cost], float]


def ranks(cost: Cost) -> float:
    return cost["ranks"]


def samples(cost: Cost) -> float:
    return cost["ranks"] * max(1.0, cost["repetitions"])


PARTS = (
    Part("control", "cpu_s", ranks),
    Part("recording", "plan_s", ranks),
    Part("recording", "measure_s", samples),
    Part("recording", "record_s", samples),
)


def claims_growth() -> list[Claim]:
    runs = {what: [least(what, ranks) for ranks in RANKS] for what in ("control", "recording")}
    seconds = [cost["cpu_s"] for cost in runs["control"]]
    case = Claim(
        f"rank 0's cpu seconds of a case, {RANKS[-1]} ranks", seconds[-1], CASE_S, listed(seconds)
    )
    return [case, *(growth(part, runs[part.what]) for part in PARTS)]


def least(what: str, ranks: int) -> Cost:
    """The minimum of each number over several runs: a disturbance only ever adds to it."""
    command = [sys.executable, str(HERE / "scale.py"), what, str(ranks)]
    costs = [last_line(run(command, RUN_S).stdout) for _ in range(min(MOST_RUNS, LAUNCHES))]
    return {key: min(cost[key] for cost in costs) for key in costs[0]}


def last_line(stdout: str) -> Cost:
    cost: Cost = json.loads([line for line in stdout.splitlines() if line.startswith("{")][-1])
    return cost


def growth(part: Part, costs: list[Cost]) -> Claim:
    """Cost per unit of work between the two largest sizes, over the mean cost per unit at the
    smaller of them.

    1 if the cost is proportional to the work, less if a part of it is fixed, 8 if it grows with the
    square. The divisor is not a difference of small numbers, so that noise at small sizes has
    little effect.
    """
    small, large = costs[-2:]
    more = (large[part.key] - small[part.key]) / (part.work(large) - part.work(small))
    seconds = [cost[part.key] for cost in costs]
    detail = (
        f"{listed(seconds)}; cost per further rank from {RANKS[-2]} on, over the mean up to there"
    )
    return Claim(
        f"growth of {part.what}'s {part.key}",
        more / (small[part.key] / part.work(small)),
        GROWTH,
        detail,
    )


def listed(seconds: list[float]) -> str:
    text = ", ".join(f"{value:.4f}" for value in seconds)
    return f"{text} s at {', '.join(map(str, RANKS))} ranks"
