"""What each flag of a case means, and what to do about it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Meaning(NamedTuple):
    means: str
    do: str


MEANINGS = {
    "noisy": Meaning(
        "the 95 % interval is wider than ±5 % of the median",
        "repeat with timing=rigorous, or on a quieter machine; compare several launches (-m launch=0,1,2)",
    ),
    "drifting": Meaning(
        "the first and the second half of the repetitions differ",
        "look at a time line (timing=soak); clocks, heat or other load change while it runs",
    ),
    "multimodal": Meaning(
        "there are several typical times, so the median stands for none of them",
        "look at the distribution before quoting a number; pin the ranks (bind=core)",
    ),
    "oversubscribed": Meaning(
        "there are more threads than cores; the scheduler is part of the number",
        "use fewer ranks a node, or a machine with more cores",
    ),
    "timer_limited": Meaning(
        "reading the clock takes more than 5 % of a sample",
        "read the number as an upper bound; larger messages are not touched by it",
    ),
    "python_bound": Meaning(
        "more than a tenth of the number is the price of the call itself, measured on a group of one rank",
        "use engine=native where the backend has it; for Python programs the number is what they pay",
    ),
    "in_cache": Meaning(
        "the buffers of this size stay in the last-level cache, although they rotate",
        "take it as the rate of the cache; larger messages show the memory",
    ),
    "skewed": Meaning(
        "ranks left the barrier at times that differ by more than 5 % of the median",
        "the late rank is in the number; read it together with larger messages, where skew matters less",
    ),
    "throttled": Meaning(
        "the GPU slowed itself down while it was measured: heat, power or a hardware brake",
        "look at clocks and temperature in counters.parquet; cool it, raise its power cap, or lock its clocks",
    ),
    "zero_payload": Meaning(
        "sums in place that nothing reset between two stamps moved zeros; the payload was checked in a call of its own",
        "nothing: zeros travel as fast as other numbers, unless the network compresses",
    ),
    "impossible": Meaning(
        "the bus bandwidth is above the physical limit",
        "read its reason: switches that reduce (NVLS, SHARP) move less than the factor says; limits are planned rates",
    ),
    "thinned": Meaning(
        "there were too many repetitions to keep; every second, fourth, ... one was kept",
        "nothing: medians and quantiles are not touched by it",
    ),
}
UNKNOWN = Meaning("a flag of another version of commbench", "ask the version that wrote it (run.json names it)")


class Flagged(NamedTuple):
    flag: str
    cases: int
    meaning: Meaning


def flagged(cases: pd.DataFrame) -> list[Flagged]:
    """Flags of the measured rows with how many have them, the most frequent first."""
    lists = cases.loc[cases["status"] == "ok", "flags"]
    counts = Counter(str(flag) for flags in lists if flags is not None for flag in flags)
    return [Flagged(flag, count, MEANINGS.get(flag, UNKNOWN)) for flag, count in counts.most_common()]
