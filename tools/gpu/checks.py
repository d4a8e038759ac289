"""All checks that need a GPU, the most important ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from check import Check, kill_a_rank
from machine import Machine
from sights import (
    Row,
    column,
    compared,
    counted,
    ends_with,
    filled,
    measured,
    measured_or_refused,
    off_takes_another_transport,
    prints,
    recorded,
    says,
    skipped,
    without_tracebacks,
)

Reason = Callable[[Machine], str | None]
CLOCKS = ("host_sync", "device_event", "graph", "throughput")
MESSAGES = "benchmark=[p2p_latency,p2p_bandwidth,p2p_bibandwidth]"
SIZES = ("sizes=[8,1MiB,64MiB]", "timing=quick", "budget.case_s=0.3")
ONE_VISIT = "timing.visits=1"
SHORT = ("timing=fixed", "timing.repetitions=20", "timing.warmup_s=0", "budget.case_s=0.1")
# leaves 3 GiB, of which the CUDA context and NCCL of the next process need some: 3 GB pass the
# plan, not the allocation
HOG = """
import torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (3 << 30), dtype=torch.uint8, device="cuda")
print("ready", flush=True)
import time; time.sleep(600)
"""


def torch_cuda(machine: Machine) -> str | None:
    return None if machine.torch_cuda else f"torch {machine.torch} sees no GPU"


def nccl(machine: Machine) -> str | None:
    return torch_cuda(machine) or (None if machine.nccl else "this torch has no NCCL")


def several(machine: Machine) -> str | None:
    return nccl(machine) or (None if machine.gpus > 1 else "one GPU only")


def cupy(machine: Machine) -> str | None:
    return None if machine.cupy_nccl else "cupy with NCCL is not installed"


def mpi(machine: Machine) -> str | None:
    return torch_cuda(machine) or (
        None if machine.mpi_library else "no MPI library that mpi4py can load"
    )


def no_cupy(machine: Machine) -> str | None:
    return "cupy is installed" if machine.cupy else None


def checks(machine: Machine) -> Iterator[Check]:
    """All checks; each knows whether it is possible on this machine."""
    yield Check("doctor", ("doctor",), (ends_with(0), prints(r"nccl\s+can run here")), nccl)
    yield from one_gpu()
    yield from host_memory()
    yield ipc()
    yield from bad_input(machine)
    yield from trouble(machine)
    yield from many_gpus(machine)


def one_gpu() -> Iterator[Check]:
    clocks = f"timing_mode=[{','.join(CLOCKS)}]"
    alone = ("layout=1x1", "dtype=float32", *SIZES)
    by_clock = tuple(measured(benchmark="all_reduce", timing_mode=mode) for mode in CLOCKS)
    yield Check(
        "nccl_one_gpu",
        (
            "backend=nccl",
            "benchmark=[all_reduce,all_gather,reduce_scatter]",
            clocks,
            *alone,
        ),
        (
            ends_with(0),
            measured(),
            *by_clock,
            compared("a graph's call of 8 B is shorter than host_sync's", _graph_wins),
            counted("gpu.sm_clock_mhz", "gpu.temperature_c", "gpu.throttle_reasons"),
            recorded(r"gpu\.count", r"gpu\.own\.uuid", r"topology\."),
        ),
        nccl,
        120.0,
    )
    yield Check(
        "cupy_nccl_one_gpu",
        ("backend=cupy_nccl", "benchmark=[all_reduce,broadcast]", clocks, *alone, ONE_VISIT),
        (ends_with(0), measured(), *by_clock),
        cupy,
        90.0,
    )
    for backend, possible in (("nccl", nccl), ("cupy_nccl", cupy)):
        yield Check(
            f"{backend}_to_itself",
            (
                f"backend={backend}",
                MESSAGES,
                "layout=1x1",
                "pairs=[[0,0]]",
                "window=4",
                "sizes=[8,1MiB]",
                clocks,
                *SHORT,
            ),
            (
                ends_with(0),
                measured(),
                *(measured(benchmark="p2p_bandwidth", timing_mode=mode) for mode in CLOCKS),
            ),
            possible,
            45.0,
        )


def host_memory() -> Iterator[Check]:
    """Two ranks on one GPU, through host memory."""
    words = (
        "device=cuda",
        "benchmark=[p2p_latency,all_reduce]",
        "layout=1x2",
        "sizes=[8,1MiB]",
        *SHORT,
    )
    shared = {"CUDA_VISIBLE_DEVICES": "0"}
    yield Check(
        "gloo_shared_gpu", ("backend=gloo", *words),
        (ends_with(0), measured(benchmark="p2p_latency"), measured(benchmark="all_reduce"),
         column("staging", ("library", "pinned")), column("timing_mode", ("host_sync",))),
        torch_cuda, 60.0, shared,
    )  # fmt: skip
    yield Check(
        "mpi_shared_gpu", ("backend=mpi", *words),
        (ends_with(0), measured(benchmark="p2p_latency"), measured(benchmark="all_reduce"),
         column("staging", ("none", "pinned")), recorded("cuda_aware")),
        mpi, 60.0, shared,
    )  # fmt: skip


def ipc() -> Check:
    words = (
        "benchmark=[p2p_latency,p2p_bandwidth]",
        "layout=1x2",
        "pairs=[[0,0],[0,1]]",
        "window=16",
        *SIZES,
        ONE_VISIT,
    )
    return Check(
        "ipc_copy",
        ("backend=ipc_copy", *words),
        (
            ends_with(0),
            measured(pair="0-0"),
            measured_or_refused(pair="0-1"),
            recorded("ipc_probe"),
        ),
        timeout_s=60.0,
    )


def bad_input(machine: Machine) -> Iterator[Check]:
    """Errors of the user: one line and exit 2."""
    refused = (ends_with(2), without_tracebacks())
    yield Check(
        "bad_graph_on_cpu", ("backend=gloo", "timing_mode=graph"), (*refused, says("graph", "cuda"))
    )
    yield Check(
        "bad_ipc_off",
        ("backend=ipc_copy", "cuda_ipc=off"),
        (*refused, says("cuda_ipc=off", "contradicts")),
    )
    yield Check(
        "bad_no_visible_gpu",
        ("backend=nccl", "layout=1x1", "sizes=[8]"),
        (*refused, says("gpu|cuda")),
        nccl,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    yield Check("bad_no_cupy", ("backend=cupy_nccl",), (*refused, says("cupy", "install")), no_cupy)
    yield Check(
        "same_gpu_twice",
        ("backend=nccl", "layout=1x2", "sizes=[8]"),
        (ends_with(1), says("ranks 0-1", "same gpu")),
        nccl,
        env={"CUDA_VISIBLE_DEVICES": "0"},
        ranks=2,
    )
    yield Check(
        "too_few_gpus", ("backend=nccl", f"layout=1x{machine.gpus + 1}", "sizes=[8]"),
        (ends_with(2), says("rank", "gpu")), nccl,
    )  # fmt: skip


def trouble(machine: Machine) -> Iterator[Check]:
    alone = ("backend=nccl", "benchmark=all_reduce", "layout=1x1")
    yield Check(
        "memory_full_and_gpu_busy",
        (*alone, "sizes=[64,1.5GB,8GiB]", "budget.memory_share=1.0", *SHORT),
        (
            ends_with(0),
            measured(message_bytes=64),
            skipped("out of memory", message_bytes=1_500_000_000),
            skipped("on a GPU", message_bytes=8 << 30),
            says("in use by"),
        ),
        nccl,
        60.0,
        {"CUDA_VISIBLE_DEVICES": "0"},
        HOG,
    )
    ranks = min(2, machine.gpus)
    yield Check(
        "killed_rank",
        ("backend=nccl", "benchmark=all_reduce", f"layout=1x{ranks}", "sizes=[1MiB]", "timing=soak",
         "timing.duration_s=300", "budget.restarts=0"),
        (ends_with(3), says(f"rank {ranks - 1}", "SIGKILL|killed")), nccl, 75.0,
        meanwhile=lambda folder: kill_a_rank(folder, ranks - 1),
    )  # fmt: skip


def many_gpus(machine: Machine) -> Iterator[Check]:
    count = machine.gpus
    layouts = [f"1x{ranks}" for ranks in (2, 4, 8, 16) if ranks < count] + [f"1x{count}"]
    pairs = ",".join(f"[{first},{second}]" for first, second in combinations(range(count), 2))
    yield Check(
        "nccl_layouts",
        (
            "backend=nccl",
            "benchmark=all_reduce",
            f"layout=[{','.join(layouts)}]",
            "sizes=[8,64KiB,1MiB,16MiB,128MiB]",
            "timing=quick",
            ONE_VISIT,
            "budget.case_s=0.3",
        ),
        (
            ends_with(0),
            measured(),
            filled("limit_gb_per_s"),
            filled("efficiency"),
            recorded(r"peer\.0-1\.access"),
        ),
        several,
        120.0,
    )
    yield Check(
        "nccl_pairs",
        (
            "backend=nccl",
            "benchmark=p2p_bandwidth",
            f"layout=1x{count}",
            f"pairs=[{pairs}]",
            "window=8",
            "sizes=[8,16MiB]",
            *SHORT,
        ),
        (ends_with(0), measured(), filled("link"), filled("transport")),
        several,
        140.0,
    )
    yield Check(
        "nccl_ipc_on_off",
        (
            "-m",
            "backend=nccl",
            "cuda_ipc=on,off",
            "benchmark=p2p_bandwidth",
            "layout=1x2",
            "window=8",
            "sizes=[64MiB]",
            *SHORT,
        ),
        (
            ends_with(0),
            measured(cuda_ipc="on"),
            measured(cuda_ipc="off"),
            filled("transport"),
            off_takes_another_transport(),
        ),
        several,
        90.0,
    )
    yield Check(
        "ipc_copy_between_gpus",
        (
            "backend=ipc_copy",
            "benchmark=p2p_bandwidth",
            f"layout=1x{count}",
            f"pairs=[[0,0],{pairs}]",
            "window=8",
            "sizes=[16MiB]",
            *SHORT,
        ),
        (ends_with(0), measured(pair="0-0"), measured_or_refused(pair="0-1")),
        several,
        90.0,
    )


def _graph_wins(rows: list[Row]) -> bool:
    times: dict[Any, float] = {
        row["timing_mode"]: row["median_s"]
        for row in rows
        # on a single rank an all_reduce in place does nothing
        if row["benchmark"] == "all_gather" and row["message_bytes"] == 8
    }
    return "graph" in times and times["graph"] < times["host_sync"]
