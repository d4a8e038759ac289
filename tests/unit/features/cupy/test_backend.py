"""Raw NCCL without a GPU: what is missing and in which words, what it refuses, how ranks learn a
communicator's id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import program_of, refusal
from sample_cases import GPU_CASE
from shown_gpus import hgx, libraries, shown_to_cupy

from commbench.features.cupy.backend import CupyNccl, id_from_json, id_to_json

QUICK = ["timing=fixed", "timing.repetitions=4", "timing.warmup_repetitions=1", "timing.warmup_s=0"]
ASK = "from commbench.features.cupy.backend import CupyNccl; print(CupyNccl().missing('cuda'))"
LOADED = "import sys; print(sorted({'torch', 'cupy'} & set(sys.modules)))"
CASE = replace(GPU_CASE, timer="graph", dtype="bfloat16", reduction="sum")


def missing(*path: Path, driver: bool = True, machine: Path | None = None) -> str:
    """What a fresh process says is missing, with these folders on its path; nothing that is
    measured is loaded."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "CONDA_PREFIX")
    }
    if driver:
        clean["LD_LIBRARY_PATH"] = str(libraries())
    if machine is not None:
        clean["SHOWN_GPUS"] = str(machine)
    clean["PYTHONPATH"] = ":".join(map(str, path))
    words = [sys.executable, "-c", f"{ASK}\n{LOADED}"]
    done = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=60, check=True)
    reason, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    return reason


def plant(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_the_first_missing_part_is_the_reason(tmp_path: Path) -> None:
    have_cupy = plant(tmp_path / "one", "cupy/__init__.py")
    have_both = plant(tmp_path / "two", "cupy/__init__.py", "nvidia/nccl/lib/libnccl.so.2")
    if not Path("/proc/driver/nvidia").exists():
        assert missing(driver=False).startswith("no NVIDIA driver")
    if missing() == "None":
        pytest.skip("CuPy and NCCL are installed here")
    assert missing() == "cupy is not installed; pip install 'commbench[cuda]'"
    assert missing(have_cupy).startswith(
        "libnccl.so.2 was not found, and CuPy does not include it; pip install"
    )
    assert missing(have_both) == "None"


@pytest.mark.parametrize(
    ("driver", "wheel", "expected"),
    [
        (
            "cuda 12080",
            "cupy_cuda13x",
            "cupy is built for CUDA 13, and this driver runs CUDA 12.8 at most",
        ),
        ("cuda 13000", "cupy_cuda13x", "None"),
    ],
)
def test_a_cupy_for_a_newer_driver_is_the_reason(
    tmp_path: Path, driver: str, wheel: str, expected: str
) -> None:
    have = plant(tmp_path, "cupy/__init__.py", "nvidia/nccl/lib/libnccl.so.2")
    metadata = (
        plant(tmp_path, f"{wheel}-14.2.0.dist-info/METADATA") / f"{wheel}-14.2.0.dist-info/METADATA"
    )
    metadata.write_text(
        f"Metadata-Version: 2.1\nName: {wheel.replace('_', '-')}\nVersion: 14.2.0\n"
    )
    (tmp_path / "machine").write_text(hgx(1, driver))
    reason = missing(have, machine=tmp_path / "machine")
    assert reason.startswith(expected) and (expected == "None" or "commbench[cuda12]" in reason)


def test_counters_are_those_of_the_pci_bus_id(stand_in: dict[str, str]) -> None:
    code = (
        "import commbench.features.cupy.backend as c; from types import SimpleNamespace as"
        " S;c.Monitor = lambda name: S(readings=lambda: {name: 1.0});"
        " print(sorted(c.CupyDevice(1).readings()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | stand_in,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "['0000:1B:00.0', 'gpu.host_bound_repetitions']\n", done.stderr


def test_cases_that_nccl_has_no_call_for_are_skipped() -> None:
    nccl = CupyNccl()
    assert nccl.sharing_refusal({}) == "backend=cupy_nccl needs a GPU for each rank"
    assert nccl.staging(program_of(CASE, 2)) == "none"
    assert refusal(nccl, CASE, 2) is None
    assert refusal(nccl, replace(CASE, reduction="avg"), 2) is None
    assert (
        refusal(nccl, replace(CASE, reduction="avg", dtype="int32"), 2)
        == "NCCL has no reduction avg of int32"
    )
    assert "has no effect on it" in str(refusal(nccl, replace(CASE, staging="pinned"), 2))
    assert "not sent yet" in str(
        refusal(nccl, replace(CASE, benchmark="all_to_all", reduction=None), 2)
    )


def test_settings_become_nccls_variables() -> None:
    variables = CupyNccl().environment("off", "lo")
    assert variables["NCCL_P2P_DISABLE"] == "1" and variables["NCCL_SOCKET_IFNAME"] == "=lo"
    assert "NCCL_P2P_DISABLE" not in CupyNccl().environment("auto", None)


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    return shown_to_cupy(tmp_path, 2)


@pytest.mark.long
def test_every_operation_and_clock_in_worlds_of_the_stand_in(
    world: Callable[..., Any], stand_in: dict[str, str]
) -> None:
    """The way of a case from open to close: communicators of one rank and of two, streams, events,
    graphs, payloads."""
    run = world(
        "commbench",
        "backend=cupy_nccl",
        *QUICK,
        "layout=[1x1,1x2]",
        "benchmark=all",
        "sizes=[40kB]",
        "window=3",
        "timer=[host_sync,graph]",
        env=stand_in,
    )
    cases = run.cases[~run.cases.benchmark.str.startswith(("copy_", "stream"))]
    measured = cases[cases.status == "ok"]
    assert set(measured.timer) == {"host_sync", "graph"}
    lacking = {"concurrent", "communicator_split"}  # it has one stream, and no ncclCommSplit
    assert set(cases.benchmark) - set(measured.benchmark) == lacking
    assert (measured.wrong_elements == 0).all() and set(measured.staging) == {"none"}
    known = cases.benchmark.isin(lacking) | cases.reason.fillna("").str.contains("on the host")
    skipped = cases[(cases.status == "skipped") & ~known]
    assert set(skipped.layout) == {"1x1"}, "what needs two ranks"


@pytest.mark.long
def test_the_clock_of_a_held_stream_in_worlds_of_the_stand_in(
    world: Callable[..., Any], stand_in: dict[str, str]
) -> None:
    run = world(
        "commbench",
        "backend=cupy_nccl",
        *QUICK,
        "layout=1x2",
        "benchmark=[all_reduce,p2p_bandwidth]",
        "in_place=false",
        "sizes=[8]",
        "timer=[device_event,throughput]",
        env=stand_in,
    )
    assert set(run.cases.status) == {"ok"} and set(run.cases.clock) == {"device"}
    assert (run.cases.wrong_elements == 0).all()


@given(st.binary(min_size=128, max_size=128) | st.tuples(*[st.integers(-128, 127)] * 128))
def test_an_id_arrives_as_it_was(unique: bytes | tuple[int, ...]) -> None:
    """Of either kind of CuPy, through the control plane's JSON."""
    assert id_from_json(json.loads(json.dumps(id_to_json(unique)))) == unique
