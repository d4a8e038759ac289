"""`make gpu-check` on a machine without a GPU: alone, and with a stand-in for the driver's
library."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from loops import for_each
from places import HOST_GPU, ROOT, TOOLS
from shown_gpus import shown_to_cupy

from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.measure.plan import PlanFacts, duration_s, plan
from commbench.world.control import hosted_world

sys.path.insert(0, str(TOOLS / "gpu"))

import checks
from check import Check, Outcome, run
from machine import PLUGINS, PROBES, Machine, environment, gpu_count, importable, removed
from sights import (
    answered,
    column,
    counted,
    ends_with,
    filled,
    measured,
    measured_or_refused,
    off_takes_another_transport,
    recorded,
    says,
    skipped,
)
from stand_in import library_folder
from steps import CAPTURES_APART, STEPS


def machine_with(gpus: int) -> Machine:
    """A machine with every library that the checks use."""
    return Machine(
        gpus,
        torch="2.11",
        torch_cuda="13.0",
        nccl="2.28",
        names=("A",) * gpus,
        bytes=(1 << 36,) * gpus,
        cupy="14.0",
        cupy_nccl=22800,
        mpi4py="4.1",
        mpi_library="libmpi.so",
    )


EVERYTHING = machine_with(4)
ALL = {check.name: check for step in STEPS.values() for check in step.checks(EVERYTHING)}
MAKE = ("make", "--no-print-directory", "gpu-check")
REFUSALS = ("exit 1", "exit 2")
COMMANDS = [
    name for name, check in ALL.items() if check.program is None and check.words != ("doctor",)
]
LIMIT_S = 100
START_S = 10.0  # of a world on GPUs, until its first case
REFUSAL_S = 5.0
KILLED_S = 35.0  # until its first case, 3 s of it, and until the silence is noticed


def gpu_check(out: Path, *names: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = [
        "timeout",
        "-k",
        "5",
        str(LIMIT_S),
        sys.executable,
        str(TOOLS / "gpu"),
        str(out),
        *names,
    ]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **env})


def table(out: Path) -> dict[str, dict[str, str]]:
    return {line["name"]: line for line in json.loads((out / "table.json").read_text())}


@pytest.mark.skipif(isinstance(gpu_count(), int), reason="there is a GPU here")
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_without_a_gpu_it_says_why_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MAKE, f"PYTHON={sys.executable}", f"GPU_CHECK_DIR={tmp_path / 'out'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1 and lines[0].startswith("gpu-check: libcuda.so.1 is not here"), (
        done.stderr
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_step_and_folder_from_its_command_line_only() -> None:
    """OUT, STEP and the like are exported by other build systems."""

    def command(*words: str, **env: str) -> str:
        done = subprocess.run(
            [*MAKE, "--dry-run", "PYTHON=python3", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, **env},
        )
        return done.stdout.strip()

    exported = {"OUT": "/build", "GPU_CHECK_DIR": "/build", "STEP": "7"}
    assert command(**exported) == "python3 tools/gpu --step 1 gpu-check"
    chosen = ("STEP=2", "GPU_CHECK_DIR=/evidence")
    assert command(*chosen, **exported) == "python3 tools/gpu --step 2 /evidence"


def test_variables_that_change_what_a_check_sees_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of NCCL's transports and log, and of the job that the shell belongs to."""
    spoiling = ["NCCL_DEBUG_FILE", "NCCL_P2P_DISABLE", "RANK", "SLURM_PROCID"]
    for name in (*spoiling, "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    known = environment(tmp_path)
    assert not known.keys() & {*spoiling}
    assert known["NCCL_SOCKET_IFNAME"] == "1"
    assert known["CUDA_VISIBLE_DEVICES"] == "1"
    assert set(spoiling) <= set(removed())


@pytest.mark.long
def test_what_is_possible_is_checked_and_packed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    driver = library_folder(tmp_path)
    done = gpu_check(
        out,
        "ipc_copy",
        "bad_ipc_off",
        "nccl_layouts",
        LD_LIBRARY_PATH=str(driver),
        COMMBENCH_BYTES="20000000",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {name: line["verdict"] for name, line in table(out).items()}
    assert verdicts == {
        "ipc_copy": "ok",
        "bad_ipc_off": "ok",
        "nccl_layouts": "not possible",
    }, done.stdout
    assert table(out)["nccl_layouts"]["detail"].startswith("torch ")
    known = json.loads((out / "evidence.json").read_text())
    assert known["machine"]["gpus"] == 1 and known["facts"]["host.kernel"]
    with tarfile.open(out / "gpu-check.tar.gz") as archive:
        names = archive.getnames()
    assert {
        "gpu-check/table.txt",
        "gpu-check/evidence.json",
        "gpu-check/ipc_copy/stderr.txt",
    } <= set(names)
    assert (
        sum(name.endswith("cases.parquet") for name in names)
        == 1
        == sum(name.endswith("run.json") for name in names)
    )
    assert not any("samples" in name or "/site/" in name for name in names)


def test_a_failed_check_is_told_and_the_next_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(
        "import sys; print('commbench: CUDA_ERROR_OUT_OF_MEMORY', file=sys.stderr); sys.exit(3)"
    )
    made = [
        Check(name, (), (ends_with(status),), program=str(script))
        for name, status in (("bad", 0), ("good", 3))
    ]
    program = runpy.run_path(str(TOOLS / "gpu" / "__main__.py"))
    monkeypatch.setitem(program["run_step"].__globals__, "evidence", lambda *_: {})
    monkeypatch.setitem(STEPS, 2, replace(STEPS[2], checks=lambda machine: made))
    assert program["run_step"](2, Machine(1), tmp_path, dict(os.environ), (), time.monotonic()) == 1
    seen = table(tmp_path / "step2")
    assert {name: line["verdict"] for name, line in seen.items()} == {"bad": "failed", "good": "ok"}
    assert seen["bad"]["detail"] == "exit 0: exit 3: commbench: CUDA_ERROR_OUT_OF_MEMORY"
    assert "2 checks, 1 failed" in capsys.readouterr().out


def test_an_unknown_check_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(TOOLS / "gpu" / "__main__.py"))["main"]
    monkeypatch.setitem(main.__globals__, "gpu_count", lambda: 1)
    monkeypatch.setitem(main.__globals__, "look", lambda gpus, env: Machine(gpus))
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main([str(tmp_path / "out"), "nosuch"]) == 2
    assert "unknown checks: nosuch; allowed: doctor, " in capsys.readouterr().err


def planned(check: Check) -> list[tuple[Settings, tuple[Planned, ...]]]:
    """The settings and cases of each job of the check. Raises ConfigError."""
    words = [word for word in check.words if word != "-m"]
    folder = words[1] if words[0] == "--config-dir" else None
    plans = []
    with ConfigComposer(folder) as composer:
        for job in composer.jobs(words[2:] if folder else words, multirun="-m" in check.words):
            layouts = job.settings.layouts or (Layout(1, 2),)
            settings = replace(job.settings, layouts=layouts)
            world = hosted_world(1, max(layout.size for layout in layouts))[0]
            facts = PlanFacts(
                memory_bytes=2**42, cache_bytes=2**26, cores=64, gpu_bytes=2**40, gpus=8
            )
            plans.append((settings, plan(settings, world, facts)))
    return plans


@for_each("name", COMMANDS)
def test_every_command_line_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are to be refused as bad input are, if this needs no GPU; the others have cases to
    measure."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    if name == "bad_graph_on_cpu":
        with pytest.raises(ConfigError, match="timing_mode=graph needs device=cuda"):
            planned(ALL[name])
        return
    plans = planned(ALL[name])
    assert len(plans) == (2 if name == "nccl_ipc_on_off" else 1)
    refused = name.endswith(("bad_ipc_off", "ipc_copy_off", "gloo_none", "mpi_none"))
    for _, cases in plans:
        assert refused or any(case.skip is None for case in cases), [case.skip for case in cases]


def expected_s(check: Check) -> float:
    """How long a check takes where nothing hangs, by commbench's own estimate of its cases."""
    if check.program is not None:
        return check.timeout_s
    if check.meanwhile is not None:
        return KILLED_S
    if check.words == ("doctor",) or any(sight.text in REFUSALS for sight in check.seen):
        return REFUSAL_S
    plans = planned(check)
    cases_s = sum(duration_s(settings, case) for settings, cases in plans for case in cases)
    return START_S * len(plans) + cases_s


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_cases_of_a_check_and_the_checks_of_a_step_have_time_enough(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))
    machine = machine_with(gpus)
    for number, step in STEPS.items():
        expected = {
            check.name: (expected_s(check), check.timeout_s)
            for check in step.checks(machine)
            if check.possible(machine) is None
        }
        late = {name: times for name, times in expected.items() if times[0] > times[1]}
        assert not late, f"step {number}: expected_s and timeout_s of {late}"
        together_s = sum(time_s for time_s, _ in expected.values())
        assert together_s <= step.limit_s, f"step {number} needs {together_s:.0f} s: {expected}"


