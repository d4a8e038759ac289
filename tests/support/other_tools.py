"""Files as other tools write them, made here in their formats: small, with numbers that fit."""

from __future__ import annotations

import json
from typing import Any

NODE = "node-a"
GPU = "NVIDIA H100 80GB HBM3"
FACTORS = {"all_reduce": 2.0, "sendrecv": 0.0, "broadcast": 0.0, "reduce": 0.0}
DIVIDED = ("all_gather", "alltoall", "gather", "reduce_scatter", "scatter")


def bus_rate(operation: str, ranks: int, rate: float) -> float:
    if operation in ("broadcast", "reduce", "sendrecv"):
        return rate
    return rate * FACTORS.get(operation, 1.0) * (ranks - 1) / ranks


def nccl_settings(**more: int) -> str:
    graph = "".join(f" {name}: {value}" for name, value in more.items())
    return (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20"
        f" agg iters: 1 validation: 1{graph}"
    )


def nccl_ranks(ranks: int, nodes: int = 1, group: bool = True) -> list[str]:
    middle = " Group  0" if group else ""
    return [
        f"#  Rank {rank:2d}{middle} Pid  {29000 + rank} on {NODE}{rank * nodes // ranks:d} device "
        f" {rank * nodes % ranks} [0x1b] {GPU}"
        for rank in range(ranks)
    ]


def nccl_line(
    operation: str,
    size: int,
    ranks: int,
    times_us: tuple[float, ...],
    columns: tuple[str, ...] = ("redop", "root"),
    wrong: str = "0",
    after: tuple[str, ...] = (),
) -> str:
    """A line of the table of an operation on floats."""
    count = size // 4 // (ranks if operation in DIVIDED else 1)
    is_reducing = operation in ("all_reduce", "reduce", "reduce_scatter")
    is_rooted = operation in ("broadcast", "gather", "reduce", "scatter")
    first = {"redop": "sum" if is_reducing else "none", "root": "0" if is_rooted else "-1"}
    texts = [f"{size:12d}", f"{count:12d}", "   float", *(f"{first[name]:>6}" for name in columns)]
    for time_us in times_us:
        rate = size / time_us / 1e3
        busbw = bus_rate(operation, ranks, rate)
        texts += [f"{time_us:7.1f}", f"{rate:6.2f}", f"{busbw:6.2f}", f"{wrong:>6}", *after]
    return "  ".join(texts)


def nccl_text(
    operation: str = "all_reduce",
    ranks: int = 8,
    nodes: int = 1,
    sizes: tuple[int, ...] = (8388608, 67108864),
    version: str | None = None,
    times_us: tuple[float, ...] = (400.0, 390.0),
    columns: tuple[str, ...] = ("redop", "root"),
    wrong: str = "0",
    checked: str = "#wrong",
    named: bool = True,
    concluded: bool = True,
) -> str:
    """One start of a program, as 2.13 prints it; with a version as 2.17.10 and later do."""
    head = (
        [f"# nccl-tests version {version} nccl-headers=22809 nccl-library=22809"] if version else []
    )
    head += [f"# Collective test starting: {operation}_perf"] if named else []
    half = ["time", "algbw", "busbw", checked]
    names = ["size", "count", "type", *columns, *half * len(times_us)]
    lines = [
        *head,
        nccl_settings(graph=0),
        "#",
        "# Using devices",
        *nccl_ranks(ranks, nodes),
        "#",
        "#                                out-of-place                       in-place",
        "#       " + "  ".join(names),
        "#        (B)    (elements)                  (us)  (GB/s)  (GB/s)",
        *(nccl_line(operation, size, ranks, times_us, columns, wrong=wrong) for size in sizes),
    ]
    if concluded:
        lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 239.756", "#"]
    return "\n".join(lines) + "\n"


