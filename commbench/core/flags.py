"""The flags of a case: what each one means and what to do about it; shown by console, report and docs/report.md."""

from __future__ import annotations

from typing import NamedTuple


class Flag(NamedTuple):
    """`meaning` completes "this case has the flag because"; `advice` says what to do."""

    meaning: str
    advice: str


FLAGS = {
    "noisy": Flag(
        "the 95 % interval is wider than ±5 % of the median",
        "repeat with timing=rigorous or on a quieter machine; compare several launches (-m launch=0,1,2)",
    ),
    "drifting": Flag(
        "the first and the second half of the repetitions differ",
        "look at the case over time (timing=soak): clock rates, heat or other load change while it runs",
    ),
    "multimodal": Flag(
        "the repetitions have several typical times, and the median represents none of them",
        "look at the distribution before quoting the median; pin the ranks (bind=core)",
    ),
    "oversubscribed": Flag(
        "there are more threads than cores, so the time includes scheduling",
        "use fewer ranks per node, or a machine with more cores",
    ),
    "timer_limited": Flag(
        "reading the clock takes more than 5 % of a sample",
        "read the time as an upper bound; larger messages are not affected",
    ),
    "python_bound": Flag(
        "the call itself, measured on a group of one rank, takes more than a tenth of the time",
        "use engine=native where the backend has it; Python programs do pay this time",
    ),
    "in_cache": Flag(
        "the buffers of this size stay in the last-level cache although they rotate",
        "take the rate as that of the cache; larger messages show the memory",
    ),
    "skewed": Flag(
        "ranks left the barrier at times that differ by more than 5 % of the median",
        "the late rank is part of the time; larger messages are less affected",
    ),
    "throttled": Flag(
        "the GPU lowered its clock during the measurement (heat, power or a hardware brake)",
        "look at clocks and temperature in counters.parquet; improve cooling, raise the power cap or lock the clocks",
    ),
    "zero_payload": Flag(
        "in-place sums that nothing resets between two time stamps moved zeros; the payload was checked separately",
        "nothing: zeros take as long as other numbers unless the network compresses",
    ),
    "impossible": Flag(
        "the bus bandwidth is above the physical limit",
        "see the column reason: in-network reduction (NVLS, SHARP) moves fewer bytes than the bus factor assumes",
    ),
    "thinned": Flag(
        "there were too many repetitions to store, so only every 2nd, 4th, ... one was kept",
        "nothing: enough remain for the median and the quantiles",
    ),
}
UNKNOWN_FLAG = Flag("a flag of another version of commbench", "see that version's documentation (run.json names it)")
