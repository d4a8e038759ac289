"""What is measured before the first case: rates of copies, on a link that is awake."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from composed import FACTS, settings_of

from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Runner
from commbench.hardware import nvml
from commbench.hardware.nvml import Gpu
from commbench.measure import calibration
from commbench.measure.calibration import copy_gb_per_s, core_copy_gb_per_s, wake_links
from commbench.measure.conditions import ConditionsReader
from commbench.measure.plan import plan
from commbench.runtime.control import hosted_world

WORDS = ("backend=simulated", "benchmark=[all_reduce]", "sizes=[60kB]")


class Copier:
    """A communicator whose copies have a planted rate for each size, in GB/s; no memory for other
    sizes."""

    def __init__(self, rates: dict[int, float]) -> None:
        self.rates = rates

    def allocate(self, spec: BufferSpec, pool: int) -> BufferSpec:
        if spec.count not in self.rates:
            raise MemoryError
        return spec

    def prepare(self, programs: dict[int, Program], buffers: Any, mode: Any) -> Runner:
        copied = len(programs[0].steps) * buffers[0]["source"].count
        elapsed_ns = round(copied / self.rates[buffers[0]["source"].count])
        return lambda n: np.stack([np.zeros((1, n)), np.full((1, n), elapsed_ns)], axis=2).astype(
            np.int64
        )


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        # the smaller one fits into the cache of the GPU
        ({16 * 2**20: 4000.0, 256 * 2**20: 3000.0}, 3000.0),
        # too slow for a GPU: the larger copies would take seconds
        ({16 * 2**20: 5.0, 256 * 2**20: 4.0}, 5.0),
        ({16 * 2**20: 4000.0}, None),  # a rate of the cache is none of the memory
        ({}, None),
    ],
)
def test_the_copy_rate_of_a_gpu_is_that_of_its_memory_or_unknown(
    rates: dict[int, float], expected: float | None
) -> None:
    settings = settings_of(*WORDS, "timing=default", "layout=1x2")
    (planned,) = plan(settings, hosted_world(1, 2)[0], FACTS)
    on_gpu = replace(planned, case=replace(planned.case, device="cuda"))
    copier: Any = Copier(rates)
    assert copy_gb_per_s(copier, [on_gpu]) == (expected and pytest.approx(expected, rel=1e-3))
    assert copy_gb_per_s(copier, [planned]) is None


def link_that_wakes_up(
    monkeypatch: pytest.MonkeyPatch, copies: int, generation_max: int = 4
) -> list[str]:
    """A GPU whose PCIe link is at generation 1 until so many copies have crossed it; returns the
    events of the calls of its communicator."""
    events: list[str] = []

    def gpus() -> list[Gpu]:
        awake = events.count("copy") >= copies
        generation = generation_max if awake else 1
        return [
            Gpu(0, pcie_generation=generation, pcie_generation_max=generation_max, pcie_width=16)
        ]

    monkeypatch.setattr(nvml, "gpus", gpus)
    return events


def recording(events: list[str], **facts: Any) -> Any:
    def allocate(spec: BufferSpec, pool: int) -> Any:
        events.append("allocate")
        return SimpleNamespace(write=lambda pattern: events.append("copy"))

    return SimpleNamespace(facts=lambda: facts, allocate=allocate)


def test_a_link_is_woken_before_its_rate_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GeForce without work is at generation 1, from which limits would follow."""
    events = link_that_wakes_up(monkeypatch, copies=3)
    settings = replace(settings_of("backend=gloo", *WORDS[1:]), device="cuda")
    world, control = hosted_world(1, 1)
    run = {
        "gpus": [{"gpu.own.index": 0}],
        "provenance": {"nodes": [{"gpu.0.pcie_generation": 1, "gpu.0.pcie_width": 16}]},
    }
    library = recording(events, gpu="GeForce", ipc_probe="done")
    reader = ConditionsReader(settings, world, control, run, library)
    (gpu,) = reader.read(None, (), FACTS).evidence.gpus
    assert gpu.pcie_generation == 4
    assert events == ["allocate", "copy", "copy", "copy"]


def test_a_link_at_its_full_rate_and_one_that_stays_slow_take_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = link_that_wakes_up(monkeypatch, copies=0)
    wake_links(recording(events))
    assert events == []
    monkeypatch.setattr(calibration, "WAKE_S", 0.0)
    events = link_that_wakes_up(monkeypatch, copies=10**9)
    wake_links(recording(events))
    assert events == ["allocate"]


def test_copies_are_not_timed_where_there_is_no_memory_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "ones", refuse)
    assert core_copy_gb_per_s(8) is None
