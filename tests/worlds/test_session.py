"""Whole runs: what is measured, recorded and said, on the simulated world and on real gloo
ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from generated_results import with_column
from processes import free_port, until

import commbench
from commbench.core.errors import CommbenchError, ConfigError, WorldBroken
from commbench.hardware.host import core_wait_s
from commbench.measure.recorder import Recorder
from commbench.results.columns import SCHEMA_VERSION
from commbench.results.load import find_runs, load_run
from commbench.results.parquet import Parquet

FIXED = (
    "timing=fixed",
    "timing.repetitions=40",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)


def simulated(tmp_path: Path, *words: str) -> Path:
    return commbench.run("backend=simulated", "writer=parquet", f"output={tmp_path}", *words)


def test_a_run_from_python_returns_its_folder(tmp_path: Path) -> None:
    folder = simulated(tmp_path, "sizes=[8,1KiB]", *FIXED)
    assert folder.parent == tmp_path
    assert {file.name for file in folder.iterdir()} == {
        "run.json",
        "cases.parquet",
        "samples.parquet",
    }
    cases = commbench.load(tmp_path)
    assert (
        sorted(cases.order) == list(range(6))
        and cases.sort_values("started_at").order.is_monotonic_increasing
    )


def test_a_world_of_many_pairs_is_measured_completely_in_rounds(tmp_path: Path) -> None:
    """Each pair has a row, the stamps of its ranks, and the time that was planted for it."""
    size = 8
    words = ("benchmark=p2p_latency", "sizes=[8]", "pairs=all", "schedule=rounds", *FIXED)
    planted = ("backend.model.slow_rank=5", "backend.model.slow_factor=3")
    folder = simulated(tmp_path, "layout=2x4", *words, *planted)
    cases = commbench.load(folder)
    pairs = {f"{first}-{second}" for first in range(size) for second in range(size)}
    assert len(cases) == size**2 and set(cases.pair) == pairs
    assert set(cases.status) == {"ok"} and cases.case_id.is_unique
    slow = cases[(cases.source == 5) | (cases.destination == 5)]
    others = cases[(cases.source != 5) & (cases.destination != 5)]
    between = others[others.source != others.destination].median_s
    assert np.ptp(between) == 0.0 and slow.median_s.min() > 2 * between.max()
    samples = pq.read_table(folder / "samples.parquet").to_pandas()
    measured = samples[samples.phase == "measure"].merge(cases, on="case_id")
    counts = measured.groupby("pair").agg({"elapsed_ns": "size", "rank": lambda rank: set(rank)})
    for pair, (count, ranks) in counts.iterrows():
        assert ranks == set(map(int, str(pair).split("-")))
        assert count == 40 * len(ranks)
    found = commbench.slow_pairs(folder)
    assert found[found.kind == "rank"]["rank"].tolist() == [5]


def test_python_gets_configuration_errors_as_exceptions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="timing=foo is unknown"):
        simulated(tmp_path, "timing=foo")


def test_planted_truth_is_measured(tmp_path: Path) -> None:
    model = (
        "backend.model.latency_s=5e-6",
        "backend.model.bandwidth_gb_per_s=2",
        "backend.model.call_s=0",
    )
    cases = commbench.load(simulated(tmp_path, "sizes=[2MB]", *model, *FIXED)).set_index(
        "benchmark"
    )
    assert cases.median_s["p2p_latency"] == pytest.approx(5e-6 + 2e6 / 2e9)
    assert cases.algbw_gb_per_s["p2p_bandwidth"] == pytest.approx(2.0, rel=0.01)
    assert cases.busbw_gb_per_s["all_reduce"] == pytest.approx(
        2 * 1 / 2 * 2e6 / cases.median_s["all_reduce"] / 1e9
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("timing", "level", "count", "rho"),
    [("quick", 0.75, 100, 0.5), ("default", 0.969, 40, 0.0)],
)
def test_intervals_contain_the_planted_time_as_often_as_their_level_says(
    tmp_path: Path, timing: str, level: float, count: int, rho: float
) -> None:
    """Over 3 visits and over 6 or more, each with noise of its own."""
    words = ("benchmark=p2p_latency", f"sizes={[1000 + 8 * each for each in range(count)]}")
    noise = ("backend.model.noise=0.05", f"backend.model.rho={rho}")
    cases = commbench.load(simulated(tmp_path, *words, *noise, f"timing={timing}"))
    planted_s = 2e-6 + 1e-7 + cases.message_bytes / 10e9  # latency, call, bandwidth
    held = (cases.ci_low_s <= planted_s) & (planted_s <= cases.ci_high_s)
    assert level - 0.1 <= held.mean() <= level + 0.16
    assert all(len(set(medians)) > 1 for medians in cases.visit_medians_s)


def test_two_runs_of_a_launch_draw_the_same_noise_and_another_launch_draws_another(
    tmp_path: Path,
) -> None:
    words = ("benchmark=all_reduce", "sizes=[8]", "backend.model.noise=0.1", *FIXED)
    runs = [
        commbench.load(simulated(tmp_path / str(number), *words, f"trial={launch}"))
        for number, launch in enumerate((1, 1, 2))
    ]
    first_s, again_s, other_s = (run.median_s.iloc[0] for run in runs)
    assert first_s == again_s != other_s


# seen by the check at the start, in the middle, at the end only
@pytest.mark.parametrize("after", [0, 20, 42])
def test_a_wrong_element_makes_the_case_invalid_and_withholds_its_numbers(
    tmp_path: Path, after: int
) -> None:
    folder = simulated(
        tmp_path,
        "sizes=[400]",
        "backend.model.corrupt_rank=1",
        f"backend.model.corrupt_after={after}",
        *FIXED,
    )
    cases = commbench.load(folder)
    assert set(cases.status) == {"invalid"}
    assert (cases.wrong_elements > 0).all()
    assert (
        cases[["median_s", "algbw_gb_per_s", "busbw_gb_per_s", "repetitions"]].isna().all(axis=None)
    )
    assert load_run(folder)["exit_status"] == 1


def test_an_error_that_ends_the_run_is_in_the_row_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("commbench.measure.collector.SampleCollector.add_parts", fail)
    with pytest.raises(CommbenchError, match="planted"):
        simulated(tmp_path, "benchmark=p2p_latency", "sizes=[8,64]", *FIXED)
    cases = commbench.load(tmp_path)
    assert cases.status.tolist() == ["failed"] and "RuntimeError: planted" in cases.reason[0]


def test_a_straggler_shows_in_the_tail_of_the_maximum_over_ranks(tmp_path: Path) -> None:
    model = (
        "backend.model.straggler_rank=2",
        "backend.model.straggler_s=5e-3",
        "backend.model.straggler_every=90",
    )
    words = (
        "benchmark=all_reduce",
        "layout=1x4",
        "sizes=[400]",
        "timing=fixed",
        "timing.repetitions=901",
    )
    case = commbench.load(simulated(tmp_path, *words, *model)).iloc[0]
    assert case.median_s < 1e-4
    assert case.p99_s == pytest.approx(5e-3, rel=0.05)


def test_statistics_can_be_computed_again_from_the_samples(tmp_path: Path) -> None:
    folder = simulated(
        tmp_path,
        "benchmark=all_reduce",
        "layout=1x3",
        "sizes=[400]",
        "backend.model.noise=0.1",
        *FIXED,
    )
    case = commbench.load(folder).iloc[0]
    samples = commbench.load(folder, table="samples")
    measured = samples[samples.phase == "measure"]
    slowest = measured.groupby("repetition").elapsed_ns.max() * 1e-9
    assert len(slowest) == case.repetitions == 40
    assert (case.interval_of, case.visits, case.timer) == (
        "repetitions",
        1,
        "host",
    ), "timing=fixed"
    assert float(slowest.median()) == pytest.approx(case.median_s, rel=1e-3)
    assert set(measured["rank"]) == {0, 1, 2}


def test_the_record_explains_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ODD", "1")
    run = load_run(simulated(tmp_path, "label=try", "sizes=[8]", "env.GLOO_TEST=1", *FIXED))
    assert (run["label"], run["status"], run["exit_status"]) == ("try", "done", 0)
    assert run["schema_version"] == SCHEMA_VERSION
    assert run["config"]["timing"]["repetitions"] == 40
    assert run["cuda_ipc"] == {"asked": "auto", "effective": None, "ignored": None}
    assert "topology" in run and run["backend"]["clock"] == "virtual"
    node = run["provenance"]["nodes"][0]
    assert {
        "host.kernel",
        "host.cpu_model",
        "versions.python",
        "versions.torch",
        "limits.cpu_cores",
    } <= set(node)
    assert node["environment.NCCL_ODD"] == "1"


def test_secrets_of_the_environment_are_in_no_file_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_MY_API_KEY", "hunter2")
    monkeypatch.setenv("UCX_TOKEN", "hunter2")
    folder = simulated(tmp_path, "sizes=[8]", *FIXED)
    assert b"hunter2" not in b"".join(file.read_bytes() for file in folder.iterdir())


def test_the_budget_ends_a_run_with_rows_for_what_is_left(tmp_path: Path) -> None:
    cases = commbench.load(simulated(tmp_path, "budget.total_s=1e-6", "sizes=[8,16]", *FIXED))
    assert set(cases.status) == {"skipped"}
    assert cases.reason.str.contains("budget.total_s").all()


def test_memory_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    cases = commbench.load(
        simulated(tmp_path, "benchmark=all_reduce", "sizes=[8,4TiB]", *FIXED)
    ).set_index("message_bytes")
    assert cases.status[8] == "ok"
    assert cases.status[4 * 2**40] == "skipped"
    assert "memory_share" in cases.reason[4 * 2**40]


def test_expectations_decide_the_exit_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def status(*words: str) -> tuple[int, str]:
        folder = simulated(tmp_path, "benchmark=all_reduce", *FIXED, *words)
        return load_run(folder)["exit_status"], capfd.readouterr().err

    assert status("sizes=[8]", "expect=median_s<1")[0] == 0
    code, text = status("sizes=[8]", "expect=all_reduce:median_s>1")
    assert code == 1 and "expect all_reduce:median_s>1: all_reduce 1x2 8 B has" in text
    code, text = status("sizes=[8,4TiB]", "expect=median_s<1")
    assert code == 1 and text.endswith("\nexpect: 1 of 2 met, 1 not measured\n")
    assert status("sizes=[8,4TiB]", "expect=median_s<1", "expect_missing=allow")[0] == 0
    code, text = status("sizes=[8]", "expect=normal")
    assert code == 1 and "no value for this kind of machine" in text


def test_a_plan_starts_nothing(world: Callable[..., Any]) -> None:
    run = world("commbench", "benchmark=all", "layout=4x8", "plan=true", status=2)
    assert "nothing was started" in run.stdout and "MiB" in run.stdout
    assert not run.output.exists()


@pytest.mark.long
def test_agents_that_meet_by_c10d_are_two_nodes(tmp_path: Path, warm_executable: Path) -> None:
    """A meeting point that torchrun finds by itself, instead of an address and a node's rank
    (tests/cluster)."""
    meeting = [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--local-addr=127.0.0.1",
    ]
    command = [
        "timeout",
        "-k",
        "5",
        "90",
        str(warm_executable),
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        *meeting,
    ]
    words = ["layout=2x1", "benchmark=all_reduce", "sizes=[8]", f"output={tmp_path}", *FIXED]
    command += ["--nproc-per-node=1", "--rdzv-id=two", "-m", "commbench", *words]
    agents = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    outputs = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    case = commbench.load(tmp_path).iloc[0]
    assert (case.status, case.nodes, case.ranks_per_node) == ("ok", 2, 1)
    assert sum("results:" in stdout for stdout, _ in outputs) == 1


def test_results_are_readable_while_the_run_goes_on(tmp_path: Path, warm_executable: Path) -> None:
    words = [
        "-m",
        "commbench",
        "backend=simulated",
        "benchmark=all_reduce",
        "sizes=octaves",
        f"output={tmp_path}",
    ]
    command = ["timeout", "-k", "5", "90", str(warm_executable), *words, *FIXED]
    with subprocess.Popen(command, stdout=-3, stderr=-3) as run:
        seen = set()
        while run.poll() is None:
            if any(tmp_path.glob("*/run.json")):
                seen.add(len(commbench.load(tmp_path)))
                commbench.load(tmp_path, table="samples")
            time.sleep(0.02)
    seen.add(len(commbench.load(tmp_path)))
    assert any(0 < count < 22 for count in seen) and max(seen) == 22


def test_ranks_that_share_a_core_with_each_other_and_a_busy_loop_wait_for_it(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    if isnan(core_wait_s()):
        pytest.skip("this kernel does not count it")
    soak = ("timing=soak", "timing.duration_s=0.5")
    busy = f"""
