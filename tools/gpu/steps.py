"""The steps of `make gpu-check STEP=N`, each of at most ten minutes with its own folder of
evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import checks
from check import Check, kill_a_rank
from checks import ONE_VISIT, SHORT, cupy, mpi, nccl, torch_cuda
from machine import PLUGINS, Machine
from sights import (
    answered,
    column,
    compared,
    ends_with,
    filled,
    measured,
    measured_or_refused,
    recorded,
    says,
    skipped,
)

PLUGIN = ("--config-dir", str(PLUGINS / "conf"), "allow=[shared_gpu]")
MARK = "label=shared_gpu_so_times_mean_nothing"
MESSAGES = "benchmark=[p2p_latency,p2p_bandwidth,p2p_bibandwidth,exchange]"
COLLECTIVES = (
    "benchmark=[broadcast,reduce,all_reduce,all_gather,reduce_scatter,all_to_all,gather,scatter,"
    "barrier]"
)
FEW = (*SHORT, "timing.warmup_repetitions=2", "budget.late_s=30", "budget.restarts=1")
LOGGED = {"GPU_CHECK_LOGS": "."}  # each check runs in its own folder
CAPTURES_APART = "a capture in the group for graphs leaves 8 B as fast, within 10 % + 1 us"
LIBRARIES: tuple[tuple[str, Callable[[Machine], str | None]], ...] = (
    ("nccl", nccl),
    ("cupy", cupy),
)


@dataclass(frozen=True)
class Step:
    """`limit_s` is for all its checks together."""

    title: str
    checks: Callable[[Machine], Iterable[Check]]
    limit_s: float = 540.0


def two_ranks(machine: Machine) -> Iterator[Check]:
    """What one rank cannot show of NCCL: messages, windows, groups of some ranks, captured
    messages, a lost peer."""
    for library, possible in LIBRARIES:
        backend = (*PLUGIN, f"backend=shared_{library}", MARK)
        yield Check(
            f"shared_{library}_messages",
            (
                *backend,
                MESSAGES,
                "layout=1x2",
                "pairs=[[0,1],[1,0],[1,1]]",
                "window=4",
                "sizes=[8,64KiB,1MiB]",
                "timing_mode=[host_sync,graph]",
                *FEW,
            ),
            (
                ends_with(0),
                measured(),
                measured(benchmark="exchange", timing_mode="graph"),
                measured(pair="0-1", timing_mode="graph"),
                measured(pair="1-1"),
                filled("transport", benchmark="p2p_latency", pair="0-1"),
                recorded("NET/Socket"),
            ),
            possible,
            110.0,
            LOGGED,
        )
        yield Check(
            f"shared_{library}_collectives",
            (
                *backend,
                COLLECTIVES,
                "layout=[1x1,1x2]",
                "in_place=[true,false]",
                "sizes=[8,96KiB]",
                "root=[0,1]",
                "timing_mode=[host_sync,device_event]",
                *FEW,
            ),
            (
                ends_with(0),
                measured(),
                *(measured(benchmark=name, layout="1x2") for name in ("gather", "all_to_all")),
            ),
            possible,
            150.0,
            LOGGED,
        )
        yield Check(
            f"shared_{library}_some_ranks",
            (*backend, "benchmark=[all_reduce,all_gather]", "layout=[1x1,1x2,1x3]", "sizes=[12KiB]",
             "timing_mode=graph", *FEW),
            (ends_with(0), measured(layout="1x3"), measured(layout="1x2"), measured(layout="1x1")),
            possible, 45.0, LOGGED,
        )  # fmt: skip
        yield Check(
            f"shared_{library}_killed",
            (
                *backend,
                "benchmark=all_reduce",
                "layout=1x2",
                "sizes=[64KiB]",
                "timing=soak",
                "timing.duration_s=300",
                "budget.restarts=0",
            ),
            (ends_with(3), says("rank 1", "SIGKILL|killed")),
            possible,
            60.0,
            meanwhile=lambda folder: kill_a_rank(folder, 1),
        )


def clocks(machine: Machine) -> Iterator[Check]:
    for library, possible in (("torch", nccl), ("cupy", cupy)):
        yield Check(
            f"clocks_{library}",
            (library,),
            (
                ends_with(0),
                answered(
                    "between kernels of different length, events differ as they do, within 10 % +"
                    " 1 us",
                    _differences_are_right,
                ),
                answered(
                    "besides its length, events see -1 to 10 us of a kernel", _fixed_times_are_small
                ),
                answered("the host's clock is never below it", _host_is_above),
                answered(
                    "with a hold, throughput and graph of 8 B are not slower than without",
                    _hold_helps,
                ),
            ),
            possible,
            120.0,
            program="clocks.py",
        )


def lifetime(machine: Machine) -> Iterator[Check]:
    for library, possible in (("torch", nccl), ("cupy", cupy)):
        yield Check(
            f"lifetime_{library}",
            (library,),
            (
                ends_with(0),
                answered("20 rounds, and less than 64 MiB are lost", _rounds_leave_nothing),
                answered(CAPTURES_APART, _captures_do_not_slow_others),
                answered("the capture is refused, and host_sync goes on", _host_sync_goes_on),
            ),
            possible,
            240.0,
            program="lifetime.py",
        )


def nvml_answers(machine: Machine) -> Iterator[Check]:
    yield Check(
        "nvml", (),
        (ends_with(0), answered("clock, temperature and throttle reasons", _nvml_reads),
         answered("this process is not named as another user", _no_own_process_is_named)),
        torch_cuda, 90.0, program="nvml_answers.py",
    )  # fmt: skip


def ipc_copies(machine: Machine) -> Iterator[Check]:
    sizes = "sizes=[8,1KiB,64KiB,1MiB,16MiB,256MiB,1GiB]"
    for setting in ("auto", "on"):
        yield Check(
            f"ipc_copy_{setting}",
            (
                "backend=ipc_copy",
                f"cuda_ipc={setting}",
                "benchmark=[p2p_latency,p2p_bandwidth]",
                "layout=1x2",
                "pairs=[[0,0],[0,1],[1,0]]",
                "window=8",
                sizes,
                "timing=quick",
                ONE_VISIT,
                "budget.case_s=1",
            ),
            (
                ends_with(0),
                measured(pair="0-0"),
                measured_or_refused(pair="0-1"),
                recorded("ipc_probe"),
            ),
            timeout_s=180.0,
        )
    yield Check(
        "ipc_copy_off", ("backend=ipc_copy", "cuda_ipc=off", "layout=1x2", "sizes=[8]"),
        (ends_with(2), says("cuda_ipc=off", "contradicts")),
    )  # fmt: skip
    yield Check(
        "ipc_copy_killed",
        ("backend=ipc_copy", "benchmark=p2p_latency", "layout=1x2", "sizes=[1MiB]", "timing=soak",
         "timing.duration_s=300", "budget.restarts=0"),
        (ends_with(3), says("rank 1", "SIGKILL|killed")), timeout_s=75.0,
        meanwhile=lambda folder: kill_a_rank(folder, 1),
    )  # fmt: skip


def through_the_host(machine: Machine) -> Iterator[Check]:
    """Two ranks on one GPU with libraries that copy through host memory, or are told not to."""
    words = ("device=cuda", "benchmark=all", "layout=1x2", "window=4", "sizes=[8,64KiB,4MiB]", *FEW)
    for backend, possible in (("gloo", torch_cuda), ("mpi", mpi)):
        for staging in ("auto", "pinned", "none"):
            none_is_refused = (
                skipped("staging", staging="none")
                if backend == "gloo"
                else column("staging", ("none",))
            )
            sights = {
                "auto": (measured(benchmark="p2p_latency"), measured(benchmark="all_reduce")),
                "pinned": (
                    measured(benchmark="p2p_latency"),
                    column("staging", ("pinned", "none")),
                ),
                # a library that is not CUDA-aware refuses every case
                "none": (none_is_refused,) if backend == "gloo" else (recorded("cuda_aware"),),
            }[staging]
            yield Check(
                f"{backend}_{staging}",
                (f"backend={backend}", f"staging={staging}", *words),
                (ends_with(0), *sights),
                possible,
                85.0,
            )


def host_copies(machine: Machine) -> Iterator[Check]:
    words = (
        "backend=cuda_copy",
        "benchmark=[copy_h2d,copy_d2h,copy_h2d_d2h,copy_d2d]",
        "layout=1x1",
        "sizes=[8,64KiB,1MiB,16MiB,256MiB,1GiB]",
        "timing=quick",
        ONE_VISIT,
        "budget.case_s=0.5",
    )
    yield Check(
        "copies_pinned", (*words, f"timing_mode=[{','.join(checks.CLOCKS)}]"),
        (ends_with(0), measured(), filled("efficiency", benchmark="copy_h2d"),
         compared("256 MiB to the device at 50 to 100 % of the link", _link_is_filled)),
        torch_cuda, 270.0,
    )  # fmt: skip
    yield Check(
        "copies_pageable",
        (*words, "staging=none"),
        (ends_with(0), measured(benchmark="copy_h2d", staging="none")),
        torch_cuda,
        120.0,
    )


STEPS: dict[int, Step] = {
    1: Step("every check of one command line", checks.checks, 480.0),
    2: Step("NCCL with two and three ranks on one GPU", two_ranks, 570.0),
    3: Step("the four timing modes against a kernel of known length", clocks),
    4: Step("graphs and communicators, opened and closed 20 times", lifetime),
    5: Step("NVML: raw answers, what a reading costs, processes", nvml_answers),
    6: Step("copies through CUDA IPC, 8 B to 1 GiB", ipc_copies),
    7: Step("gloo and MPI on CUDA tensors: staging auto, pinned, none", through_the_host, 570.0),
    8: Step("copies between host and device, 8 B to 1 GiB", host_copies),
}


# ---------------------------------------------------------------- what the probes must have seen


def _by_events(seen: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The rows of each mode that is timed by events, the shortest kernel first."""
    rows = [row for row in seen["kernels"] if row["mode"] != "host_sync" and row["asked_us"]]
    rows.sort(key=lambda row: (row["mode"], row["asked_us"]))
    return [list(group) for _, group in groupby(rows, key=lambda row: row["mode"])]