def test_steps_and_checks_have_numbers_and_names_of_their_own() -> None:
    assert list(STEPS) == list(range(1, len(STEPS) + 1))
    assert all(step.limit_s <= 570 for step in STEPS.values())
    assert len(ALL) == sum(len(list(step.checks(EVERYTHING))) for step in STEPS.values()), (
        "each has its own name"
    )


# ---------------------------------------------------------------- probes and plugins, on stand-ins
# for CuPy and NCCL


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of all checks, on a machine that shows one GPU to a CuPy and an NCCL that are
    none."""
    folder = tmp_path_factory.mktemp("machine")
    known = environment(importable(folder / "site"))
    stand_ins = shown_to_cupy(folder, 1)
    path = {"PYTHONPATH": os.pathsep.join([stand_ins["PYTHONPATH"], known["PYTHONPATH"]])}
    return known | stand_ins | path


def missed(check: Check, end: Outcome) -> dict[str, str]:
    return {sight.text: seen for sight in check.seen if (seen := sight.missed(end)) is not None}


@pytest.mark.long
@pytest.mark.parametrize("library", ["cupy", "nccl"])
def test_ranks_on_one_gpu_claim_hosts_of_their_own(
    on_host: dict[str, str], tmp_path: Path, library: str
) -> None:
    check = ALL[f"shared_{library}_some_ranks"]
    if library == "nccl":  # up to the call that starts NCCL
        words = (
            *check.words,
            "backend._target_=host_shared.HostShared",
            "allow=[shared_gpu,host_shared]",
        )
        check = replace(check, words=words)
        path = os.pathsep.join([str(HOST_GPU), on_host["PYTHONPATH"]])
        on_host = {**on_host, "PYTHONPATH": path}
    end = run(check, tmp_path, on_host, LIMIT_S)
    assert missed(check, end) == {}, end.stderr
    assert {run["label"] for run in end.runs} == {"shared_gpu_so_times_mean_nothing"}
    assert {row["backend"] for row in end.rows} == {f"shared_{library}"} and len(end.rows) == 6
    code = "import os, shared_gpu; shared_gpu.claim_a_host(3); print(os.environ['NCCL_HOSTID'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=on_host, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout == "commbench-rank-3\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["nccl_to_itself", "cupy_nccl_to_itself"])
def test_one_rank_sends_messages_to_itself(
    on_host: dict[str, str], tmp_path: Path, name: str
) -> None:
    """Batched messages and all clocks on one GPU, as the check has them, of one size."""
    check = ALL[name]
    check = replace(
        check,
        words=tuple("sizes=[8]" if word.startswith("sizes=") else word for word in check.words),
    )
    if name == "nccl_to_itself":
        plugin = ("--config-dir", str(HOST_GPU / "conf"), "allow=[host_gpu]", "backend=host_nccl")
        check = replace(check, words=(*plugin, *check.words[1:]))
        on_host = on_host | {"PYTHONPATH": os.pathsep.join([str(HOST_GPU), on_host["PYTHONPATH"]])}
    end = run(check, tmp_path, on_host, LIMIT_S)
    assert missed(check, end) == {}, end.stderr
    assert {row["pair"] for row in end.rows} == {"0-0"} and {row["status"] for row in end.rows} == {
        "ok"
    }


def test_torch_is_asked_for_nccl_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no backend called shared_nccl."""
    import torch.distributed as dist

    class Asked(Exception):
        pass

    def init_process_group(name: str, **given: object) -> None:
        raise Asked(name)

    monkeypatch.syspath_prepend(str(PLUGINS))
    import shared_gpu

    monkeypatch.setattr(shared_gpu, "claim_a_host", lambda rank: None)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(
        "commbench.backends.torch.nccl.CudaDevice.of", lambda world: SimpleNamespace(place="cuda:0")
    )
    with pytest.raises(Asked, match=r"^nccl$"):
        shared_gpu.SharedNccl().open(hosted_world(1, 1)[0], SimpleNamespace(store=dist.HashStore()))


