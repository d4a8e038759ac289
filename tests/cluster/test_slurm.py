"""commbench on a real Slurm of two virtual hosts: allocations, job scripts, given worlds, MPI, and
sweeps as jobs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from processes import until
from slurm_cluster import SlurmCluster, missing, slurm_cluster

import commbench
from commbench.hardware.mpi_library import find

SCRIPT = ROOT / "deploy" / "slurm" / "commbench.sbatch"
AMOUNT = (
    "benchmark=[p2p_latency,all_reduce]",
    "sizes=[8,64KiB]",
    "timing=fixed",
    "timing.repetitions=5",
)
# no binding: the virtual hosts share this machine's cores
SHORT = (*AMOUNT, "timing.warmup_repetitions=1", "timing.warmup_s=0", "bind=none")
# the virtual hosts have one kernel, through whose memory UCX would send; Slurm would cut an address
# of several devices (docs/clusters.md)
MPICH = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def nobody_says_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def folders(output: Path) -> list[Path]:
    """Of the runs, in order; a sweep keeps Slurm's own logs beside them."""
    return sorted(path.parent for path in output.glob("*/run.json"))


def run_json(folder: Path) -> dict[str, Any]:
    described = json.loads((folder / "run.json").read_text())
    assert isinstance(described, dict)
    return described


def check(run: Any, launcher: str, nodes: list[list[int]]) -> None:
    """One run, every case of it measured, by these ranks of these nodes."""
    size = sum(len(ranks) for ranks in nodes)
    assert run.record["world"] == {
        "size": size,
        "nodes": len(nodes),
        "ranks": nodes,
        "launcher": launcher,
    }
    cases = run.cases
    assert set(cases.status) == {"ok"} and set(cases.wrong_elements) == {0}
    assert set(cases.benchmark) == {"p2p_latency", "all_reduce"}


def library_or_skip(slurm: SlurmCluster, choice: str, plugin: str | None) -> str:
    """The path of an MPI library, where srun has the plugin that its ranks find each other by."""
    library = find(choice) if "/" not in choice or Path(choice).is_file() else None
    if library is None:
        pytest.skip(f"{choice} is not installed")
    if plugin is not None and not slurm.speaks(plugin):
        pytest.skip(
            f"srun --mpi=list has no {plugin} (Debian: libpmix-dev brings the file that it loads)"
        )
    return library.path


def test_in_an_allocation_srun_starts_the_ranks(
    slurm: SlurmCluster, world: Callable[..., Any]
) -> None:
    inside = slurm.command("salloc", "--nodes=2", "--ntasks-per-node=2", "commbench")
    run = world(*inside, "backend=gloo", "layout=[2x1,2x2]", *SHORT)
    check(run, "srun", [[0, 1], [2, 3]])
    assert set(run.cases.layout) == {"2x1", "2x2"}


def test_more_nodes_than_the_allocation_has_are_refused(
    slurm: SlurmCluster, world: Callable[..., Any]
) -> None:
    run = world(
        *slurm.command("salloc", "--quiet", "--nodes=2", "commbench"), "layout=3x1", status=2
    )
    assert "layout=3x1 needs 3 nodes, the launcher has 2" in run.stderr


def test_open_mpi_in_an_allocation_meets_through_pmix(
    slurm: SlurmCluster, world: Callable[..., Any]
) -> None:
    library = library_or_skip(slurm, "openmpi", "pmix")
    inside = slurm.command("salloc", "--nodes=2", "--ntasks-per-node=1", "commbench")
    check(
        world(*inside, "backend=mpi", f"backend.library={library}", "layout=2x1", *SHORT),
        "srun",
        [[0], [1]],
    )


def test_mpich_in_an_allocation_meets_through_pmi(
    slurm: SlurmCluster, world: Callable[..., Any]
) -> None:
    library = library_or_skip(slurm, "mpich", "pmi2")
    inside = slurm.command("salloc", "--nodes=2", "--ntasks-per-node=2", "commbench")
    cyclic = "launcher.options=['--distribution=cyclic']"
    words = (
        "launcher=srun",
        cyclic,
        "backend=mpi",
        f"backend.library={library}",
        "layout=2x2",
        *SHORT,
    )
    run = world(*inside, *words, env=MPICH)
    check(run, "srun", [[0, 2], [1, 3]])


