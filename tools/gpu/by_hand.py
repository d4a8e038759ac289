"""torch.distributed on NCCL with one rank, timed by hand as a user would write it.

`python by_hand.py [SECONDS]` prints one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed

cuda: Any = torch.cuda
dist: Any = torch.distributed
BATCH = 20
HOLD_CYCLES = 4_000_000  # 2 ms
SIZES = (8, 1 << 20, 64 << 20)


def report(what: str, mode: str, size: int, times: list[float]) -> None:
    times = sorted(times)
    median = times[len(times) // 2]
    row = {
        "part": "by_hand",
        "what": what,
        "mode": mode,
        "bytes": size,
        "n": len(times),
        "median_us": 1e6 * median,
        "p10_us": 1e6 * times[len(times) // 10],
        "p90_us": 1e6 * times[9 * len(times) // 10],
    }
    print(json.dumps(row), flush=True)


def repeated(once: Callable[[], float], budget_s: float) -> list[float]:
    until = time.perf_counter() + budget_s
    times: list[float] = []
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 2000):
        times.append(once())
    return times


def by_host(call: Callable[[], Any]) -> float:
    stream = cuda.current_stream()
    stream.synchronize()
    begin = time.perf_counter()
    call()
    stream.synchronize()
    return time.perf_counter() - begin


def by_events(enqueue: Callable[[], Any], calls: int, is_held: bool) -> float:
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    if is_held:
        cuda._sleep(HOLD_CYCLES)
    first.record()
    enqueue()
    last.record()
    cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / calls


def send_to_itself(data: Any, into: Any) -> None:
    operations = [dist.P2POp(dist.irecv, into, 0), dist.P2POp(dist.isend, data, 0)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def batch_of(call: Callable[[], Any]) -> None:
    for _ in range(BATCH):
        call()


def timed(what: str, call: Callable[[], Any], size: int, budget_s: float) -> None:
    batch_of(call)
    cuda.synchronize()
    many = partial(batch_of, call)
    ways = {
        "host_sync": partial(by_host, call),
        "device_event": partial(by_events, call, 1, True),
        "device_event_unheld": partial(by_events, call, 1, False),
        "throughput": partial(by_events, many, BATCH, True),
    }
    for mode, once in ways.items():
        report(what, mode, size, repeated(once, budget_s))
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, capture_error_mode="thread_local"):
        many()
    report(what, "graph", size, repeated(partial(by_events, graph.replay, BATCH, True), budget_s))


def main(words: list[str]) -> None:
    budget_s = float(words[0]) if words else 0.2
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK="0", WORLD_SIZE="1")
    cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    for size in SIZES:
        data = torch.ones(size // 4, device="cuda")
        into = torch.empty_like(data)
        calls = {
            "all_gather": partial(dist.all_gather_into_tensor, into, data),
            "all_reduce avg": partial(dist.all_reduce, data, dist.ReduceOp.AVG),
            "message to itself": partial(send_to_itself, data, into),
        }
        for what, call in calls.items():
            timed(what, call, size, budget_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