@pytest.mark.parametrize(
    "name", ["clocks_cupy", pytest.param("lifetime_cupy", marks=pytest.mark.long)]
)
def test_a_probe_runs_to_its_end(on_host: dict[str, str], tmp_path: Path, name: str) -> None:
    """Sleeping is no kernel, so what the clocks show is not judged here."""
    check = ALL[name]
    if name == "clocks_cupy":
        (tmp_path / "few.py").write_text(
            "import clocks; clocks.REPETITIONS = 20; clocks.main('cupy')"
        )
        path = os.pathsep.join([str(PROBES), on_host["PYTHONPATH"]])
        check = replace(check, program=str(tmp_path / "few.py"))
        on_host = {**on_host, "PYTHONPATH": path}
    end = run(check, tmp_path, on_host, LIMIT_S)
    assert end.status == 0, end.stderr
    assert end.answer["library"] == "cupy"
    if name == "lifetime_cupy":
        assert missed(check, end).keys() <= {CAPTURES_APART}
        assert len(end.answer["messages_us"]) == 3
    else:
        modes = {(row["mode"], row["asked_us"]) for row in end.answer["kernels"]}
        assert len(modes) == 16 and all(row["median_us"] > 0 for row in end.answer["kernels"])
        assert {(row["mode"], row["held"]) for row in end.answer["all_gather_8B"]} >= {
            ("graph", True),
            ("graph", False),
        }


