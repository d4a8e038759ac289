"""Experiments: each file composes, says what this machine lacks, and shrinks to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import EXPERIMENTS

from commbench.__main__ import main
from commbench.config.compose import ConfigComposer
from commbench.config.experiments import RequestedJobs, experiment_parts, requested_jobs
from commbench.core.errors import ConfigError
from commbench.hardware import mpi_library
from commbench.runtime import launch
from commbench.runtime.launchers.requirements import check_experiment

NAMES = sorted(EXPERIMENTS)
LARGE = {"openbsd_soak", "mvapich_cloud"}  # thousands of cases


@pytest.fixture(autouse=True)
def nothing_is_started(outside_any_world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for tests that start a real process themselves."""
    monkeypatch.setattr(launch, "start", lambda *_: pytest.fail("a world was started"))


@pytest.fixture
def composer() -> Iterator[ConfigComposer]:
    with ConfigComposer() as opened:
        yield opened


def ask(composer: ConfigComposer, name: str, *overrides: str) -> RequestedJobs:
    return requested_jobs(composer, [f"experiment={name}", *overrides], multirun=False)


# ---------------------------------------------------------------- every file


@pytest.mark.parametrize("name", NAMES)
def test_a_file_begins_with_its_command(name: str) -> None:
    header, command, *_ = EXPERIMENTS[name].read_text().splitlines()
    assert header == "# @package _global_"  # Hydra reads it in the first line only
    assert command.startswith(f"# commbench experiment={name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_both_scales(name: str) -> None:
    node = yaml.safe_load(EXPERIMENTS[name].read_text())
    assert set(node["parts"]) == {"full", "cpu"}
    assert all(isinstance(line, str) and line for lines in node["parts"].values() for line in lines)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in NAMES]
)
def test_it_plans_or_says_in_one_line_what_is_missing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([f"experiment={name}", "plan=true"])
    out, err = capsys.readouterr()
    if err == "":
        assert "nothing was started" in out and status == (2 if "can't start here" in out else 0)
    else:
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert err.startswith(f"commbench: experiment={name} can't run here: (1) ")
        assert err.endswith(f"commbench experiment={name} scale=cpu\n")


@pytest.mark.parametrize(
    ("answer", "words", "refused"),
    [
        (False, (), True),
        (True, (), False),
        (None, (), False),
        (False, ("device=cuda", "staging=pinned"), False),
    ],
)
def test_an_mpi_without_cuda_is_told_before_an_experiment_on_gpus_begins(
    monkeypatch: pytest.MonkeyPatch,
    composer: ConfigComposer,
    answer: bool | None,
    words: tuple[str, ...],
    refused: bool,
) -> None:
    monkeypatch.setattr(
        mpi_library, "cuda_aware_by_files", lambda library: mpi_library.CudaAware(answer, "planted")
    )
    requested = ask(composer, "mlbench_p2p", "part=2", *words)
    with pytest.raises(ConfigError) as error:  # at least for the GPUs that are not here
        check_experiment(requested)
    assert ("takes no device memory (planted)" in str(error.value)) is refused


@pytest.mark.parametrize("name", NAMES)
def test_it_plans_on_one_machine_with_scale_cpu(name: str, composer: ConfigComposer) -> None:
    requested = ask(composer, name, "scale=cpu")
    assert requested.jobs and requested.refused == ()
    for job in requested.jobs:
        assert all(
            layout.nodes == 1 and layout.ranks_per_node <= 4 for layout in job.settings.layouts
        )
        assert job.settings.device == "cpu"
        assert f"experiment={name}" in job.overrides and job.config["part"] is not None


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_overrides_of_a_job_are_that_job_again(name: str, composer: ConfigComposer) -> None:
    """What a started world is given: it must neither sweep nor choose another part."""
    for job in ask(composer, name, "scale=cpu").jobs:
        again = requested_jobs(composer, job.overrides, multirun=False)
        assert not again.fresh_worlds
        assert [other.digest for other in again.jobs] == [job.digest]


def test_the_cpu_plans_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment=ec2_streams", "scale=cpu", "plan=true"]) == 0
    assert capsys.readouterr().out.count("nothing was started") == 4


# ---------------------------------------------------------------- the user's own words


def test_what_the_user_gives_goes_before_the_file(composer: ConfigComposer) -> None:
    requested = ask(
        composer, "mlbench_allreduce", "backend=gloo", "device=cpu", "layout=1x2", "sizes=[8]"
    )
    (job,) = requested.jobs  # both parts mean the same now
    assert not requested.fresh_worlds
    assert (job.settings.backend.name, job.settings.sizes) == ("gloo", ((8,),))


def test_a_part_runs_alone(composer: ConfigComposer) -> None:
    jobs = ask(composer, "ec2_streams", "scale=cpu", "part=1").jobs
    assert [job.settings.backend.name for job in jobs] == ["tcp"]