def _differences_are_right(seen: dict[str, Any]) -> bool:
    """Launching and ending a kernel takes a time that its length does not change."""
    pairs = [pair for rows in _by_events(seen) for pair in pairwise(rows)]
    for shorter, longer in pairs:
        expected_us = longer["true_us"] - shorter["true_us"]
        measured_us = longer["median_us"] - shorter["median_us"]
        if abs(measured_us - expected_us) > 0.1 * expected_us + 1.0:
            return False
    return bool(pairs)


def _fixed_times_are_small(seen: dict[str, Any]) -> bool:
    """By the shortest kernel, whose length is the least uncertain."""
    shortest = [rows[0] for rows in _by_events(seen)]
    return bool(shortest) and all(
        -1.0 <= row["median_us"] - row["true_us"] <= 10.0 for row in shortest
    )


def _host_is_above(seen: dict[str, Any]) -> bool:
    rows = [row for row in seen["kernels"] if row["mode"] == "host_sync"]
    return bool(rows) and all(row["median_us"] >= 0.9 * row["true_us"] for row in rows)


def _hold_helps(seen: dict[str, Any]) -> bool:
    times = {(row["mode"], row["held"]): row["median_us"] for row in seen["all_gather_8B"]}
    return all(times[mode, True] <= 1.05 * times[mode, False] for mode in ("throughput", "graph"))


