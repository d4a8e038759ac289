"""What torch.cuda's device and memory are made of, as far as it can be seen on torch's CPU
tensors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refusal
from sample_cases import GPU_CASE

from commbench.backends.buffers.memory import DeviceBuffer, HostBuffer
from commbench.backends.torch import cuda
from commbench.backends.torch.cuda import (
    CudaDevice,
    CudaMemory,
    SideStream,
    gpu_ordinal,
    view_tensors,
)
from commbench.backends.torch.nccl import Nccl
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.core.payload import DTYPES, dtype, message
from commbench.core.program import BufferSpec, View
from commbench.engines.device import HOST_BOUND
from commbench.features.cuda_copy.backend import CudaCopy
from commbench.hardware import machine_facts

CPU = torch.device("cpu")


def device_buffer(spec: BufferSpec, pool: int = 1) -> DeviceBuffer:
    return DeviceBuffer(spec, pool, partial(CudaMemory, place=CPU))


@pytest.mark.parametrize(
    ("rank", "gpus", "index"), [(0, 8, 0), (5, 8, 1), (7, 8, 3), (7, 2, 1), (3, 1, 0)]
)
def test_a_rank_takes_the_gpu_of_its_place_in_its_node(rank: int, gpus: int, index: int) -> None:
    world = World(rank, 8, ((0, 1, 2, 3), (4, 5, 6, 7)), (rank,))
    assert gpu_ordinal(world, gpus) == index


def test_memory_keeps_what_was_uploaded() -> None:
    memory = CudaMemory(100, CPU)
    memory.upload(30, np.arange(20, dtype=np.uint8))
    assert memory.download(30, 20).tolist() == list(range(20))
    assert memory.address == memory.tensor.data_ptr()


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("numbers", [True, False])
def test_a_slot_is_a_tensor_of_its_elements_in_the_buffers_own_memory(
    kind: str, numbers: bool
) -> None:
    """Of its bytes for float8, which is a number for reductions only."""
    are_bytes = kind.startswith("float8") and not numbers
    expected = torch.uint8 if are_bytes else getattr(torch, kind)
    spec = BufferSpec("data", 1000, kind, slots=3)
    host = HostBuffer(spec, 2)
    device = device_buffer(spec, 2)
    pattern = message(1, 2, 3000)
    host.write(pattern)
    device.write(pattern)
    for slot in range(3):
        view = View("data", slot)
        tensors = (view_tensors(buffer, view, numbers).values for buffer in (host, device))
        for copy, (tensor, other) in enumerate(zip(*tensors, strict=True)):
            assert (
                tensor.dtype == other.dtype == expected and tensor.numel() == other.numel() == 1000
            )
            assert torch.equal(tensor.view(torch.uint8), other.view(torch.uint8))
            assert tensor.data_ptr() == host.address(
                slot, copy
            ) and other.data_ptr() == device.address(slot, copy)


def test_what_a_library_writes_into_a_tensor_is_seen_by_the_check() -> None:
    buffer = device_buffer(BufferSpec("data", 10, "float32", slots=2))
    pattern = message(4, 0, 20)
    assert buffer.count_wrong(pattern) > 0
    buffer.write(pattern)
    assert buffer.count_wrong(pattern) == 0
    (tensor,) = view_tensors(buffer, View("data", 1, 8)).values
    tensor[1] += 1
    assert buffer.count_wrong(pattern) == 1
    size = 10 * dtype("float32").itemsize
    buffer.allocation.upload(buffer.offset(1) + size, np.zeros(1, dtype=np.uint8))
    assert buffer.count_wrong(pattern) == 2, "the guard behind the slot"


def test_no_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.\nmore")

    monkeypatch.setattr(torch, "empty", refused)  # no CPU tensor fails like that
    with pytest.raises(
        MemoryError, match=r"^80 B on cpu: CUDA out of memory. Tried to allocate 80.00 GiB.$"
    ):
        CudaMemory(80, CPU)


@pytest.mark.parametrize(
    ("clock", "cycles"), [({"clock_rate": 1_980_000}, 198), ({"clock_rate": 0}, 200), ({}, 200)]
)
def test_a_stream_is_held_by_the_gpus_clock_and_its_counters_are_those_of_the_pci_bus_id(
    monkeypatch: pytest.MonkeyPatch, clock: dict[str, int], cycles: int
) -> None:
    """torch gives the clock rate in kHz or not at all; NVML knows no UUID of a MIG part by torch's
    name for it."""
    place = "commbench.backends.torch.cuda"
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="A", **clock)
    )
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: stream)
    monkeypatch.setattr(
        f"{place}.CudaDriver",
        lambda: SimpleNamespace(pci_bus_id=lambda index: f"0000:1b:0{index}.0"),
    )
    monkeypatch.setattr(
        f"{place}.Monitor", lambda name: SimpleNamespace(readings=lambda: {name: 1.0})
    )
    held: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", held.append)
    device = CudaDevice(1)
    device.hold(1e-7)
    assert held == [cycles] and device.readings() == {"0000:1b:01.0": 1.0, HOST_BOUND: 0.0}


def test_a_gpu_of_rocm_needs_neither_cudas_driver_nor_nvml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for ROCm's torch, in which torch.cuda is HIP."""

    def refuse() -> None:
        raise AssertionError("CUDA's driver was opened")

    monkeypatch.setattr(torch.version, "hip", "6.4.43484")
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="MI300X")
    )
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: stream)
    monkeypatch.setattr(cuda, "CudaDriver", refuse)
    device = CudaDevice(0)
    assert (device.name, device.readings()) == ("MI300X", {HOST_BOUND: 0.0})


