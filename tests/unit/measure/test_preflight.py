"""What preflight finds: ranks that differ, GPUs that are shared, busy or missing, and clocks that
are apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from shown_gpus import GIB, ask, h100, hgx, uuid

from commbench.core.case import World
from commbench.measure.preflight import (
    busy_gpus,
    clock_skew_warning,
    difference_table,
    node_text,
    same_network_text,
    shared_gpu,
    small_shm_lines,
)
from commbench.runtime.launchers.registry import is_called_per_node

FACTS = [{"host.hostname": f"node{rank // 2}"} for rank in range(6)]


def test_a_node_says_its_ranks_who_prints_and_where_the_results_will_be() -> None:
    nodes = ((0, 1), (2,))
    second = World(2, 3, nodes, (2,), "torchrun")
    assert node_text(second, "b", "a", "/r/run") == (
        "node 2 of 2 (b): rank 2; rank 0 prints, on a, and stores the results there: /r/run"
    )
    first = World(0, 3, nodes, (0,), "torchrun")
    assert node_text(first, "a", "a", "/r/run").startswith("node 1 of 2 (a): ranks 0-1; rank 0")
    called = [name for name in ("torchrun", "mpirun", "srun") if is_called_per_node(name)]
    assert called == ["torchrun"]  # the others print all nodes' lines in one terminal


def test_each_value_has_a_line_with_its_ranks_and_hosts() -> None:
    text = difference_table(
        {
            "versions.torch": {"2.13.0": [0, 1, 2, 4, 5], "2.11.0": [3]},
            "run.digest": {"a": [0], "b": [1]},
        },
        FACTS,
    )
    assert [line.split() for line in text.splitlines()] == [
        ["fact", "value", "ranks", "hosts"],
        ["versions.torch", "2.13.0", "0-2,4-5", "node0,", "node1,", "node2"],
        ["2.11.0", "3", "node1"],
        ["configuration", "(digest)", "a", "0", "node0"],
        ["b", "1", "node0"],
    ]
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(text.splitlines()[1:3], ("2.13", "2.11"), strict=True)
            }
        )
        == 1
    )


def test_long_values_and_many_hosts_are_cut() -> None:
    facts = [{"host.hostname": f"node{rank}"} for rank in range(9)]
    text = difference_table({"environment.PATH": {"x" * 500: list(range(9)), "missing": []}}, facts)
    assert (
        "x" * 45 + "..." in text and "and 5 more" in text and max(map(len, text.splitlines())) < 160
    )


def test_clocks_are_told_from_a_second_on() -> None:
    assert clock_skew_warning([100.0, 100.4, 100.9], FACTS) is None
    assert (
        clock_skew_warning([100.0, 99.9, 97.5], FACTS)
        == "the clock of node0 (rank 0) is 2.5 s ahead of that of node1 (rank 2); set them by NTP"
    )


SLOW = "10.0.0.0/24 at 1 Gb/s"
FAST = "10.0.0.0/24 at 100 Gb/s"
OTHER = "10.1.0.0/24 at 100 Gb/s"


def machine() -> dict[str, Any]:
    """Five interfaces, and three ports of which one is down."""
    facts: dict[str, Any] = {
        "network.interface.lo.network": "127.0.0.0/8",
        "network.interface.down.mtu_bytes": 1500,
    }
    interfaces = {
        "eth0": FAST,
        "ens3": FAST,
        "eth1": OTHER,
        "slow": SLOW,
        "docker0": "172.17.0.0/16 at 10 Gb/s",
    }
    for name, text in interfaces.items():
        address, rate = text.removesuffix(" Gb/s").split(" at ")
        facts[f"network.interface.{name}.network"] = address
        facts[f"network.interface.{name}.speed_mbit_per_s"] = 1000 * int(rate)
    for port, state in (("mlx5_0:1", "ACTIVE"), ("mlx5_2:1", "ACTIVE"), ("mlx5_10:1", "DOWN")):
        of_port = {"rate_gbit_per_s": 400.0, "link_layer": "InfiniBand", "state": state}
        facts |= {f"network.rdma.{port}.{key}": value for key, value in of_port.items()}
    return facts


@pytest.mark.parametrize(
    ("variable", "values", "text"),
    [
        ("NCCL_SOCKET_IFNAME", ("eth0", "=ens3"), FAST),
        ("NCCL_SOCKET_IFNAME", ("eth", "eth0,eth1"), f"{FAST}, {OTHER}"),  # a prefix
        ("NCCL_SOCKET_IFNAME", ("^docker,slow,ens", "eth"), f"{FAST}, {OTHER}"),
        ("NCCL_SOCKET_IFNAME", ("^=docker0,slow,eth1,eth0", "ens"), FAST),
        ("NCCL_SOCKET_IFNAME", ("eth", "=eth0"), None),
        ("NCCL_SOCKET_IFNAME", ("eth0", "=eth"), None),  # no interface has exactly this name
        ("NCCL_SOCKET_IFNAME", ("eth0", "eth1"), None),  # another network
        ("NCCL_SOCKET_IFNAME", ("eth0", "slow"), None),  # another rate
        ("NCCL_SOCKET_IFNAME", ("eth0", "eth0,ens3"), None),  # one more interface
        ("NCCL_SOCKET_IFNAME", ("eth0", "^docker"), None),
        ("NCCL_SOCKET_IFNAME", ("eth0", ""), None),
        ("NCCL_SOCKET_IFNAME", ("mlx5_0", "mlx5_2"), None),  # ports are no interfaces
        ("NCCL_IB_HCA", ("mlx5_0", "=mlx5_2:1"), "InfiniBand at 400 Gb/s"),
        ("NCCL_IB_HCA", ("mlx5", "^mlx5_1"), "InfiniBand at 400 Gb/s, InfiniBand at 400 Gb/s"),
        ("NCCL_IB_HCA", ("mlx5_0", "mlx5_0:2"), None),
        ("NCCL_IB_HCA", ("mlx5_1", "mlx5_1"), None),  # a prefix of mlx5_10, which is down
        ("GLOO_SOCKET_IFNAME", ("eth0", "ens3"), FAST),
        ("GLOO_SOCKET_IFNAME", ("eth0", "eth"), None),  # a name is no prefix there
        ("UCX_NET_DEVICES", ("mlx5_0:1", "mlx5_2:1"), "InfiniBand at 400 Gb/s"),
    ],
)
def test_names_of_interfaces_may_differ_where_network_and_rate_are_the_same(
    variable: str, values: tuple[str, str], text: str | None
) -> None:
    facts = [machine() | {f"environment.{variable}": value} for value in values]
    answer = same_network_text(f"environment.{variable}", facts)
    expected = f"{variable} differs between hosts, but names the same network on all: {text}"
    assert answer == (None if text is None else expected)


def test_a_small_shared_memory_is_told_once_a_host() -> None:
    sizes = {"a": 2**16, "b": 2**34, "c": 2**26}
    facts = [{"host.hostname": host, "limits.shm_total_bytes": sizes[host]} for host in "aabc"]
    lines = small_shm_lines(facts)
    assert [line.partition(",")[0][:26] for line in lines] == [
        "a: /dev/shm has 64 KiB (do",
        "c: /dev/shm has 64 MiB (do",
    ]
    assert all("--shm-size=8g" in line for line in lines)


def rank(host: str, index: int, **more: Any) -> dict[str, Any]:
    facts = {"uuid": uuid(index), "index": index, "name": "NVIDIA L4", "visible": 2, **more}
    return {"host.hostname": host} | {f"gpu.own.{key}": value for key, value in facts.items()}


# ---------------------------------------------------------------- what is said


REFUSAL = "wire needs a GPU for each rank"


def test_two_ranks_on_one_gpu_are_named() -> None:
    facts = [rank("a", 0), rank("a", 1), rank("b", 0), rank("b", 0)]
    assert (
        shared_gpu(facts, ((0, 1), (2, 3)), REFUSAL)
        == f"ranks 2-3 on b have the same GPU, GPU 0 (NVIDIA L4, {uuid(0)}), and wire needs a GPU"
        " for each rank: start at most as many ranks a node as it has GPUs (2 ranks here, 2"
        " visible), or give each its own with CUDA_VISIBLE_DEVICES"
    )


def test_several_shared_gpus_are_one_line() -> None:
    facts = [rank("a", index % 2) for index in range(5)]
    text = shared_gpu(facts, (tuple(range(5)),), REFUSAL)
    assert text is not None and text.startswith("ranks 0,2,4 on a have the same GPU, GPU 0 ")
    assert ", and so for 1 more, and wire" in text and "\n" not in text


def test_one_gpu_for_each_rank_of_a_node_is_no_duplicate() -> None:
    """On two nodes it may even be the same: containers of one machine, as the user made them."""
    assert (
        shared_gpu(
            [rank("a", 0), rank("a", 1), rank("b", 0)],
            ((0, 1), (2,)),
            REFUSAL,
        )
        is None
    )
    assert (
        shared_gpu(
            [{"host.hostname": "a"}, {"host.hostname": "a"}],
            ((0, 1),),
            REFUSAL,
        )
        is None
    )


def test_a_busy_gpu_is_said_once_with_its_host_and_processes() -> None:
    facts = [
        rank("a", 0, users="4711 (37.3 GiB)"),
        rank("a", 0, users="4711 (37.3 GiB)"),
        rank("b", 1),
    ]
    assert busy_gpus(facts) == [
        f"a: GPU 0 (NVIDIA L4, {uuid(0)}) is in use by 4711 (37.3 GiB); they disturb what is"
        " measured"
    ]
    assert len(busy_gpus([rank("a", 0, users="1 (1 B)"), rank("a", 1, users="1 (1 B)")])) == 2


# ---------------------------------------------------------------- the whole preflight

NO_PID = 2**22 + 1  # beyond the largest number of a process on Linux
PREFLIGHT = """
import contextlib, io, socket
from dataclasses import replace
from commbench.core.case import World
from commbench.runtime.control import StoreControl
from commbench.runtime.control import hosted_world
from commbench.runtime.store import hosted_store
from commbench.config.compose import ConfigComposer
from commbench.measure.preflight import Request, preflight
from commbench.hardware.gpu import own_gpu
from rank_threads import together

