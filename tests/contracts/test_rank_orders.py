"""Ranks that a launcher deals out node by node, in blocks, or unevenly: every operation reaches the right ranks.

Which ranks share a node is decided by host names, which the ranks are given here (tests/support/dealt_ranks.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from shown_gpus import hgx, libraries

from commbench.hardware.mpi_library import find

DEALT = str(SUPPORT / "dealt_ranks.py")
HOST_GPU = ("--config-dir", str(SUPPORT / "host_gpu" / "conf"), "allow=[host_gpu]")
LONG = pytest.mark.long
# the first ranks of each node, node after node: rank 0 first
MEMBERS = {"0101": [0, 2, 1, 3], "0011": [0, 1, 2, 3], "01100": [0, 3, 1, 2], "0110s": [0, 3, 1, 2]}
WORLDS = [
    pytest.param("torchrun", "gloo", "0101", id="gloo-cyclic"),
    pytest.param("torchrun", "gloo", "0110s", id="gloo-where-torch-sorts-ranks"),
    pytest.param("torchrun", "tcp", "01100", id="tcp-irregular"),
    pytest.param("torchrun", "gloo", "01100", id="gloo-irregular", marks=LONG),
    pytest.param("torchrun", "gloo", "0011", id="gloo-block", marks=LONG),
    pytest.param("torchrun", "tcp", "0101", id="tcp-cyclic", marks=LONG),
    pytest.param("torchrun", "tcp", "0011", id="tcp-block", marks=LONG),
    pytest.param("torchrun", "host_nccl", "0101", id="nccl-code-on-gloo-cyclic", marks=LONG),
    pytest.param("torchrun", "host_nccl", "0110s", id="nccl-code-on-gloo-where-torch-sorts-ranks", marks=LONG),
    pytest.param("openmpi", "mpi", "0101", id="openmpi-cyclic", marks=LONG),
    pytest.param("openmpi", "mpi", "0011", id="openmpi-block", marks=LONG),
    pytest.param("mpich", "mpi", "0101", id="mpich-cyclic", marks=LONG),
    pytest.param("mpich", "mpi", "01100", id="mpich-irregular", marks=LONG),
    pytest.param("openmpi", "gloo", "01100", id="gloo-under-openmpi-irregular", marks=LONG),
    pytest.param("mpich", "tcp", "0101", id="tcp-under-mpich-cyclic", marks=LONG),
    pytest.param("srun", "gloo", "0101", id="gloo-under-srun-cyclic", marks=LONG),
]
SRUN_STEP = """
for rank in $(seq 0 $(({size} - 1))); do
    SLURM_PROCID=$rank SLURM_NTASKS={size} SLURM_LOCALID=$((rank / 2)) SLURM_STEP_ID=0 SLURM_JOB_ID=$$ \
    SLURM_STEP_NODELIST=127.0.0.1 MASTER_ADDR=127.0.0.1 "$@" & ranks="$ranks $!"
done
for rank in $ranks; do wait $rank || exit 1; done
"""  # what srun exports to its tasks


def started(launcher: str, size: int) -> list[str]:
    """The command line up to the rank's script, one process per rank."""
    if launcher == "torchrun":
        return ["torchrun", "--nproc-per-node", str(size)]
    if launcher == "srun":
        return ["/bin/bash", "-c", SRUN_STEP.format(size=size), "srun", sys.executable]
    library = find(launcher)
    assert library is not None, f"{launcher}: make test installs both wheels"
    spread = ["--personality", "ompi", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    return [library.launcher(), *(spread if launcher == "openmpi" else []), "-n", str(size), sys.executable]


@pytest.mark.parametrize(("launcher", "backend", "hosts"), WORLDS)
def test_every_operation_is_right_however_ranks_were_dealt_out(
    world: Callable[..., Any], tmp_path: Path, launcher: str, backend: str, hosts: str
) -> None:
    plugin: tuple[str, ...] = ()
    env = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if backend == "host_nccl":
        (tmp_path / "machine").write_text(hgx(4))
        env = {"LD_LIBRARY_PATH": str(libraries()), "SHOWN_GPUS": str(tmp_path / "machine")}
        plugin, env = HOST_GPU, {**env, "PYTHONPATH": str(SUPPORT / "host_gpu")}
    library = [f"backend.library={launcher}"] if backend == "mpi" else []
    run = world(
        *started(launcher, len(hosts.rstrip("s"))), DEALT, hosts, *plugin, f"backend={backend}", *library,
        "benchmark=[p2p_latency,exchange,all_gather,scatter,reduce_scatter]", "layout=2x2", "pairs=[[0,2],[3,1]]",
        "sizes=[4000]", "cache=warm", "timing=fixed", "timing.repetitions=3", "timing.warmup_repetitions=1",
        "timing.warmup_s=0",
        env=env,
    )  # fmt: skip
    assert run.status == 0, run.explain()
    [record] = run.output.glob("*/run.json")
    assert [rank for node in json.loads(record.read_text())["world"]["ranks"] for rank in node[:2]] == MEMBERS[hosts]
    measured = run.cases[run.cases.status == "ok"]
    assert (measured.wrong_elements == 0).all()
    collectives = set() if backend == "tcp" else {"all_gather", "scatter", "reduce_scatter"}
    assert set(measured.benchmark) == {"p2p_latency", "exchange"} | collectives
