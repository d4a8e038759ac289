"""What rows say of the way between GPUs, from a machine's tables and a library's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_cases import planned, table

from commbench.contracts import World
from commbench.evidence import Evidence, gathered, gpus_of, log_kinds, recorded, topologies_of
from commbench.gpu_bounds import Gpu

DATA = Path(__file__).parent / "provenance" / "data"
H100 = {"gpu.0.compute_capability": "9.0", "gpu.0.nvlink_links": 18, "gpu.1.compute_capability": "9.0"}
LOG = (DATA / "nccl_2.21_shm.txt").read_text()
EIGHT = tuple(Gpu(0, index, capability=90) for index in range(8))
ON_EIGHT = Evidence(gpus=EIGHT, topologies={0: table("topo_h100x8.txt")})


class Alone:
    """The control plane of a world of one rank."""

    def gather(self, value: Any, deadline_s: float, meeting: str = "") -> list[Any]:
        return [value]


def test_a_pair_has_its_cell_and_a_cpu_has_none() -> None:
    assert ON_EIGHT.of(planned("p2p_latency", "1x8"))["link"] == "NV18"
    assert Evidence().of(planned("p2p_latency", "1x8", device="cpu")) == {
        "transport": None, "link": None, "cuda_ipc_effective": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "told", "ipc"),
    [
        ({(0, 1): ("P2P/CUMEM",)}, "P2P/CUMEM", "on"),
        ({(0, 1): ("SHM/direct/direct",)}, "SHM/direct/direct", "off"),
        ({(2, 3): ("P2P/IPC",)}, "P2P/IPC", "on"),  # of others, where the pair has not connected yet
        ({}, None, None),
    ],
)
def test_a_pair_is_told_by_its_own_lines(kinds: Any, told: str | None, ipc: str | None) -> None:
    everything = ", ".join(kind for one in kinds.values() for kind in one) or None
    seen = Evidence(gpus=EIGHT, kinds=kinds, transport=everything).of(planned("p2p_latency", "1x8", "pairs=[[0,1]]"))
    assert (seen["transport"], seen["cuda_ipc_effective"]) == (told, ipc)


def test_what_goes_through_the_host_has_no_ipc_and_a_backend_may_know_better() -> None:
    job = planned("p2p_latency", "1x8", "pairs=[[0,1]]")
    assert Evidence(gpus=EIGHT, ipc="on").of(job)["cuda_ipc_effective"] == "on"
    from dataclasses import replace

    for staging in ("pinned", "library"):
        staged = replace(job, case=replace(job.case, staging=staging))
        assert Evidence(gpus=EIGHT, ipc="on", kinds={(0, 1): ("P2P/IPC",)}).of(staged)["cuda_ipc_effective"] == "off"


def test_a_log_is_recorded_as_what_it_says() -> None:
    kept = recorded({"library": "torch 2.11 nccl 2.21.5", "nccl_log": LOG})
    assert "nccl_log" not in kept and kept["library"].startswith("torch")
    assert kept["nccl"]["version"].startswith("2.21") and "SHM" in kept["nccl"]["transport"]
    assert recorded({"library": "gloo"}) == {"library": "gloo"}


def test_all_ranks_tell_and_rank_0_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    run = {"provenance": {"nodes": [H100 | {"topology.nvidia_smi_topo_m": (DATA / "topo_h100x8.txt").read_text()}]}}
    run |= {"gpus": [{"gpu.own.index": 0}, {"gpu.own.index": 1}]}
    world, control = World(0, 2, ((0, 1),), (0,)), Alone()
    found = gathered(world, control, {"nccl_log": LOG}, run, 1.0)  # type: ignore[arg-type]
    assert found.gpus == (Gpu(0, 0, capability=90, nvlinks=18), Gpu(0, 1, capability=90))
    assert found.algorithm == "Ring" and set(found.topologies) == {0}
    assert found.transport is not None and "SHM" in found.transport
    assert found.kinds == {(one[0], one[1]): tuple(one[2]) for one in log_kinds({"nccl_log": LOG})} != {}
    other = World(1, 2, ((0, 1),), (1,))
    assert gathered(other, control, {}, {}, 1.0) == Evidence()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "disabled", "ignored"),
    [
        ("off", "0", "cuda_ipc=off had no effect on NCCL: NCCL_P2P_DISABLE is 0"),
        ("off", "1", None),
        ("auto", "1", None),
    ],
)
def test_a_setting_without_effect_is_said(
    monkeypatch: pytest.MonkeyPatch, asked: str, disabled: str, ignored: str | None
) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", disabled)
    monkeypatch.delenv("NCCL_P2P_LEVEL", raising=False)
    run = {"provenance": {"nodes": [{}]}, "cuda_ipc": {"asked": asked}}
    world = World(0, 1, ((0,),), (0,))
    facts = {"ipc_libraries": ["NCCL"], "nccl_log": LOG}
    found = gathered(world, Alone(), facts, run, 1.0)  # type: ignore[arg-type]
    assert found.cuda_ipc == {"effective": "off", "ignored": ignored}


def test_nodes_without_nvidia_smi_and_worlds_without_gpus_say_nothing() -> None:
    assert topologies_of([{}, {"topology.nvidia_smi_topo_m": None}]) == {}
    assert gpus_of([], [], lambda rank: 0) == ()
