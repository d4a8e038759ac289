"""What preflight finds on machines together, and what it says of each node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from places import SUPPORT
from shown_gpus import GIB, ask, h100, hgx, uuid

from commbench.core.case import World
from commbench.measure.preflight import node_text, small_shm_lines
from commbench.runtime.launchers.registry import is_called_per_node


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


def test_a_small_shared_memory_is_told_once_a_host() -> None:
    sizes = {"a": 2**16, "b": 2**34, "c": 2**26}
    facts = [{"host.hostname": host, "limits.shm_total_bytes": sizes[host]} for host in "aabc"]
    lines = small_shm_lines(facts)
    assert [line.partition(",")[0][:26] for line in lines] == [
        "a: /dev/shm has 64 KiB (do",
        "c: /dev/shm has 64 MiB (do",
    ]
    assert all("--shm-size=8g" in line for line in lines)


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
from commbench.measure.preflight import preflight
from commbench.measure.request import Request
from commbench.hardware.gpu import own_gpu
from rank_threads import together

own_gpu(0)  # opens CUDA and NVML: a rank is a process, and these threads would do it at once

class Wire:
    name, launchers, hosts_ranks = "wire", "any", False
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