def test_events_are_torchs_and_recorded_in_the_stream_of_the_device() -> None:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.recorded: list[str] = []
            self.record = self.recorded.append

        def query(self) -> bool:
            return bool(self.recorded)

        def elapsed_time(self, end: Event) -> float:
            assert self.recorded == end.recorded == ["the stream"]
            return 0.25

    device: Any = CudaDevice.__new__(CudaDevice)
    device._cuda = SimpleNamespace(Event=Event)
    device._stream = "the stream"
    begin = device.event()
    end = device.event()
    assert not device.happened(begin)
    device.record(begin)
    device.record(end)
    assert device.happened(begin) and device.elapsed_ns(begin, end) == 250_000


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [("2.6.0+cu126", True), ("2.7.0", False), ("2.13.0", False), ("3.0.1", False), (None, False)],
)
def test_a_torch_whose_graphs_have_more_in_them_is_refused_for_graphs_only(
    monkeypatch: pytest.MonkeyPatch, version: str | None, is_refused: bool
) -> None:
    monkeypatch.setattr(machine_facts, "installed_version", lambda names: version)
    cuda._too_old_for_graphs.cache_clear()
    try:
        captured = replace(GPU_CASE, timer="graph")
        copied = replace(captured, benchmark="copy_d2d", staging="none")
        for reason in (refusal(Nccl(), captured, 2), refusal(CudaCopy(), copied, 1)):
            assert (reason is not None) is is_refused
            assert reason is None or "torch 2.6.0+cu126" in reason
        assert refusal(Nccl(), replace(GPU_CASE, timer="throughput"), 2) is None
    finally:
        cuda._too_old_for_graphs.cache_clear()


def test_a_failed_capture_says_that_no_other_follows_in_this_process() -> None:
    class Capture:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    device: Any = CudaDevice.__new__(CudaDevice)
    device._stream = "the stream"
    device._failed_graphs = []
    device._cuda = SimpleNamespace(
        CUDAGraph=object, graph=lambda *_, **__: Capture(), set_stream=lambda stream: None
    )
    with pytest.raises(Unsupported, match=r"not permitted .*; torch captures nothing after that"):
        device.capture(lambda: None)
    with pytest.raises(Unsupported, match="after a capture that failed"):
        device.capture(lambda: None)


def test_work_beside_a_stream_begins_after_its_work_and_is_waited_for() -> None:
    words: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Named) -> None:
            words.append(f"{self.name} waits for {other.name}")

        def __enter__(self) -> None:
            words.append(f"on {self.name}")

        def __exit__(self, *error: object) -> None:
            words.append(f"off {self.name}")

    current = Named("current")
    cuda = SimpleNamespace(current_stream=lambda: current, stream=lambda stream: stream)
    side = SideStream(cuda, Named("side"))
    assert side.start(words.append, "copy") is side
    side.wait()
    assert words == [
        "side waits for current", "on side", "copy", "off side", "current waits for side"
    ]  # fmt: skip