own_gpu(0)  # opens CUDA and NVML: a rank is a process, and these threads would do it at once

class Wire:
    name, launchers = "wire", "any"
    def __init__(self, shares_gpu): self.shares_gpu = shares_gpu
    def remark(self, device): return None
    def sharing_refusal(self, environ): return None if self.shares_gpu else "wire needs a GPU for each rank"

def checked(size, shares=False, device="cuda", mode="strict", nodes=None):
    with ConfigComposer() as composer:
        (job,) = composer.jobs(["backend=gloo", f"preflight={mode}", f"output={OUTPUT}"], multirun=False)
    settings = replace(job.settings, backend=Wire(shares), device=device)
    listener = socket.create_server(("127.0.0.1", 0))
    server = hosted_store("127.0.0.1", listener.getsockname()[1], listener.detach())
    def one(rank):
        store = server.clone()
        world = World(rank, size, nodes or (tuple(range(size)),), (rank,))
        facts = {"host.hostname": "here", "host.boot_id": "1"}
        return preflight(settings, Request(job), world, StoreControl(store, rank, size), facts, [0])
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        ends = together(one, range(size))
    errors = sorted({f"{type(end).__name__}: {end}" for end in ends if isinstance(end, BaseException)})
    return {"errors": errors, "said": said.getvalue(), "run": ends[0][1] if not errors else None}

