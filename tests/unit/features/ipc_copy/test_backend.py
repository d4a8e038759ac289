"""backend=ipc_copy without a GPU: in worlds over memory files, and with a stand-in for the driver's
library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from processes import until
from torchrun_agents import here, torchrun_agents

from commbench.core.errors import ConfigError
from commbench.features.ipc_copy.backend import IpcCopy

FILES = SUPPORT / "ipc_files"

from stand_in import library_folder  # noqa: E402

PLUGIN = ("--config-dir", str(FILES / "conf"), "allow=[ipc_files]", "backend=ipc_files")
ENV = {"PYTHONPATH": str(FILES)}
FIXED = ("timing=fixed", "timing.repetitions=7", "timing.warmup_repetitions=2", "timing.warmup_s=0")
P2P = "[p2p_latency,p2p_bandwidth,p2p_bibandwidth,p2p_multi_pair,exchange,barrier]"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(library_folder(tmp_path_factory.mktemp("driver")))}


@pytest.mark.long
def test_everything_between_two_ranks_is_right_in_worlds_of_two_to_four(
    world: Callable[..., Any],
) -> None:
    words = (f"benchmark={P2P}", "layout=[1x2,1x3,1x4]", "sizes=[200kB]", "window=5", "cache=warm")
    run = world("commbench", *PLUGIN, *words, *FIXED, env=ENV)
    assert set(run.cases.status) == {"ok"}
    assert (run.cases.wrong_elements == 0).all() and set(run.cases.world_size) == {2, 3, 4}
    assert set(run.cases.transport) == {"CUDA IPC"}


@pytest.mark.long
def test_copies_rotate_through_a_pool_of_buffers(world: Callable[..., Any]) -> None:
    words = (
        "benchmark=[p2p_latency,p2p_bandwidth,exchange]",
        "layout=1x2",
        "sizes=[12,5MB]",
        "window=5",
    )
    run = world("commbench", *PLUGIN, *words, "cache=rotate", *FIXED, env=ENV)
    assert set(run.cases.status) == {"ok"} and (run.cases.wrong_elements == 0).all()


@pytest.mark.long
def test_a_rank_with_itself_copies_beside_those_that_open_memory(world: Callable[..., Any]) -> None:
    words = (
        "benchmark=[p2p_latency,p2p_bandwidth,p2p_bibandwidth]",
        "pairs=[[0,0],[0,1],[1,0]]",
        "sizes=[64KiB]",
    )
    run = world("commbench", *PLUGIN, *words, "layout=1x2", *FIXED, env=ENV)
    assert set(run.cases.status) == {"ok"} and set(run.cases.pair) == {"0-0", "0-1", "1-0"}
    assert run.record["backend"]["ipc_probe"] == {"0-1": "worked", "1-0": "worked"}


def test_a_copy_that_is_announced_too_early_is_caught_by_the_payload(
    world: Callable[..., Any],
) -> None:
    run = world(
        "commbench",
        *PLUGIN,
        "benchmark=[p2p_latency,exchange]",
        "sizes=[64]",
        "layout=1x2",
        *FIXED,
        "backend.early=true",
        env=ENV,
        status=1,
    )
    assert set(run.cases.status) == {"invalid"} and (run.cases.wrong_elements > 0).all()


@pytest.mark.long
def test_a_refusal_is_recorded_and_the_pairs_are_skipped(world: Callable[..., Any]) -> None:
    words = ("benchmark=p2p_latency", "pairs=[[0,0],[0,1]]", "sizes=[64]", "layout=1x2")
    why = "cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_VALUE"
    run = world("commbench", *PLUGIN, *words, *FIXED, f"backend.refused='{why}'", env=ENV)
    rows = run.cases.set_index("pair")
    assert dict(rows.status) == {"0-0": "ok", "0-1": "skipped"}
    assert rows.reason["0-1"] == f"CUDA IPC is refused here: rank 0, {why}"
    assert run.record["backend"]["ipc_refused"] == [why]


@pytest.mark.long
def test_pairs_on_different_nodes_are_skipped_and_those_on_one_are_measured(
    world: Callable[..., Any],
) -> None:
    """Two torchrun agents on one machine are two nodes."""
    words = ("benchmark=[p2p_latency,barrier]", "pairs=[[0,1],[1,2]]", "sizes=[64]", "layout=2x2")
    run, _ = torchrun_agents(world, [here] * 2, 2, *PLUGIN, *words, *FIXED, env=ENV)
    rows = run.cases
    by_pair = rows[rows.benchmark == "p2p_latency"].set_index("pair")
    assert dict(by_pair.status) == {"0-1": "ok", "1-2": "skipped"}
    assert by_pair.reason["1-2"].startswith(
        "CUDA IPC works only between processes of one node: rank "
    )
    (barrier,) = rows[rows.benchmark == "barrier"].itertuples()
    assert barrier.status == "skipped" and "this barrier is of several" in barrier.reason


def test_a_killed_rank_ends_the_world_in_time(tmp_path: Path, warm_executable: Path) -> None:
    """Whoever waits for it spins: its pulse is missed all the same."""
    words = [
        *PLUGIN,
        "benchmark=p2p_latency",
        "pairs=[[0,1]]",
        "sizes=[64]",
        "layout=1x2",
        "budget.restarts=0",
        "timing=soak",
        "timing.duration_s=100",
        f"output={tmp_path}",
    ]
    command = ["timeout", "-k", "5", "90", str(warm_executable), "-m", "commbench", *words]
    env = {**os.environ, **ENV, "RES_OPTIONS": "timeout:1 attempts:1"}
    with subprocess.Popen(
        command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as parent:
        try:
            os.kill(_process_of(tmp_path, 1), signal.SIGKILL)
            begin = time.monotonic()
            assert parent.stderr is not None
            text = parent.stderr.read()
            assert parent.wait(60) == 3, text
        finally:
            parent.terminate()
    assert time.monotonic() - begin < 40
    assert "rank 1" in text and "SIGKILL" in text, text


def _process_of(output: Path, rank: int) -> int:
    """The process of a rank that is in its soak by now."""

    def processes() -> dict[str, str]:
        records = [json.loads(run.read_text()) for run in output.glob("*/run.json")]
        return {
            name: pid for record in records for pid, name in record.get("processes", {}).items()
        }

    seen = until(processes)
    time.sleep(2.0)
    return next(int(pid) for name, pid in seen.items() if f"rank {rank}" in name)


@pytest.mark.long
def test_the_drivers_calls_move_and_check_everything(
    world: Callable[..., Any], driver: dict[str, str]
) -> None:
    words = (
        "benchmark=[p2p_latency,p2p_bandwidth,exchange]",
        "layout=[1x2,1x3]",
        "pairs=[[0,0],[0,1]]",
        "window=4",
    )
    run = world("commbench", "backend=ipc_copy", *words, "sizes=[8,1MB]", *FIXED, env=driver)
    assert set(run.cases.status) == {"ok"} and (run.cases.wrong_elements == 0).all()
    assert set(run.cases.device) == {"cuda"} and set(run.cases.timer) == {"host_sync"}
    backend = run.record["backend"]
    assert backend["library"] == "CUDA driver API 12.4" and "ipc_refused" not in backend


@pytest.mark.long
@pytest.mark.parametrize("call", ["cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2"])
def test_what_the_driver_refuses_is_named(
    world: Callable[..., Any], driver: dict[str, str], call: str
) -> None:
    words = ("benchmark=p2p_latency", "pairs=[[0,0],[0,1]]", "sizes=[64]", "layout=1x2", *FIXED)
    run = world("commbench", "backend=ipc_copy", *words, env={**driver, "COMMBENCH_REFUSE": call})
    rows = run.cases.set_index("pair")
    assert dict(rows.status) == {"0-0": "ok", "0-1": "skipped"}
    assert f"{call}: CUDA_ERROR_INVALID_VALUE" in rows.reason["0-1"]
    assert f"{call}: CUDA_ERROR_INVALID_VALUE" in str(run.record["backend"]["ipc_refused"])


@pytest.mark.long
def test_memory_that_the_gpu_does_not_have_is_a_skip(
    world: Callable[..., Any], driver: dict[str, str]
) -> None:
    words = ("benchmark=p2p_latency", "pairs=[[0,1]]", "sizes=[64,16MiB]", "layout=1x2", *FIXED)
    run = world(
        "commbench", "backend=ipc_copy", *words, env={**driver, "COMMBENCH_BYTES": "20000000"}
    )
    rows = run.cases.set_index("message_bytes")
    assert dict(rows.status) == {64: "ok", 16 * 2**20: "skipped"}
    assert (
        "out of memory on rank" in rows.reason[16 * 2**20]
        and "CUDA_ERROR_OUT_OF_MEMORY" in rows.reason[16 * 2**20]
    )


@pytest.mark.long
def test_other_clocks_and_staging_are_skipped_with_the_reason(
    world: Callable[..., Any], driver: dict[str, str]
) -> None:
    words = (
        "benchmark=[p2p_latency,all_reduce]",
        "sizes=[64]",
        "layout=1x2",
        "timer=[host_sync,graph]",
        *FIXED,
    )
    run = world("commbench", "backend=ipc_copy", *words, env=driver)
    rows = run.cases.set_index(["benchmark", "timer"])
    assert rows.status["p2p_latency", "host_sync"] == "ok"
    assert "only timer=host_sync" in rows.reason["p2p_latency", "graph"]
    assert "point to point only" in rows.reason["all_reduce", "host_sync"]


def test_what_contradicts_it_and_what_is_missing_are_one_line(world: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"^cuda_ipc=off contradicts backend=ipc_copy.*on$"):
        IpcCopy().environment("off", None)
    bare = world("commbench", "backend=ipc_copy", status=None)
    if bare.status != 0:  # a machine with a driver may run it
        assert bare.status == 2 and "libcuda.so.1 was not found" in bare.stderr, bare.explain()
        assert len(bare.stderr.strip().splitlines()) == 1, bare.explain()