import glob, time
while not glob.glob("{tmp_path}/results/*/run.json"):
    time.sleep(0.01)
while True:
    pass
"""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with subprocess.Popen([sys.executable, "-c", busy]) as loop:
            run = world("commbench", "backend=mpi", "benchmark=all_reduce", "sizes=[8]", *soak)
            loop.kill()
    finally:
        os.sched_setaffinity(0, cores)
    (row,) = run.cases.to_dict("records")
    assert row["core_wait_share"] > 0.3 and "waited" in row["warnings"]
    assert "ranks of mpi waited for a core" in run.stdout


@pytest.mark.long
def test_more_ranks_than_cores_run_and_say_so(world: Callable[..., Any]) -> None:
    ranks = 2 * len(os.sched_getaffinity(0))
    run = world(
        "commbench", "backend=mpi", f"layout=1x{ranks}", "benchmark=all_reduce", "sizes=[8]", *FIXED
    )
    assert "oversubscribed" in run.cases.iloc[0]["warnings"]


@pytest.mark.long
def test_a_sweep_gives_a_fresh_world_for_each_job_and_no_hydra_folders(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    run = world(
        "commbench",
        "-m",
        "backend=gloo,simulated",
        "layout=1x1,1x2",
        "sizes=[8]",
        "benchmark=all_reduce",
        *FIXED,
    )
    assert {(row.backend, row.layout) for row in run.cases.itertuples()} == {
        (backend, layout) for backend in ("gloo", "simulated") for layout in ("1x1", "1x2")
    }
    assert run.cases.sweep_id.nunique() == 1 and run.cases.run_id.nunique() == 4
    assert {path.name for path in tmp_path.iterdir()} == {"results"}


@pytest.mark.long
def test_a_rank_that_differs_is_named(world: Callable[..., Any]) -> None:
    code = "import os, sys; os.environ['NCCL_ODD'] = 'x' * int(os.environ['RANK'])\n"
    code += "from commbench.__main__ import main; sys.exit(main())"
    words = ("torchrun", "--nproc-per-node", "2", "--no-python", sys.executable, "-c", code)
    refused = world(*words, "benchmark=all_reduce", "sizes=[8]", status=None)
    assert refused.status != 0
    assert "ranks differ" in refused.stderr and "NCCL_ODD" in refused.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["backend=mpi"], "backend=mpi can't run under torchrun"),
        pytest.param(["layout=1x4"], "layout 1x4 does not fit", marks=pytest.mark.long),
        pytest.param(
            ["-m", "layout=1x1,1x2"], "a sweep starts its own ranks", marks=pytest.mark.long
        ),
        pytest.param(["backend=foo"], "backend=foo is unknown", marks=pytest.mark.long),
        pytest.param(
            ["output=/proc/nowhere"],
            "output=/proc/nowhere can't be written",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_given_world_refuses_in_one_line_of_rank_0(
    tmp_path: Path, warm_executable: Path, words: list[str], line: str
) -> None:
    command = [
        str(warm_executable),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
    ]
    command += ["-m", "commbench"]
    done = subprocess.run(
        ["timeout", "-k", "5", "60", *command, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode != 0
    messages = [
        message for message in done.stderr.splitlines() if message.startswith("commbench: ")
    ]
    assert len(messages) == 1 and line in messages[0]
    assert "exitcode  : 2" in done.stderr
    assert "commbench/__main__.py" not in done.stderr, "the only traceback is torchrun's own"


@pytest.mark.long  # a rank that is alone waits 10 s for rank 0 to say it
@pytest.mark.parametrize(
    ("odd", "message"), [(0, "commbench: backend=foo"), (1, "commbench: rank 1 on ")]
)
def test_the_message_of_a_single_refusing_rank_is_printed(
    world: Callable[..., Any], odd: int, message: str
) -> None:
    code = (
        "import os, sys\nfrom commbench.__main__ import main\nodd = os.environ['RANK'] =="
        f" '{odd}'\n"
    )
    code += "sys.exit(main(['backend=foo' if odd else 'backend=gloo']))"
    done = world(
        "torchrun", "--nproc-per-node", "2", "--no-python", sys.executable, "-c", code, status=None
    )
    assert done.status != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("commbench: ")]
    assert len(lines) == 1 and lines[0].startswith(message) and "backend=foo is unknown" in lines[0]


@pytest.mark.long
def test_the_message_of_rank_0_is_printed_though_others_end_before(
    world: Callable[..., Any],
) -> None:
    code = "import os, sys, time\ntime.sleep(2 * (os.environ['RANK'] == '0'))\n"
    code += "from commbench.__main__ import main\nsys.exit(main(['backend=foo']))"
    done = world(
        "torchrun", "--nproc-per-node", "2", "--no-python", sys.executable, "-c", code, status=None
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("commbench: ")]
    assert len(lines) == 1 and lines[0].startswith("commbench: backend=foo is unknown")


def test_of_two_attempts_at_a_case_the_newer_counts(tmp_path: Path) -> None:
    folder = simulated(tmp_path, "benchmark=all_reduce", "sizes=[8]", *FIXED)
    (folder / "parts").mkdir()
    again = with_column(pq.read_table(folder / "cases.parquet"), "label", "again")
    pq.write_table(again, folder / "parts" / "000009.cases.parquet")
    assert list(commbench.load(folder).label) == ["again"]


@pytest.mark.parametrize(
    ("backend", "status"), [("mpi", "ok"), pytest.param("gloo", "skipped", marks=pytest.mark.long)]
)
def test_pairs_with_oneself_are_measured_or_skipped(
    world: Callable[..., Any], backend: str, status: str
) -> None:
    words = (
        "pairs=all",
        "benchmark=[p2p_latency,p2p_bandwidth]",
        "sizes=[8,1MiB]",
        "window=4",
        *FIXED,
    )
    run = world("commbench", f"backend={backend}", *words)
    own = run.cases[run.cases.pair.isin(["0-0", "1-1"])]
    assert len(own) == 8 and set(own.status) == {status}
    assert (run.cases[run.cases.pair.isin(["0-1", "1-0"])].status == "ok").all()


def test_timed_repetitions_that_move_nothing_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commbench.features.simulated import virtual

    real = virtual.VirtualRunner.__call__

    # the first call of a case is honest, blocks leave the buffers as they were
    def lazy(self: Any, n: int) -> Any:
        if n == 1:
            return real(self, n)
        return np.ones((len(self._programs), n, 2), dtype=np.int64).cumsum(axis=2)

    monkeypatch.setattr(virtual.VirtualRunner, "__call__", lazy)
    cases = commbench.load(
        simulated(tmp_path, "sizes=[400]", "cache=warm", "in_place=false", *FIXED)
    )
    assert set(cases.status) == {"invalid"}


def test_a_terminated_run_ends_soon_and_leaves_nobody_behind(
    tmp_path: Path, warm_executable: Path
) -> None:
    words = [
        str(warm_executable),
        "-m",
        "commbench",
        "backend=mpi",
        "timing=rigorous",
        f"output={tmp_path}",
    ]
    run = subprocess.Popen(words, stdout=-3, stderr=-3, cwd=tmp_path)
    until(lambda: any(tmp_path.glob("*/parts")))
    run.terminate()
    assert run.wait(20) == 143
    until(
        lambda: (
            str(tmp_path) not in [process.info["cwd"] for process in psutil.process_iter(["cwd"])]
        ),
        5,
    )


def test_an_interrupted_sweep_of_a_hosted_world_has_its_table_and_can_be_resumed(
    tmp_path: Path, warm_executable: Path
) -> None:
    words = [
        "-m",
        "backend=simulated",
        "seed=0,1",
        "layout=1x2",
        "benchmark=all_reduce",
        "sizes=[8]",
        "timing=soak",
    ]
    command = [
        str(warm_executable),
        "-m",
        "commbench",
        *words,
        "writer=parquet",
        f"output={tmp_path}",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: any(tmp_path.glob("*/in_flight")))
        process.send_signal(signal.SIGINT)  # in a case that lasts a minute
        stdout, stderr = process.communicate(timeout=60)
    (run,) = tmp_path.iterdir()
    assert process.returncode == 130
    assert "1 not begun" in stdout and "ended with 130" in stdout
    assert stderr.splitlines()[1:] == [f"commbench: finish it with: commbench resume {run}"]


# ---------------------------------------------------------------- rounds, soaks


def test_a_round_of_pairs_gives_every_pair_a_row_and_samples_of_its_own(tmp_path: Path) -> None:
    words = ("benchmark=p2p_latency", "pairs=all", "sizes=[8]", "layout=1x3", *FIXED)
    rounds = commbench.load(simulated(tmp_path / "rounds", *words, "schedule=rounds"))
    serial = commbench.load(simulated(tmp_path / "serial", *words))
    assert (
        sorted(rounds.pair)
        == sorted(serial.pair)
        == sorted(f"{a}-{b}" for a in range(3) for b in range(3))
    )
    times = [frame.set_index("pair").median_s.sort_index() for frame in (rounds, serial)]
    assert times[0].to_numpy() == pytest.approx(times[1].to_numpy()), (
        "in the model links don't disturb each other"
    )
    samples = commbench.load(tmp_path / "rounds", table="samples")
    ranks = samples.groupby("case_id")["rank"].unique().map(sorted).map(tuple)
    own = {
        row.case_id: tuple(sorted({int(rank) for rank in row.pair.split("-")}))
        for row in rounds.itertuples()
    }
    assert ranks.to_dict() == own


def test_a_soak_keeps_a_time_line_of_all_repetitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commbench.features.streams.soak.FLUSH_S", 0.0)
    monkeypatch.setattr("commbench.measure.blocks.BLOCK_STAMPS", 100)
    real = Recorder.record
    saves = []
    monkeypatch.setattr(
        Recorder, "record", lambda self, job, *rest: (saves.append(job), real(self, job, *rest))
    )
    soak = (
        "timing=soak",
        "timing.duration_s=0.6",
        "timing.interval_s=0.1",
        "backend.model.latency_s=1e-3",
    )
    folder = simulated(tmp_path, "benchmark=p2p_latency", "sizes=[1KiB]", "layout=1x2", *soak)
    (case,) = commbench.load(folder).to_dict("records")
    assert (case["stop_reason"], case["status"]) == ("duration", "ok") and len(saves) > 2
    assert case["repetitions"] >= 0.6 / 2e-3 and case["unmeasured_s"] == 0
    counters = commbench.load(folder, table="counters").pivot(
        index="t_ns", columns="name", values="value"
    )
    assert counters["interval.repetitions"].sum() == case["repetitions"]
    assert set(np.diff(counters.index)) == {100_000_000}, "a virtual clock has no gaps"
    samples = commbench.load(folder, table="samples")
    measured = samples[(samples.phase == "measure") & (samples["rank"] == 0)]
    assert len(measured) == case["repetitions"]
    assert list(measured.repetition) == list(range(len(measured))), (
        "saved in pieces, and every repetition once"
    )
    assert counters["interval.busy_s"].sum() == pytest.approx(measured.elapsed_ns.sum() * 1e-9)


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_a_soak_measures_99_percent_of_the_time(world: Callable[..., Any], backend: str) -> None:
    words = (
        "benchmark=[p2p_latency]",
        "sizes=[1KiB]",
        "layout=1x2",
        "timing=soak",
        "timing.duration_s=20",
    )
    run = world("commbench", f"backend={backend}", *words)
    (case,) = run.cases.to_dict("records")
    assert case["unmeasured_s"] <= 0.01 * 20
    assert "passed between" not in (case["reason"] or "")
    counters = commbench.load(run.output, table="counters").pivot(
        index="t_ns", columns="name", values="value"
    )
    assert counters["interval.repetitions"].sum() == case["repetitions"]
    assert counters["interval.busy_s"].sum() > 0.98 * 20, (
        "the loops themselves, without gathering and deciding"
    )
    assert np.diff(counters.index).max() * 1e-9 < 1, "no hole in the time line"


@pytest.mark.long
def test_a_soak_that_is_interrupted_has_lost_nothing(tmp_path: Path, warm_executable: Path) -> None:
    output = tmp_path / "results"
    words = [
        str(warm_executable),
        "-m",
        "commbench",
        "benchmark=p2p_latency",
        "sizes=[8]",
        f"output={output}",
    ]
    with subprocess.Popen(
        [*words, "timing=soak", "timing.duration_s=100"], stderr=subprocess.DEVNULL
    ) as process:
        until(lambda: any(output.glob("*/parts/*.cases.parquet")))
        time.sleep(0.5)  # measured after what is saved already
        interrupted = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert time.monotonic() - interrupted < 10
    (case,) = commbench.load(output).to_dict("records")
    assert (case["status"], case["stop_reason"]) == ("ok", "interrupted")
    assert load_run(find_runs(output)[0])["status"] == "interrupted"
    counters = commbench.load(output, table="counters")
    assert counters[counters.name == "interval.repetitions"].value.sum() == case["repetitions"]


def test_a_soak_whose_writer_has_a_bug_is_broken_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the case that it breaks off has to be written, too, by the same writer."""

    def broken(*_: object) -> None:
        raise ValueError("a bug in the writer")

    monkeypatch.setattr(Parquet, "cases", broken)
    monkeypatch.setattr("commbench.features.streams.soak.FLUSH_S", 0.0)
    with pytest.raises(WorldBroken, match=r"rank 0 on .*: ValueError: a bug in the writer"):
        simulated(
            tmp_path, "benchmark=p2p_latency", "sizes=[8]", "timing=soak", "timing.duration_s=1"
        )
    run = load_run(find_runs(tmp_path)[0])
    assert (run["status"], run["exit_status"]) == ("broken", 3) and run["reason"].endswith(
        "a bug in the writer"
    )