def test_mpich_is_a_given_world_under_srun(slurm: SlurmCluster, world: Callable[..., Any]) -> None:
    library = library_or_skip(slurm, "mpich", "pmi2")
    step = slurm.command(
        "srun", "--mpi=pmi2", "--nodes=2", "--ntasks-per-node=1", "python", "-m", "commbench"
    )
    check(
        world(*step, "backend=mpi", f"backend.library={library}", *SHORT, env=MPICH),
        "srun",
        [[0], [1]],
    )


@pytest.mark.parametrize(
    ("backend", "plugin"), [("gloo", None), ("tcp", None), ("mpich", "pmi2"), ("openmpi", "pmix")]
)
def test_tasks_that_srun_deals_out_node_by_node(
    slurm: SlurmCluster, world: Callable[..., Any], backend: str, plugin: str | None
) -> None:
    words = [
        f"backend={backend}",
        f"benchmark=[p2p_latency{'' if backend == 'tcp' else ',all_reduce'}]",
    ]
    if plugin is not None:
        library = library_or_skip(slurm, backend, plugin)
        words = ["backend=mpi", f"backend.library={library}", AMOUNT[0]]
    cyclic = (
        "--nodes=2",
        "--ntasks-per-node=2",
        "--distribution=cyclic",
        f"--mpi={plugin or 'none'}",
    )
    step = slurm.command("srun", *cyclic, "python", "-m", "commbench")
    run = world(*step, *SHORT, *words, "pairs=[[0,2],[3,1]]", env=MPICH)
    assert run.record["world"]["ranks"] == [[0, 2], [1, 3]]
    assert set(run.cases.status) == {"ok"} and set(run.cases.wrong_elements) == {0}


def test_a_heterogeneous_step_is_one_world(slurm: SlurmCluster, world: Callable[..., Any]) -> None:
    step = ("srun", "--het-group=0,1", "python", "-m", "commbench")
    inside = slurm.command("salloc", "--quiet", "-n1", ":", "-n1", *step)
    check(world(*inside, "backend=gloo", *SHORT), "srun", [[0], [1]])


def test_a_rank_0_that_is_not_on_the_first_node_says_so_at_once(
    slurm: SlurmCluster, tmp_path: Path, world: Callable[..., Any]
) -> None:
    placed = tmp_path / "hosts"
    placed.write_text("n02\nn01\n")
    step = ("srun", "--kill-on-bad-exit=1", "-n2", "-m", "arbitrary", "python", "-m", "commbench")
    environment = ("env", f"SLURM_HOSTFILE={placed}")
    run = world(*slurm.command(*environment, *step), "backend=gloo", *SHORT, status=143)
    assert "rank 0 is on n02, but ranks meet on the first node, n01" in run.stderr


def test_mpirun_of_open_mpi_4_reads_the_allocation(
    slurm: SlurmCluster, world: Callable[..., Any]
) -> None:
    library = library_or_skip(slurm, "/usr/lib/x86_64-linux-gnu/libmpi.so.40", None)
    mpirun = (
        "mpirun.openmpi",
        "--bind-to",
        "none",
        "--map-by",
        "node",
        "python",
        "-m",
        "commbench",
    )
    inside = slurm.command("salloc", "--nodes=2", "--ntasks-per-node=1", *mpirun)
    check(world(*inside, "backend=mpi", f"backend.library={library}", *SHORT), "mpirun", [[0], [1]])


