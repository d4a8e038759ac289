"""The flags of a case: what each means and what to do about it, as in the console, reports and
docs/report.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .run_folder import mapping_or_empty


class Flag(NamedTuple):
    """`meaning` completes "this case has the flag because"; `advice` says what to do, and
    `advice_in_effect` what to do where the setting that it recommends, `recommends`, is in effect.

    With `is_doubt` the number may differ if the case is measured again, or on a quieter machine:
    do not quote it. Other flags are notes, on what the number is.
    """

    meaning: str
    advice: str
    is_doubt: bool = True
    recommends: tuple[str, str] | None = None
    advice_in_effect: str = ""


BOUND = ("bind", "core")  # of a case whose ranks have cores of their own, whoever bound them
FLAGS = {
    "noisy": Flag(
        "the interval reaches more than 5 % from the median",
        "repeat on a quieter machine, or with more visits and launches (timing=rigorous); compare"
        " several launches",
        recommends=("timing", "rigorous"),
        advice_in_effect="repeat on a quieter machine; compare several runs",
    ),
    "drifting": Flag(
        "in at least half of the visits the first and the second half of the repetitions differ",
        "look at the case over time (timing=soak): clock rates, heat or other load change while it"
        " runs",
        recommends=("timing", "soak"),
        advice_in_effect="look at its time line: clock rates, heat or other load change while it"
        " runs",
    ),
    "multimodal": Flag(
        "the repetitions have several typical times, and the median represents none of them",
        "look at the distribution before quoting the median; ranks that are not pinned may be the"
        " reason (bind=core)",
        recommends=BOUND,
        advice_in_effect="look at the distribution before quoting the median",
    ),
    "unstable": Flag(
        "visits of the case differ by more than 5 % and by more than their repetitions explain",
        "see the levels in the column reason; find what changes over seconds: other load, clock"
        " rates, placement",
    ),
    "unsteady": Flag(
        "a warm-up reached its time limit before the times were steady",
        "raise timing.warmup_s or timing.case_s, and look at the warm-up in samples.parquet",
    ),
    "disturbed": Flag(
        "the reference case moved in at least half of the passes that visited this one",
        "something else changed on the machine: see reference in run.json, and os.* in"
        " counters.parquet; repeat it",
    ),
    "oversubscribed": Flag(
        "there are more threads than cores, so the time includes scheduling",
        "use a machine with more cores, or fewer ranks per node",
    ),
    "timer_limited": Flag(
        "reading the clock takes more than 5 % of a sample",
        "read the time as an upper bound; larger messages are not affected",
        is_doubt=False,
    ),
    "python_bound": Flag(
        "the call itself, measured on a group of one rank, takes more than a tenth of the time;"
        " with GPU events: more than one repetition in 20 began before the host had enqueued all"
        " of it",
        "use engine=native where the backend has it; Python programs do pay this time",
        is_doubt=False,
    ),
    "in_cache": Flag(
        "the buffers of this size stay in the last-level cache although they rotate",
        "take the rate as that of the cache; larger messages show the memory",
        is_doubt=False,
    ),
    "shared_gpu": Flag(
        "two ranks use the same GPU, so their kernels and copies take turns on it",
        "take the time as that of two processes on one GPU; give each rank its own GPU to measure"
        " between GPUs",
        is_doubt=False,
    ),
    "skewed": Flag(
        "ranks began a repetition at times that differ by more than 5 % of it (column skew_s)",
        "the late rank is part of the time; larger messages are less affected",
    ),
    "skew_unknown": Flag(
        "ranks began behind a barrier, and no common clock shows how far apart",
        "small messages of collectives on CPUs: repeat with sync=window, where ranks start at"
        " agreed instants",
        is_doubt=False,
    ),
    "clock_limited": Flag(
        "sync=window: the ranks' clocks are uncertain by more than 5 % of a repetition (column"
        " clock_error_s)",
        "do not rely on smaller differences to other cases; a faster interface=... for the clocks"
        " helps",
    ),
    "late_starts": Flag(
        "sync=window: a rank began more than one repetition in 20 late, and those are not counted",
        "only the calmer moments are counted: look for other load, or use fewer ranks than cores",
    ),
    "gaps": Flag(
        "more than 1 % of a soak was spent outside its repetitions, or in some that took a second"
        " longer than usual (column unmeasured_s)",
        "look for the gaps in its time line: a slow disk, checks of large messages or other load on"
        " rank 0 cause them, or a process that was stopped, a machine that slept, a link that stood"
        " still",
    ),
    "throttled": Flag(
        "the GPU lowered its clock during the measurement (heat, power or a hardware brake)",
        "look at clocks and temperature in counters.parquet; improve cooling, raise the power cap"
        " or lock the clocks",
    ),
    "rdma_unused": Flag(
        "NCCL used TCP sockets (NET/Socket) although a node has an active InfiniBand or RoCE port",
        "install libibverbs and ibverbs-providers, give the container /dev/infiniband, look at"
        " NCCL_IB_DISABLE and NCCL_IB_HCA; NCCL_DEBUG=INFO says why",
    ),
    "small_shm": Flag(
        "several ranks share a node whose /dev/shm is no larger than 64 MiB, so MPI may have taken"
        " a slower transport",
        "start the container with --shm-size=8g or --ipc=host, and measure again",
    ),
    "one_buffer": Flag(
        "all messages of a window share one buffer (buffers=shared), so only the last message was"
        " checked",
        "compare it with osu_bw; use buffers=own to give each message its own memory and to check"
        " all of them",
        is_doubt=False,
    ),
    "last_write": Flag(
        "a program writes to the same elements several times, so only what the last step left there"
        " was checked",
        "nothing, if each step was checked alone; else give each step its own buffer",
        is_doubt=False,
    ),
    "zero_payload": Flag(
        "in-place sums that nothing resets between two time stamps moved zeros; the payload was"
        " checked separately",
        "nothing: zeros take as long as other numbers unless the network compresses",
        is_doubt=False,
    ),
    "impossible": Flag(
        "the bus bandwidth is above its limit (column limit_gb_per_s), so one of the two is wrong",
        "see the column reason: a measured limit varies; in-network reduction (NVLS, SHARP) moves"
        " fewer bytes than the bus factor assumes",
    ),
    "thinned": Flag(
        "there were too many repetitions to store, so only every 2nd, 4th, ... one was kept",
        "nothing: enough remain for the median and the quantiles",
        is_doubt=False,
    ),
}
UNBOUND = "ranks not bound"
DOUBT_MARK = "!"  # beside a number that is in doubt
DOUBTFUL = frozenset(name for name, flag in FLAGS.items() if flag.is_doubt)
UNKNOWN_FLAG = Flag(
    "a flag of another version of commbench", "see that version's documentation (run.json names it)"
)


def advice_of(name: str, having: Iterable[Mapping[str, Any]]) -> str:
    """What to do about a flag; a setting is not recommended where all cases that have the flag have
    it. `having`: the variables of those cases."""
    flag = FLAGS.get(name, UNKNOWN_FLAG)
    if flag.recommends is None:
        return flag.advice
    variable, value = flag.recommends
    in_effect = {case.get(variable) == value for case in having}
    return flag.advice_in_effect if in_effect == {True} else flag.advice


def binding_text(run: Mapping[str, Any]) -> str:
    """Whether each rank has cores of its own, from run.json; empty where that is not recorded."""
    provenance = mapping_or_empty(run.get("provenance"))
    differing = mapping_or_empty(provenance.get("differences"))
    if "run.bind" in differing:
        return "ranks bound to cores"
    if "host.cpu_affinity" in differing:
        return "ranks bound by the launcher"
    nodes = provenance.get("nodes")
    listed = nodes if isinstance(nodes, list) else []
    bindings = {str(mapping_or_empty(node).get("run.bind")) for node in listed}
    if bindings and all(text.startswith(("core ", "numa ")) for text in bindings):
        return "ranks bound to cores"  # where each node has one rank, or two the same cores
    return UNBOUND if bindings == {"none"} else ""


def different_bindings(runs: Iterable[Mapping[str, Any]]) -> str:
    """How the ranks of each backend were bound, where that differs between the runs; else empty."""
    texts: dict[str, dict[str, None]] = {}
    for run in runs:
        backend = mapping_or_empty(run.get("backend")).get("name")
        if backend and (text := binding_text(run)):
            texts.setdefault(str(backend), {})[text] = None
    if len({text for of_backend in texts.values() for text in of_backend}) < 2:
        return ""
    parts = [f"{backend}: {' and '.join(texts[backend])}" for backend in sorted(texts)]
    return f"{'; '.join(parts)}: a part of their difference may be that"


def is_bound(run: Mapping[str, Any]) -> bool:
    """Whether each rank of the run is known to have cores of its own."""
    return binding_text(run) not in ("", UNBOUND)


def warnings_of(row: Mapping[str, Any]) -> frozenset[str]:
    """The flags of a case; in a row of commbench.load they are one text."""
    flags = row.get("warnings")
    return (
        frozenset()
        if flags is None
        else frozenset(flags.split() if isinstance(flags, str) else flags)
    )


def doubts_of(row: Mapping[str, Any]) -> frozenset[str]:
    """The flags of a case that cast doubt on its number."""
    return warnings_of(row) & DOUBTFUL
