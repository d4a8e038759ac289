"""Ranks that a launcher deals out node by node, in blocks, or unevenly: every operation reaches the
right ranks.

Which ranks share a node is decided by host names, which the ranks are given here
(tests/support/dealt_ranks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import HOST_GPU, SUPPORT
from shown_gpus import hgx, shown, shown_to_cupy

from commbench.hardware.mpi_library import find

DEALT = str(SUPPORT / "dealt_ranks.py")
PLUGINS = {"host_nccl": "host_gpu", "ipc_files": "ipc_files"}  # folders of tests/support
LONG = pytest.mark.long
# the first ranks of each node, node after node: rank 0 first
MEMBERS = {"0101": [0, 2, 1, 3], "0011": [0, 1, 2, 3], "01100": [0, 3, 1, 2], "0110s": [0, 3, 1, 2]}
WORLDS = [
    pytest.param("torchrun", "gloo", "0101", id="gloo-cyclic", marks=LONG),
    pytest.param("torchrun", "gloo", "0110s", id="gloo-where-torch-sorts-ranks"),
    pytest.param("torchrun", "tcp", "01100", id="tcp-irregular"),
    pytest.param("torchrun", "gloo", "01100", id="gloo-irregular", marks=LONG),
    pytest.param("torchrun", "gloo", "0011", id="gloo-block", marks=LONG),
    pytest.param("torchrun", "tcp", "0101", id="tcp-cyclic", marks=LONG),
    pytest.param("torchrun", "tcp", "0011", id="tcp-block", marks=LONG),
    pytest.param("torchrun", "host_nccl", "0101", id="nccl-code-on-gloo-cyclic", marks=LONG),
    pytest.param(
        "torchrun", "host_nccl", "0110s", id="nccl-code-on-gloo-where-torch-sorts-ranks", marks=LONG
    ),
    pytest.param("torchrun", "cupy_nccl", "0101", id="cupy-code-on-a-stand-in-cyclic", marks=LONG),
    pytest.param(
        "torchrun", "ipc_files", "0101", id="ipc_copy-code-on-memory-files-cyclic", marks=LONG
    ),
    pytest.param("openmpi", "mpi", "0101", id="openmpi-cyclic", marks=LONG),
    pytest.param("openmpi", "mpi", "0011", id="openmpi-block", marks=LONG),
    pytest.param("mpich", "mpi", "0101", id="mpich-cyclic", marks=LONG),
    pytest.param("mpich", "mpi", "01100", id="mpich-irregular", marks=LONG),
    pytest.param("openmpi", "gloo", "01100", id="gloo-under-openmpi-irregular", marks=LONG),
    pytest.param("mpich", "tcp", "0101", id="tcp-under-mpich-cyclic", marks=LONG),
    pytest.param("srun", "gloo", "0101", id="gloo-under-srun-cyclic", marks=LONG),
    pytest.param("srun", "tcp", "0011", id="tcp-under-srun-block", marks=LONG),
]
SRUN_STEP = """
for rank in $(seq 0 $(({size} - 1))); do
    SLURM_PROCID=$rank SLURM_NTASKS={size} SLURM_LOCALID=$((rank / 2)) SLURM_STEP_ID=0 \
    SLURM_JOB_ID=$$ SLURM_STEP_NODELIST=127.0.0.1 MASTER_ADDR=127.0.0.1 "$@" & ranks="$ranks $!"
done
for rank in $ranks; do wait $rank || exit 1; done
"""  # what srun exports to its tasks


def started(launcher: str, size: int, python: Path) -> list[str]:
    """The command line up to the rank's script, one process per rank."""
    if launcher == "torchrun":
        return ["torchrun", "--nproc-per-node", str(size)]
    if launcher == "srun":
        return ["/bin/bash", "-c", SRUN_STEP.format(size=size), "srun", str(python)]
    library = find(launcher)
    assert library is not None, f"{launcher}: make test installs both wheels"
    spread = ["--personality", "ompi", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    return [
        library.launcher(),
        *(spread if launcher == "openmpi" else []),
        "-n",
        str(size),
        str(python),
    ]


def stand_ins(backend: str, folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words and the environment with which this backend runs without a GPU."""
    words: tuple[str, ...] = (f"backend={backend}",)
    if backend in PLUGINS:
        plugin = SUPPORT / PLUGINS[backend]
        words = ("--config-dir", str(plugin / "conf"), f"allow=[{PLUGINS[backend]}]", *words)
    if backend == "cupy_nccl":
        return words, shown_to_cupy(folder, 4)
    if backend == "host_nccl":
        return words, shown(folder, hgx(4), HOST_GPU)
    return words, {"PYTHONPATH": str(SUPPORT / PLUGINS[backend])} if backend in PLUGINS else {}


@pytest.mark.parametrize(("launcher", "backend", "hosts"), WORLDS)
def test_every_operation_is_right_however_ranks_were_dealt_out(
    world: Callable[..., Any],
    warm_executable: Path,
    tmp_path: Path,
    launcher: str,
    backend: str,
    hosts: str,
) -> None:
    words, env = stand_ins(backend, tmp_path)
    library = [f"backend.library={launcher}"] if backend == "mpi" else []
    # copies stay within a node, and `pairs` counts the ranks node after node
    pairs = "[[0,1],[3,2]]" if backend == "ipc_files" else "[[0,2],[3,1]]"
    run = world(
        *started(launcher, len(hosts.rstrip("s")), warm_executable),
        DEALT,
        hosts,
        *words,
        *library,
        "benchmark=[p2p_latency,exchange,all_gather,scatter,reduce_scatter]",
        "layout=2x2",
        f"pairs={pairs}",
        "sizes=[4000]",
        "cache=warm",
        "timing=fixed",
        "timing.repetitions=3",
        "timing.warmup_repetitions=1",
        "timing.warmup_s=0",
        env={"OMPI_MCA_mpi_yield_when_idle": "1", **env},
    )
    assert [rank for node in run.record["world"]["ranks"] for rank in node[:2]] == MEMBERS[hosts]
    measured = run.cases[run.cases.status == "ok"]
    assert (measured.wrong_elements == 0).all()
    between_nodes = set() if backend == "ipc_files" else {"exchange"}
    collectives = (
        set() if backend in ("tcp", "ipc_files") else {"all_gather", "scatter", "reduce_scatter"}
    )
    assert set(measured.benchmark) == {"p2p_latency"} | between_nodes | collectives