def test_the_shipped_script_is_a_given_world(
    slurm: SlurmCluster, world: Callable[..., Any], warm_executable: Path, tmp_path: Path
) -> None:
    submit = slurm.command("sbatch", "--wait", f"--chdir={tmp_path}", str(SCRIPT))
    run = world(*submit, *SHORT)
    check(run, "srun", [[0], [1]])
    [log] = tmp_path.glob("commbench-*.log")
    assert log.read_text().count("results: ") == 1, "only rank 0 prints"
    [folder] = folders(run.output)
    for part in folder.glob("*.parquet"):
        part.unlink()
    step = slurm.command(
        "srun", "--nodes=2", "--ntasks-per-node=1", "--mpi=none", str(warm_executable)
    )
    again = subprocess.run(
        [*step, "-m", "commbench", "resume", str(folder)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert set(run.cases.status) == {"ok"} and set(run.cases.launch) == {1}


def test_a_cancelled_job_keeps_what_it_has(slurm: SlurmCluster, tmp_path: Path) -> None:
    output = tmp_path / "results"
    soak = (
        "benchmark=p2p_latency",
        "sizes=[8,64,512,4KiB,32KiB]",
        "timing=soak",
        "timing.duration_s=2",
        "bind=none",
    )
    submit = ("sbatch", "--parsable", f"--chdir={tmp_path}", str(SCRIPT), *soak, f"output={output}")
    job = slurm.client_output(*submit).strip()
    until(lambda: any(output.glob("*/parts/*.cases.parquet")), explain=slurm.explain)
    slurm.client_output("scancel", job)
    until(
        lambda: not slurm.client_output("squeue", "--noheader", f"--jobs={job}").strip(),
        explain=slurm.explain,
    )
    [folder] = folders(output)
    described = run_json(folder)
    log = next(tmp_path.glob("commbench-*.log")).read_text()
    assert (described["status"], described["exit_status"]) == ("interrupted", 143), log
    statuses = list(commbench.load(folder).status)
    assert statuses.count("ok") >= 1 and len(statuses) < 5, log


def test_a_job_that_slurm_refuses_breaks_the_sweep(
    slurm: SlurmCluster, world: Callable[..., Any]
) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    sweep = (
        "-m",
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=nowhere",
        "layout=1x2",
    )
    run = world(*slurm.command("commbench", *sweep), *SHORT, status=3)
    [line] = [line for line in run.stderr.splitlines() if line.startswith("commbench: ")]
    assert "nowhere" in line


def test_a_sweep_is_a_job_for_each_world(slurm: SlurmCluster, world: Callable[..., Any]) -> None:
    library = library_or_skip(slurm, "mpich", "pmi2")
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    sweep = (
        "-m",
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=main",
        "hydra.launcher.timeout_min=5",
    )
    axes = ("backend=gloo,mpi", "layout=1x2,2x1")
    run = world(
        *slurm.command("commbench", *sweep, *axes), *SHORT, env=MPICH | {"MPI4PY_LIBMPI": library}
    )
    runs = [run_json(folder) for folder in folders(run.output)]
    assert len({record["sweep_id"] for record in runs}) == 1 and runs[0]["sweep_id"]
    worlds = {tuple(record["overrides"][:2]): record["world"]["ranks"] for record in runs}
    shapes = {"layout=1x2": [[0, 1]], "layout=2x1": [[0], [1]]}
    expected = {
        (f"backend={name}", layout): ranks
        for name in ("gloo", "mpi")
        for layout, ranks in shapes.items()
    }
    assert worlds == expected
    assert set(run.cases.status) == {"ok"} and len(run.cases) == 16
    assert set(zip(run.cases.layout, run.cases.nodes, strict=True)) == {("1x2", 1), ("2x1", 2)}


def test_nothing_stays_after_a_failure(tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError), slurm_cluster(2, tmp_path / "slurm") as cluster:
        cluster.client_output("sbatch", "--nodes=2", f"--chdir={tmp_path}", "--wrap=srun sleep 60")
        until(
            lambda: "slurmstepd" in "".join(map(command_of, cluster.hosts.hosts[1].pids())),
            explain=cluster.explain,
        )
        pids += cluster.hosts.pids()
        raise ZeroDivisionError
    assert len(pids) > 5 and not any(map(command_of, pids))


def command_of(pid: int) -> str:
    """Empty for a process that has ended, whether or not its parent has noticed."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
