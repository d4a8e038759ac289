"""Registered buffers without a GPU: what is refused in which words, and the calls of torch's pools
on a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composed import FACTS, settings_of
from places import HOST_GPU
from refusals import refusal
from sample_cases import GPU_CASE
from shown_gpus import hgx, shown

from commbench.backends.nccl_library import LoadedNccl
from commbench.backends.torch.nccl import Nccl, kernel_names
from commbench.backends.torch.registered_memory import RegisteredMemory
from commbench.core.layout import Layout
from commbench.hardware import machine_facts
from commbench.measure.plan import plan
from commbench.runtime.control import hosted_world

REDUCED = replace(GPU_CASE, registration="symmetric", reduction="sum", in_place=True)


def refused(torch: str, nccl: int | None, monkeypatch: Any, **variables: Any) -> str | None:
    monkeypatch.setattr(machine_facts, "installed_version", lambda names: torch)
    loaded = None if nccl is None else LoadedNccl(nccl, "/lib/libnccl.so.2")
    monkeypatch.setattr(LoadedNccl, "find", lambda: loaded)
    return refusal(Nccl(), replace(REDUCED, **variables), 2)


@pytest.mark.parametrize("torch", ["2.9.0", "2.10.1+cu130", "2.14.0", "2.11.0a0"])
def test_torch_from_2_9_on_registers(torch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(torch, 22703, monkeypatch) is None
    assert refused(torch, None, monkeypatch, registration="local") is None


def test_what_is_too_old_is_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = refused("2.8.0", 22703, monkeypatch, registration="local")
    assert old == "registration=local needs torch 2.9 or newer; this is 2.8.0"
    old = refused("2.9.0", 22602, monkeypatch)
    assert old == "registration=symmetric needs NCCL 2.27 or newer; this is 2.26.2"
    assert refused("2.8.0", 22602, monkeypatch, registration="none") is None


def test_symmetric_kernels_are_of_three_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"benchmark": "broadcast", "reduction": None, "in_place": None, "root": 0}
    said = refused("2.9.0", 22703, monkeypatch, **words)
    assert said is not None and said.endswith("reduce_scatter only; use registration=local")
    assert refused("2.9.0", 22703, monkeypatch, **words, registration="local") is None
    said = refused("2.9.0", 22703, monkeypatch, benchmark="barrier", registration="local")
    assert said == "barrier has no buffers to register; use registration=none"


def test_a_library_without_registration_skips_it() -> None:
    settings = settings_of(
        "backend=gloo", "benchmark=all_reduce", "registration=[none,local]", "sizes=[8]"
    )
    world, _ = hosted_world(1, 2)
    cases = plan(replace(settings, layouts=(Layout(1, 2),)), world, FACTS)
    by_value = {planned.case.registration: planned for planned in cases}
    assert by_value["none"].skip is None and by_value["none"].case.cache == "warm"
    said = by_value["local"].skip
    assert said == "gloo can't register its buffers; use registration=none or backend=nccl"
    assert by_value["local"].case.cache == "rotate", "one buffer in a graph is nccl#1924"


class Backend:
    """ProcessGroupNCCL as torch 2.9 to 2.14 have it."""

    mem_allocator = "nccl's"

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        self.log.append(("register", pool, symm))

    def deregister_mem_pool(self, pool: Any) -> None:
        self.log.append(("deregister", pool))


@pytest.mark.parametrize(("registration", "symm"), [("local", False), ("symmetric", True)])
def test_a_case_allocates_registers_once_and_ends_it(
    registration: Any, symm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    log: list[Any] = []

    @contextmanager
    def use(pool: Any) -> Iterator[None]:
        log.append(("in", pool))
        yield
        log.append(("out", pool))

    monkeypatch.setattr(torch.cuda, "MemPool", lambda allocator: f"pool of {allocator}")
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    memory = RegisteredMemory(Backend(log), registration)
    with memory.allocating():
        log.append("buffers")
    memory.register()
    memory.register()
    memory.release()
    pool = "pool of nccl's"
    steps = [("in", pool), "buffers", ("out", pool), ("register", pool, symm)]
    assert log == [*steps, ("deregister", pool)]
    unused = RegisteredMemory(Backend(log), registration)
    with unused.allocating():
        pass
    unused.release()
    assert log[-1] == ("out", pool), "what was not registered is not ended"


def test_the_kernels_of_a_profile_are_what_ran_on_a_gpu() -> None:
    from torch.autograd import DeviceType

    on_gpu = SimpleNamespace(device_type=DeviceType.CUDA, name="ncclSymkDevKernel_AllGather_ST")
    on_host = SimpleNamespace(device_type=DeviceType.CPU, name="c10d::allgather_")
    assert kernel_names([on_host, on_gpu]) == ["ncclSymkDevKernel_AllGather_ST"]


def test_registered_cases_are_right_in_worlds_of_the_stand_in(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """In place and out of place, eager and in a graph, rotating: the buffers are there, then they
    are registered, and each case ends it."""
    run = world(
        "commbench",
        "--config-dir",
        str(HOST_GPU / "conf"),
        "allow=[host_gpu]",
        "backend=host_nccl",
        "benchmark=[all_reduce,all_gather,p2p_latency]",
        "registration=[none,local,symmetric]",
        "timer=[host_sync,graph]",
        "sizes=[4kB]",
        "timing=fixed",
        "timing.repetitions=4",
        "timing.warmup_s=0",
        env=shown(tmp_path, hgx(2), HOST_GPU),
    )
    cases = run.cases
    skipped = cases[cases.status != "ok"]
    assert set(skipped.benchmark) == {"p2p_latency"}
    assert set(skipped.registration) == {"symmetric"} and len(skipped) == 2
    measured = cases[cases.status == "ok"]
    assert (measured.wrong_elements == 0).all() and len(measured) == 6 * 3 - 2
    rotates = measured[measured.registration != "none"]
    assert set(rotates.cache) == {"rotate"}