def nccl_json(operation: str = "all_reduce", ranks: int = 8, wrong: float = 0.0) -> dict[str, Any]:
    size, time_us = 67108864, 366.0

    def half(time_us: float) -> dict[str, Any]:
        rate = size / time_us / 1e3
        return {
            "time": time_us,
            "alg_bw": round(rate, 6),
            "bus_bw": round(bus_rate(operation, ranks, rate), 6),
            "nwrong": wrong,
        }

    return {
        "version": 3,
        "start_time": "2026-01-05 10:00:00",
        "args": [f"./build/{operation}_perf", "-b", "64M", "-J", "out.json"],
        "env": ["NCCL_DEBUG=WARN", "HOME=/root", "NCCL_FAKE_TOKEN=x"],
        "nccl_version": 22809,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "iterations": 20,
            "graph": 0,
            "blocking_collectives": "false",
            "devices": [
                {
                    "rank": rank,
                    "group": 0,
                    "pid": 1,
                    "hostname": NODE,
                    "device": rank,
                    "device_hex": "0x1b",
                    "device_info": GPU,
                }
                for rank in range(ranks)
            ],
        },
        "results": [
            {
                "size": size,
                "count": size // 4 // (ranks if operation in DIVIDED else 1),
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": half(time_us),
                "in_place": half(time_us - 1),
                "actual_iterations": 20,
                "experiment_name": "",
            }
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 320.0, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-01-05 10:00:09",
    }


def osu_text(
    test: str = "Latency", heads: str = "# Size          Latency (us)", lines: tuple[str, ...] = ()
) -> str:
    rows = lines or ("1                       1.10", "1024                    2.25")
    return "\n".join([f"# OSU MPI {test} Test v7.4", "# Datatype: MPI_CHAR.", heads, *rows]) + "\n"


def iperf3(
    version: str = "iperf 3.17.1", streams: int = 2, gbit: float = 94.0, **test: Any
) -> dict[str, Any]:
    seconds, rate = 10.0, gbit * 1e9
    sums = {
        "start": 0,
        "end": seconds,
        "seconds": seconds,
        "bytes": int(rate * seconds / 8),
        "bits_per_second": rate,
    }
    interval = {**sums, "bytes": int(rate / 8), "seconds": 1.0, "end": 1.0, "omitted": False}
    return {
        "start": {
            "connected": [{"socket": 5, "local_host": "10.0.0.1", "remote_host": "10.0.0.2"}],
            "version": version,
            "system_info": "Linux node-a 5.15.0-105-generic #115 SMP x86_64",
            "timestamp": {"time": "Mon, 05 Jan 2026 10:00:00 GMT", "timesecs": 1767607200},
            "test_start": {
                "protocol": "TCP",
                "num_streams": streams,
                "blksize": 131072,
                "omit": 0,
                "duration": 10,
                "reverse": 0,
                **test,
            },
        },
        "intervals": [{"streams": [], "sum": interval} for _ in range(3)],
        "end": {
            "sum_sent": {**sums, "retransmits": 7, "sender": True},
            "sum_received": {**sums, "sender": False},
            "sender_tcp_congestion": "cubic",
        },
    }


def all_reduce_bench(ranks: int = 16, rows: tuple[tuple[str, float], ...] = ()) -> str:
    table = rows or (("32KiB", 0.62), ("16MiB", 81.5), ("4GiB", 222.25))
    factor = 2 * (ranks - 1) / ranks
    return "\n".join(
        [
            " 32KiB: 1\r 32KiB: 2\r 32KiB: 20",
            "",
            "Environment:",
            "- software: torch=2.7.1+cu128, cuda=12.8, nccl=(2, 26, 2)",
            f"- hardware: _CudaDeviceProperties(name='{GPU}', major=9, minor=0)",
            "",
            f"The average bandwidth of all_reduce over {ranks} ranks (5 warmups / 20 trials):",
            "",
            "| payload |    busbw   |    algbw   |",
            "| ------: | ---------: | ---------: |",
            *(
                f"| {size:>7} | {rate * factor:6.2f}GBps | {rate:6.2f}GBps |"
                for size, rate in table
            ),
            "",
            "Legend: 1KiB = 2**10 Bytes, 1MiB = 2**20 Bytes, 1GiB = 2**30 Bytes",
            "Elapsed time: 0:00:20",
            "",
        ]
    )


def inspector_record(
    number: int,
    rank: int = 0,
    coll: str = "AllReduce",
    size: int = 1 << 20,
    time_us: int = 100,
    ranks: int = 2,
    identity: str = "0x7f8c",
) -> str:
    blocks = ranks if coll in ("AllGather", "ReduceScatter") else 1
    rate = size * blocks / time_us / 1e3
    record = {
        "header": {"id": identity, "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "hostname": NODE,
            "pid": 7,
            "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": 1767607200000000 + number,
        },
        "coll_perf": {
            "coll": coll,
            "coll_sn": number,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": rate,
            "coll_busbw_gbs": rate,
        },
    }
    return json.dumps(record)