def test_another_timing_ends_the_files_own_duration(composer: ConfigComposer) -> None:
    (job,) = ask(composer, "openbsd_pairs", "timing=quick").jobs
    assert (job.settings.timing.name, job.settings.timing.duration_s) == ("quick", None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("scale=cpu", "scale=cpu is unknown; it belongs to an experiment"),
        ("part=1", "part=1 is unknown; it belongs to an experiment"),
        ("experiment=exchange_quiz scale=gpu", "scale=gpu is unknown; allowed: full, cpu"),
        ("experiment=exchange_quiz part=2", "part=2 is unknown; scale=full has 1 to 1"),
        ("experiment=exchange_quiz part=x", "part=x is unknown"),
        ("experiment=exchange_quiz sizes=[10]", "sizes=[10] is not a whole number of int32"),
        ("-m experiment=exchange_quiz,mlbench_p2p", "run one experiment at a time"),
        ("-m experiment=ec2_enhanced part=1,2", "part=1,2 names several; run one part at a time"),
        ("experiment=ec2_enhanced part=1,2", "part=1,2 names several; run one part at a time"),
        ("-m experiment=ec2_enhanced scale=cpu,full", "run one scale at a time"),
        ("experiment=nothing", "experiment=nothing is unknown; allowed: acceptance, ec2"),
    ],
)
def test_bad_words_are_one_line(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and message in err


def write(text: str) -> str:
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/own.yaml").write_text(f"# @package _global_\n{text}")
    return "mine"


@pytest.mark.parametrize(
    "word",
    [
        "allow=[os]",
        "env.LD_PRELOAD=x",
        "++env.LD_PRELOAD=x",
        "env={A:b}",
        "backend.library=/tmp/x.so",
    ],
)
def test_the_parts_of_a_foreign_file_bring_in_no_code(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(f"parts:\n  full:\n    - '{word}'\n")
    assert main(["--config-dir", folder, "experiment=own", "backend=mpi", "plan=true"]) == 2
    assert "what loads code is given on the command line only" in capsys.readouterr().err


def test_a_file_without_parts_is_one_run() -> None:
    with ConfigComposer(write("sizes: [64]\n")) as composer:
        assert experiment_parts(composer, ["experiment=own"]) == [["experiment=own"]]
        (job,) = ask(composer, "own").jobs
    assert job.settings.sizes == ((64,),)


NIGHT = "_target_: commbench.config.settings.Timing\nname: night\nduration_s: 9\ninterval_s: 1\n"


def durations_s(folder: str, *words: str) -> list[float | None]:
    """Of the parts of an own experiment; None of those that are no soak."""
    with ConfigComposer(folder) as composer:
        jobs = ask(composer, "own", "backend=simulated", "layout=1x2", "sizes=[8]", *words).jobs
    by_part = sorted(jobs, key=lambda job: job.config["part"])
    return [job.settings.timing.duration_s for job in by_part]


def test_a_soak_by_any_name_takes_the_keys_of_soaks_and_keeps_its_timing() -> None:
    folder = write("parts:\n  full: [timing=night, timing=quick, +timing.duration_s=8]\n")
    Path("mine/timing").mkdir()
    Path("mine/timing/night.yaml").write_text(NIGHT)
    assert durations_s(folder) == [9, None, 8]
    assert durations_s(folder, "++timing.duration_s=7") == [7, None, 7]
    assert durations_s(folder, "timing=fixed") == [9, None, 8]
    assert durations_s(folder, "timing=night", "timing.duration_s=7") == [7], "all alike"
    assert durations_s(folder, "part=2", "timing=night") == [9]


def test_python_runs_one_world_at_a_time() -> None:
    import commbench

    with pytest.raises(ConfigError, match="these are 4 runs; from Python start one at a time"):
        commbench.run("experiment=ec2_streams", "scale=cpu")


# ---------------------------------------------------------------- real runs


@pytest.mark.parametrize(
    ("words", "backends", "cases"),
    [
        (
            (
                "experiment=mlbench_allreduce",
                "sizes=[40,4kB]",
                "layout=1x2",
                "timing.repetitions=3",
            ),
            {"gloo", "mpi"},
            4,
        ),
        (("experiment=openbsd_pairs", "layout=1x2", "timing.duration_s=0.2"), {"tcp"}, 4),
        (("experiment=exchange_quiz", "budget.case_s=0.2"), {"mpi"}, 2),
    ],
)
@pytest.mark.long
def test_it_runs_as_far_as_cpus_go(
    words: tuple[str, ...], backends: set[str], cases: int, world: Callable[..., Any]
) -> None:
    rows = world("commbench", *words, "scale=cpu").cases
    assert (set(rows.backend), set(rows.status), len(rows)) == (backends, {"ok"}, cases)
    assert (rows.wrong_elements == 0).all()