@pytest.mark.parametrize(
    ("bound", "status"), [pytest.param("<100", 0, marks=pytest.mark.long), ("<1e-12", 1)]
)
def test_a_world_without_a_run_json_tells_its_status(
    world: Callable[..., Any], bound: str, status: int
) -> None:
    words = (
        "benchmark=all_reduce",
        "sizes=[8]",
        f"expect='all_reduce:median_s{bound}'",
        "writer=console",
        *FIXED,
    )
    run = world("commbench", *words, status=status)
    assert not list(run.output.rglob("ends-*"))


def test_each_pass_has_the_reference_case(world: Callable[..., Any]) -> None:
    words = (
        "backend=gloo",
        "benchmark=[all_reduce]",
        "sizes=[8,1KiB]",
        "timing=quick",
        "timing.case_s=0.3",
    )
    done = world("commbench", *words, "writer=[parquet]")
    run = done.record
    passes = [reference["pass"] for reference in run["reference"]]
    assert passes == list(range(1, done.cases.visits.max() + 1))
    assert all(
        0 < reference[kind][0] < 1
        for reference in run["reference"]
        for kind in ("p2p_latency_s", "copy_s")
    )
    assert 0 < run["calibration"]["empty_sample_s"]["python"] < 1e-5


@pytest.mark.long
def test_a_world_of_unequal_nodes_says_once_which_ranks_are_idle(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """Three ranks on one host and one on another, which torch's env:// brings together."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "4"}

    def rank(number: int, *words: str, status: int = 0) -> Any:
        command = "python -m commbench " + " ".join(words)
        host = f"hostname worlds{number // 3}; exec {command}"
        return world(
            "unshare", "--uts", "sh", "-c", host, env=meeting | {"RANK": str(number)}, status=status
        )

    words = ("benchmark=p2p_latency", "pairs=all", "sizes=[8]", *FIXED)
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda number: rank(number, *words), range(4)))
    stderr = "".join(run.stderr for run in runs)
    assert stderr.count("ranks 1-2 are idle") == 1
    assert stderr.count("this is rank 0 of 4 ranks") == 1
    assert "ranks 0, 3 of the world" in runs[0].stdout
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda number: rank(number, "layout=2x2", status=2), range(4)))
    refusals = [run.stderr.count("does not fit into this world") for run in runs]
    assert refusals == [1, 0, 0, 0]


def test_a_line_rate_of_an_interface_that_no_host_has_is_refused(world: Callable[..., Any]) -> None:
    run = world("commbench", "backend=simulated", "limit=nosuch0:1Gb/s", status=2)
    assert "limit=nosuch0:RATE: no host has that interface; they have: " in run.stderr