TORCH = """
import os
import sys
from types import SimpleNamespace
import torch.distributed as dist
import world
from host_gpu import HostNccl
from commbench.world.control import hosted_world
control = SimpleNamespace(store=dist.HashStore())
world.opened = lambda library: HostNccl().open(hosted_world(1, 1)[0], control)
import clocks, lifetime
clocks.REPETITIONS = 20
lifetime.ROUNDS = 3
lifetime.MESSAGES = 20
lifetime.free_bytes = lambda library: 0
(clocks if sys.argv[1] == "clocks" else lifetime).main("torch")
sys.stdout.flush()
os._exit(0)  # Python's own end may abort in gloo's last worker thread
"""


@pytest.mark.parametrize("name", ["clocks", pytest.param("lifetime", marks=pytest.mark.long)])
def test_a_probe_runs_to_its_end_on_torch(
    on_host: dict[str, str], tmp_path: Path, name: str
) -> None:
    """On torch's CPU tensors (tests/support/host_gpu): everything but CUDA and NCCL themselves."""
    paths = [str(HOST_GPU), str(PROBES), on_host["PYTHONPATH"]]
    done = subprocess.run(
        [sys.executable, "-c", TORCH, name], env=on_host | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    if name == "clocks":
        assert len(seen["kernels"]) == 16
    else:
        assert len(seen["rounds_s"]) == len(seen["messages_us"]) == 3


def test_the_answer_of_a_probe_is_judged(tmp_path: Path) -> None:
    clocks = ALL["clocks_torch"]
    # a kernel takes 3 us more than its ticks, whatever its length
    rows = [
        {"mode": mode, "asked_us": asked, "true_us": 1.05 * asked, "median_us": 1.05 * asked + 3}
        for mode in checks.CLOCKS
        for asked in (5.0, 20.0, 100.0)
    ]
    calls = [
        {"mode": mode, "held": held, "median_us": 9.0}
        for mode in checks.CLOCKS
        for held in (True, False)
    ]
    seen = {"kernels": rows, "all_gather_8B": calls}

    def end(value: object) -> Outcome:
        return Outcome(tmp_path, 0, f"some text\n{json.dumps(value)}\n", "", 1.0)

    assert missed(clocks, end(seen)) == {}
    late = [{**row, "median_us": row["median_us"] + 9} for row in rows]
    (problem,) = missed(clocks, end({**seen, "kernels": late}))
    assert problem.startswith("besides its length")
    wrong = [{**row, "median_us": 1.2 * row["true_us"] + 3} for row in rows]
    (problem,) = missed(clocks, end({**seen, "kernels": wrong}))
    assert problem.startswith("between kernels of different length")
    held = [{**row, "median_us": 10.0 if row["held"] else 9.0} for row in calls]
    assert "with a hold" in " ".join(missed(clocks, end({**seen, "all_gather_8B": held})))
    assert (
        "not complete: KeyError"
        in missed(clocks, end({"kernels": rows}))[
            "with a hold, throughput and graph of 8 B are not slower than without"
        ]
    )
    assert answered("x", lambda value: True).missed(end([])) == "no answer: nothing"
    assert {check.program for check in ALL.values()} - {None} <= {
        file.name for file in PROBES.glob("*.py")
    }


@pytest.mark.parametrize(
    ("on", "off", "link", "access", "is_right"),
    [
        ("P2P/CUMEM", "SHM/direct/direct", "NV18", True, True),
        ("SHM/direct/direct", "SHM/direct/direct", "NV18", True, False),
        # a GeForce grants no peer access, and NCCL does not use it across a host bridge
        ("SHM/direct/direct", "SHM/direct/direct", "PIX", False, True),
        ("SHM/direct/direct", "SHM/direct/direct", "SYS", True, True),
        ("P2P/CUMEM", "P2P/CUMEM", "SYS", True, False),
    ],
)
def test_cuda_ipc_off_must_change_the_transport_only_where_nccl_would_use_p2p(
    tmp_path: Path, on: str, off: str, link: str, access: bool, is_right: bool
) -> None:
    end = Outcome(tmp_path, 0, "", "", 1.0)
    vars(end)["rows"] = [
        {"status": "ok", "cuda_ipc": switch, "transport": transport, "link": link}
        for switch, transport in (("on", on), ("off", off))
    ]
    vars(end)["runs"] = [{"provenance": {"nodes": [{"peer.0-1.can_access": access}]}}]
    assert (off_takes_another_transport().missed(end) is None) is is_right


def test_processes_are_compared_by_their_numbers(tmp_path: Path) -> None:
    """12 is in 128, and in the size 12345; a container names its processes by several numbers."""
    check = ALL["nvml"]
    (own,) = [sight for sight in check.seen if "another user" in sight.text]

    def seen(users: str | None) -> str | None:
        after = {"pid": 12, "NSpid": [4012, 12], "users": users}
        return own.missed(Outcome(tmp_path, 0, json.dumps({"processes_after": after}), "", 1.0))

    assert seen(None) is None and seen("128 (12345 B), 9 (? B)") is None
    assert (
        seen("12 (5 B)") is not None
        and seen("9 (? B), 4012 (5 B, a number of another PID namespace)") is not None
    )


def test_a_folder_of_another_checkout_gets_this_one(tmp_path: Path) -> None:
    package = tmp_path / "site" / "commbench"
    package.mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (package / "core").symlink_to(tmp_path / "other")
    (package / "gone").symlink_to(tmp_path / "nowhere")
    importable(tmp_path / "site")
    assert (package / "core").resolve() == ROOT / "commbench" / "core"
    assert (package / "conf").resolve() == ROOT / "conf" and not (package / "gone").is_symlink()


def test_a_step_counts_the_time_before_its_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask the libraries may take minutes of the ten."""
    program = runpy.run_path(str(TOOLS / "gpu" / "__main__.py"))
    named = program["run_step"].__globals__
    left: list[float] = []
    monkeypatch.setitem(named, "evidence", lambda *_: {})
    monkeypatch.setitem(
        named,
        "verdict",
        lambda check, *rest: left.append(rest[-1]) or program["Line"]("x", "ok", 0.0),
    )
    program["run_step"](5, Machine(1), tmp_path, {}, (), time.monotonic() - 150.0)
    assert left and left[0] <= STEPS[5].limit_s - 150.0


@pytest.fixture(scope="module")
def outcome(
    tmp_path_factory: pytest.TempPathFactory, warm: Callable[[str | None], Path]
) -> Outcome:
    """A real run of a case, and of one that is skipped."""
    folder = tmp_path_factory.mktemp("simulated")
    words = ["backend=simulated", "benchmark=p2p_latency", "layout=[1x1,1x2]", "sizes=[8]"]
    command = [
        warm(None),
        "-m",
        "commbench",
        *words,
        "timing=quick",
        f"output={folder / 'results'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    return Outcome(
        folder,
        done.returncode,
        done.stdout,
        done.stderr + "commbench: Rank 0 and rank 1 have one GPU\n",
        1.0,
    )


def test_sights_that_the_outcome_has_are_accepted(outcome: Outcome) -> None:
    sights = (
        ends_with(0),
        says("ranks? 0", "gpu"),
        measured(pair="0-1"),
        measured_or_refused(pair="0-1"),
        skipped("needs 2 ranks", layout="1x1"),
        column("backend", ("simulated",)),
        filled("median_s"),
        recorded("run_id"),
    )
    assert [sight.missed(outcome) for sight in sights] == [None] * len(sights)


def test_sights_that_the_outcome_lacks_are_reported(outcome: Outcome) -> None:
    sights = (
        ends_with(3),
        says("nobody"),
        measured(layout="1x1"),
        measured_or_refused(layout="1x1"),
        skipped("memory", layout="1x1"),
        column("backend", ("gloo",)),
        filled("limit_name"),
        recorded("ipc_refused"),
        counted("gpu.sm_clock_mhz"),
    )
    assert all(sight.missed(outcome) for sight in sights)
