"""Copies between host and device: what is skipped, what the steps become, and worlds on torch's CPU
tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from host_gpu import HostGpu, HostStream
from places import HOST_GPU
from refusals import refusal
from sample_cases import GPU_CASE
from shown_gpus import hgx, shown

from commbench.backends.buffers.memory import DeviceBuffer, HostBuffer
from commbench.backends.torch.cuda import CudaMemory
from commbench.config.keys import TIMERS
from commbench.core.errors import Unsupported
from commbench.core.payload import message
from commbench.core.program import (
    Barrier,
    BufferSpec,
    Copy,
    Program,
    Send,
    Start,
    View,
    WaitAll,
)
from commbench.core.protocols import Backend
from commbench.core.variables import Case
from commbench.engines.device import HostSync
from commbench.engines.lowered import Lowered
from commbench.features.cuda_copy.backend import CopyLowering, CudaCopy

PLUGIN = ["--config-dir", str(HOST_GPU / "conf"), "allow=[host_gpu]", "backend=host_copy"]
COPIES = "benchmark=[copy_h2d,copy_d2h,copy_h2d_d2h,copy_d2d]"
QUICK = ["timing=fixed", "timing.repetitions=5", "timing.warmup_repetitions=1", "timing.warmup_s=0"]


def case(benchmark: str, staging: str, timer: str = "host_sync") -> Case:
    return replace(
        GPU_CASE,
        benchmark=benchmark,
        timer=timer,
        staging=staging,
        layout="1x1",
        in_place=None,
    )


@pytest.mark.parametrize(
    ("copy_case", "reason"),
    [
        (case("copy_h2d", "pinned", "graph"), None),
        (case("copy_d2h", "none"), None),
        (
            case("copy_h2d_d2h", "none", "throughput"),
            "copies pageable memory on the host, so timer=throughput",
        ),
        (case("copy_d2d", "none", "device_event"), None),
        (case("copy_d2d", "pinned"), "copy_d2d needs no host memory"),
        (case("all_reduce", "none"), "copies within a rank only; it has copy_h2d, "),
    ],
)
def test_cases_that_a_copy_cannot_measure_are_skipped_with_a_reason(
    copy_case: Case, reason: str | None
) -> None:
    answer = refusal(CudaCopy(), copy_case, 1)
    assert (answer is None) if reason is None else (reason in str(answer))
    assert isinstance(CudaCopy(), Backend)


class NamedStream(HostStream):
    def __init__(self, words: list[str], number: int) -> None:
        super().__init__()
        self._words = words
        self._number = number

    def start(self, enqueue: Callable[..., None], *args: Any) -> HostStream:
        self._words.append(f"copy on {self._number}")
        return super().start(enqueue, *args)

    def wait(self) -> None:
        self._words.append(f"wait for {self._number}")
        super().wait()


class Streams(HostGpu):
    """Which stream each copy is on, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.streams = 0

    def side_stream(self) -> HostStream:
        self.streams += 1
        return NamedStream(self.words, self.streams)


def test_posted_copies_are_on_streams_of_their_own_which_are_waited_for() -> None:
    specs = [
        BufferSpec(name, 5, "float32", memory="host" if name in "ad" else "device")
        for name in "abcd"
    ]
    device = partial(DeviceBuffer, pool=1, allocate=partial(CudaMemory, place=torch.device("cpu")))
    buffers: dict[str, Any] = {
        spec.name: HostBuffer(spec) if spec.memory == "host" else device(spec) for spec in specs
    }
    for name, key in (("a", 1), ("c", 2)):
        buffers[name].write(message(key, 0, 5))
    steps = (
        Start(Copy(View("a"), View("b")), 0),
        Start(Copy(View("c"), View("d")), 1),
        WaitAll((0, 1)),
    )
    gpu = Streams()
    group = type("Group", (), {"rank": lambda self: 0, "size": lambda self: 1})()
    lowering = CopyLowering(group, buffers, gpu, 1)  # type: ignore[arg-type]
    calls = Lowered.of(Program(tuple(specs), steps).repeated(2), "barrier", lowering.call)
    HostSync(gpu, calls, 1)(1)
    assert (
        gpu.words == 2 * ["copy on 1", "copy on 2", "wait for 1", "wait for 2"] and gpu.streams == 2
    )
    assert (
        buffers["b"].count_wrong(message(1, 0, 5))
        == buffers["d"].count_wrong(message(2, 0, 5))
        == 0
    )
    with pytest.raises(Unsupported, match="copies within a rank only; it has no Send"):
        lowering.call(Send(View("a"), 0))
    assert (
        lowering.call(Barrier()).args == ()
        and lowering.call(Copy(View("a"), View("b"))).into is None
    )


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A machine with two GPUs on PCIe 4."""
    return shown(tmp_path, hgx(2), HOST_GPU)


ALL_MODES = TIMERS["cuda"]


@pytest.mark.parametrize(
    ("layout", "cache", "modes"),
    [
        ("1x1", "rotate", ("graph", "throughput")),
        pytest.param("1x2", "warm", ALL_MODES, marks=pytest.mark.long),
    ],
)
def test_every_copy_is_exact_on_one_rank_and_on_two(
    world: Callable[..., Any], env: dict[str, str], layout: str, cache: str, modes: tuple[str, ...]
) -> None:
    size = "1MB" if cache == "rotate" else "40kB"  # the pool of copies is twice the cache
    words = (
        f"sizes=[{size}]",
        f"layout={layout}",
        f"cache={cache}",
        f"timer=[{','.join(modes)}]",
    )
    run = world("commbench", *PLUGIN, *QUICK, COPIES, *words, env=env)
    assert set(run.cases.timer) == set(modes) and len(run.cases) == 4 * len(modes)
    assert set(run.cases.status) == {"ok"} and (run.cases.wrong_elements == 0).all()
    assert set(run.cases.transport) == {"memcpy"} and (run.cases.busbw_gb_per_s > 0).all()
    within = run.cases.benchmark == "copy_d2d"
    assert set(run.cases[within].staging) == {"none"} and set(run.cases[~within].staging) == {
        "pinned"
    }
    assert (
        run.cases[within].limit_gb_per_s.isna().all()
        and run.cases[~within].efficiency.notna().all()
    )
    assert set(run.cases[~within].limit_name) == {"PCIe gen4 x16 line rate"}
    both = run.cases.benchmark == "copy_h2d_d2h"
    assert (run.cases[both].busbw_gb_per_s * 2 - run.cases[both].algbw_gb_per_s).abs().max() < 1e-9


@pytest.mark.long
def test_pageable_memory_is_timed_by_the_host(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    words = (
        *QUICK,
        COPIES,
        "layout=1x1",
        "sizes=[40kB]",
        "staging=none",
        "timer=[host_sync,throughput]",
    )
    run = world("commbench", *PLUGIN, *words, env=env)
    skipped = run.cases[run.cases.status == "skipped"]
    assert set(skipped.timer) == {"throughput"} and len(skipped) == 3