def _rounds_leave_nothing(seen: dict[str, Any]) -> bool:
    return len(seen["rounds_s"]) == 20 and seen["lost_bytes"] < 64 << 20


def _captures_do_not_slow_others(seen: dict[str, Any]) -> bool:
    times = seen["messages_us"]
    return bool(times["after_capture_for_graphs"] <= 1.1 * times["before"] + 1.0)


def _host_sync_goes_on(seen: dict[str, Any]) -> bool:
    after = seen["after"]
    return "can't capture" in after["capture"] and after["host_sync"] == "10 repetitions"


def _nvml_reads(seen: dict[str, Any]) -> bool:
    return {"gpu.sm_clock_mhz", "gpu.temperature_c", "gpu.throttle_reasons"} <= set(
        seen["readings"]
    )


def _no_own_process_is_named(seen: dict[str, Any]) -> bool:
    after = seen["processes_after"]
    # 1234 (1000000000 B), 77 (? B)
    named = {int(pid) for pid in re.findall(r"(\d+) \(", after["users"] or "")}
    return not named & {after["pid"], *after["NSpid"]}


def _link_is_filled(rows: list[dict[str, Any]]) -> bool:
    shares = [
        row["efficiency"]
        for row in rows
        if row["benchmark"] == "copy_h2d"
        and row["message_bytes"] == 256 << 20
        and row["timing_mode"] == "throughput"
    ]
    return bool(shares) and all(0.5 <= share <= 1.0 for share in shares)