world, control = hosted_world(1, 4)
with ConfigComposer() as composer:
    (job,) = composer.jobs(["backend=simulated", f"output={OUTPUT}"], multirun=False)
settings = replace(job.settings, backend=Wire(False))
"""  # noqa: E501


def preflighted(folder: Path, machine: str | None, code: str, *imports: str, **more: Any) -> Any:
    return ask(
        folder,
        machine,
        code,
        f"sys.path.insert(0, {str(SUPPORT)!r}); OUTPUT = {str(folder)!r}",
        PREFLIGHT,
        *imports,
        **more,
    )


def test_preflight_on_equal_gpus(tmp_path: Path) -> None:
    hosted = (
        "preflight(settings, Request(job), world, control, {'host.hostname': 'here'},"
        " [0])[1]['status']"
    )
    code = f"[checked(4), checked(5), checked(5, shares=True), checked(5, device='cpu'), {hosted}]"
    whole, more, shared, cpu, simulated = preflighted(tmp_path, hgx(4), code)
    assert simulated == "running", (
        "one process hosts all ranks: there are the facts of one, and none of GPUs"
    )
    assert (whole["errors"], whole["said"]) == ([], "")
    assert whole["run"]["provenance"]["nodes"][0]["gpu.own.uuid"] == uuid(0)
    owners = whole["run"]["provenance"]["differences"]["gpu.own.uuid"]
    assert owners == {f'"{uuid(index)}"': [index] for index in range(4)}, (
        "the record says who had which GPU"
    )
    assert len(more["errors"]) == 1 and more["errors"][0].startswith(
        "ConfigError: ranks 0,4 on here have the same GPU, GPU 0 (NVIDIA H100 80GB HBM3,"
        f" {uuid(0)}), and wire needs"
    )
    assert (
        shared["errors"] == [] and shared["run"]["provenance"]["nodes"][0]["gpu.own.visible"] == 4
    )
    assert cpu["errors"] == [] and not [
        key for key in cpu["run"]["provenance"]["nodes"][0] if key.startswith("gpu.")
    ]


def test_preflight_on_unequal_and_busy_gpus(tmp_path: Path) -> None:
    other = h100(
        1, "name NVIDIA A100-SXM4-80GB", f"memory {79 * GIB}", f"process {NO_PID} 40000000000"
    )
    strict, warn, off = preflighted(
        tmp_path,
        "\n".join([h100(0), other]),
        "[checked(2, mode=mode) for mode in ('strict', 'warn', 'off')]",
    )
    line = (
        f"commbench: here: GPU 1 (NVIDIA A100-SXM4-80GB, {uuid(1)}) is in use by {NO_PID}"
        " (37.3 GiB, "
    )
    (problem,) = strict["errors"]
    rows = [row.split() for row in problem.splitlines()]
    assert ["GPU", '"NVIDIA', "H100", "80GB", 'HBM3"', "0", "here"] in rows
    assert ['"NVIDIA', 'A100-SXM4-80GB"', "1", "here"] in rows
    assert [
        "GPU",
        "memory",
        "(bytes)",
        str(80 * GIB),
        "0",
        "here",
    ] in rows and "GPU driver" not in problem
    assert warn["errors"] == [] and "ranks differ:" in warn["said"]
    assert (off["errors"], off["said"]) == ([], "")
    assert [result["said"].count(line) for result in (strict, warn)] == [1, 1]


def test_preflight_names_a_rank_without_gpu(tmp_path: Path) -> None:
    code = "[checked(2, mode=mode)['errors'] for mode in ('strict', 'off')]"
    errors = [
        "ConfigError: rank 0 on here: no GPU for device=cuda: cuInit: CUDA_ERROR_NO_DEVICE (100) "
        "(CUDA_VISIBLE_DEVICES='' hides every GPU); make one visible, or take device=cpu"
    ]
    assert preflighted(tmp_path, hgx(1), code, CUDA_VISIBLE_DEVICES="") == [errors, errors]


def test_preflight_with_amds_gpus_knows_what_their_programs_say(tmp_path: Path) -> None:
    """Neither driver nor program is real: no AMD GPU was at hand."""
    listed = [
        {
            "asic": {"market_name": "AMD Instinct MI300X"},
            "vram": {"size": {"value": 196592, "unit": "MB"}},
        }
    ]
    program = tmp_path / "bin" / "amd-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{json.dumps(listed)}'\n")
    program.chmod(0o755)
    (tmp_path / "kfd").touch()
    imports = "from commbench.hardware import amd; amd.DRIVER = amd.Path(OUTPUT, 'kfd')"
    known, unknown = (
        preflighted(tmp_path, None, "checked(1)", imports, PATH=path)
        for path in (f"{program.parent}:/usr/bin:/bin", "/usr/bin:/bin")
    )
    assert known["errors"] == unknown["errors"] == []
    assert known["run"]["gpus"] == [
        {
            "gpu.own.memory_total_bytes": 196592 * 2**20,
            "gpu.own.name": "AMD Instinct MI300X",
            "gpu.own.visible": 1,
        }
    ]
    assert unknown["run"]["gpus"] == [{}]
