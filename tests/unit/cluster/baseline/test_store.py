"""What a store of baselines is keyed by, and what it knows about a case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from healthy_runs import LIBRARY, SUITE, healthy_run

from commbench.cluster.baseline.store import (
    check_store,
    healthy_launches,
    store_key,
    store_keys,
    stored_runs,
)
from commbench.cluster.baseline.writer import add_runs
from commbench.core.errors import ConfigError, Unreadable
from commbench.results.load import load_run

H100 = "NVIDIA H100 80GB HBM3"
GPU_NODE = {
    "host.cpu_model": "Intel(R) Xeon(R) Platinum 8480C",
    "host.cpu_physical_cores": 112,
    **{f"gpu.{index}.name": H100 for index in range(8)},
    **{f"gpu.{index}.nvlink_links": 18 for index in range(8)},
    "network.interface.eth0.driver": "mlx5_core",
    "network.interface.eth0.speed_mbit_per_s": 100_000,
    "network.interface.lo.driver": None,
    "network.rdma.mlx5_0:1.link_layer": "InfiniBand",
    "network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0,
}


def record(*nodes: dict[str, Any], library: str = "NCCL 2.27.3") -> dict[str, Any]:
    return {"backend": {"name": "nccl", "library": library}, "provenance": {"nodes": list(nodes)}}


def test_the_key_names_gpus_links_cards_and_cpu_of_a_node_and_the_library_in_plain_words() -> None:
    key = store_key(record(GPU_NODE))
    assert key.hardware == (
        "8x-NVIDIA-H100-80GB-HBM3_NVLink_1x-InfiniBand_1x-mlx5_core"
        "_Intel-R-Xeon-R-Platinum-8480C_112-cores"
    )
    assert str(key.folder) == f"hardware={key.hardware}/software=NCCL-2.27.3"


def test_a_link_that_is_down_or_slower_is_the_same_hardware_and_a_missing_gpu_is_not() -> None:
    healthy = store_key(record(GPU_NODE))
    degraded = GPU_NODE | {
        "network.rdma.mlx5_0:1.rate_gbit_per_s": 200.0,
        "network.interface.eth0.state": "down",
        "gpu.3.nvlink_links": 17,
    }
    assert store_key(record(degraded, GPU_NODE)) == healthy
    seven = {fact: value for fact, value in GPU_NODE.items() if not fact.startswith("gpu.7.")}
    assert store_key(record(seven)) != healthy
    assert store_key(record(GPU_NODE, library="NCCL 2.28.1")) != healthy


def test_nodes_of_several_kinds_are_named_together_in_a_name_that_file_systems_take() -> None:
    kinds = [GPU_NODE | {"host.cpu_model": f"CPU number {number}"} for number in range(40)]
    key = store_key(record(*kinds))
    assert key == store_key(record(*reversed(kinds))) != store_key(record(*kinds[1:]))
    assert "_and_" in store_key(record(*kinds[:2])).hardware or len(key.hardware) < 200


def test_a_record_of_another_program_has_a_key_as_well() -> None:
    assert str(store_key({"provenance": None, "backend": []})) == "unknown with unknown"


def test_a_case_has_the_launches_of_all_runs_of_its_key_with_run_hosts_and_day(
    tmp_path: Path,
) -> None:
    runs = [healthy_run(tmp_path, number, day=number, host=f"n{number}") for number in (1, 2, 3)]
    other = healthy_run(tmp_path, 4, backend={"name": "gloo", "library": "torch 2.14.0 gloo"})
    store = tmp_path / "store"
    add_runs(store, [*runs, other])
    key = store_key(load_run(runs[0]))
    cases = healthy_launches(store, key)
    assert len(cases) == len(SUITE) and len(store_keys(store)) == 2
    assert key.software == "torch-2.13.0-cpu-gloo"
    (first, *_) = cases.values()
    assert [launch.run_id for launch in first.launches] == [run.name for run in runs]
    assert [launch.day for launch in first.launches] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert [launch.hosts for launch in first.launches] == ["n1", "n2", "n3"]
    assert [row.run_id for row in first.rows] == [run.name for run in runs]
    assert first.rows[-1].library == LIBRARY and first.rows[-1].env == ()


def test_a_rigorous_run_counts_as_the_launches_that_it_made(tmp_path: Path) -> None:
    def in_launches(values: dict[str, Any]) -> dict[str, Any]:
        visits = values["median_s"] * np.repeat([1.0, 1.1, 1.2], 2)
        return values | {
            "visit_medians_s": visits.tolist(),
            "visit_launches": [0, 0, 1, 1, 2, 2],
        }

    run = healthy_run(tmp_path, 1, change=in_launches)
    add_runs(tmp_path / "store", [run])
    cases = healthy_launches(tmp_path / "store", store_key(load_run(run)))
    for case in cases.values():
        medians = [launch.median_s for launch in case.launches]
        assert np.allclose(np.divide(medians, medians[0]), [1.0, 1.1, 1.2])


def test_a_skipped_case_is_known_without_launches(tmp_path: Path) -> None:
    def skipped(values: dict[str, Any]) -> dict[str, Any]:
        if values["benchmark"] != "broadcast":
            return values
        return values | {"status": "skipped", "median_s": None, "reason": "not supported"}

    run = healthy_run(tmp_path, 1, change=skipped)
    add_runs(tmp_path / "store", [run])
    cases = healthy_launches(tmp_path / "store", store_key(load_run(run))).values()
    counts = {case.rows[-1].benchmark: len(case.launches) for case in cases}
    assert counts == {"all_reduce": 1, "broadcast": 0, "p2p_latency": 1}


@pytest.mark.parametrize("content", [b"", b"PAR1 half of it"])
def test_a_file_of_the_store_that_is_damaged_is_named_with_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    run = healthy_run(tmp_path, 1)
    add_runs(tmp_path / "store", [run])
    (stored,) = stored_runs(tmp_path / "store")
    (stored / "cases.parquet").write_bytes(content)
    with pytest.raises(Unreadable, match="out of the store") as seen:
        healthy_launches(tmp_path / "store", store_key(load_run(run)))
    assert str(stored) in str(seen.value) and "\n" not in str(seen.value)


def test_a_run_of_another_schema_in_the_store_is_named(tmp_path: Path) -> None:
    run = healthy_run(tmp_path, 1)
    add_runs(tmp_path / "store", [run])
    (stored,) = stored_runs(tmp_path / "store")
    record = (stored / "run.json").read_text()
    (stored / "run.json").write_text(record.replace('"schema_version": 4', '"schema_version": 9'))
    with pytest.raises(Unreadable, match="has schema version 9, this commbench reads 4"):
        healthy_launches(tmp_path / "store", store_key(load_run(run)))


def test_what_is_no_store_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, seen in (("absent", "is not a folder"), ("empty", "is not a store of baselines")):
        with pytest.raises(ConfigError, match=seen) as refused:
            check_store(tmp_path / name)
        assert f"commbench baseline add RUN... --baseline {tmp_path / name}" in str(refused.value)
