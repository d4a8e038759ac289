"""`commbench ab`: the order of launches, what is refused before anything starts, and verdicts on
planted truth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commbench
from commbench.__main__ import main
from commbench.cli import run
from commbench.core.errors import ConfigError, WorldBroken
from commbench.features.ab.ab_results import read_ab_results
from commbench.features.ab.command import ab, turns
from commbench.results.load import load_run

pytestmark = pytest.mark.usefixtures("outside_any_world")
SIMULATED = (
    "backend=simulated",
    "benchmark=[all_reduce]",
    "sizes=[8,64KiB]",
    "timing=quick",
    "timing.warmup_s=0",
    "backend.model.noise=0.03",
)
LUCK = "backend.seed=${trial}"  # another noise in each launch
SLOWER = (
    "backend.model.latency_s=2.2e-6",
    "backend.model.call_s=1.1e-7",
    "backend.model.bandwidth_gb_per_s=9.09",
    "backend.seed=7${trial}",
)


def folder() -> Path:
    (path,) = Path("results").iterdir()
    return path


# ---------------------------------------------------------------- order


@given(st.integers(1, 60), st.integers(0, 10**6))
def test_every_launch_of_each_side_runs_once_and_next_to_its_partner(
    launches: int, seed: int
) -> None:
    order = turns(launches, seed)
    assert sorted(order) == sorted(
        (launch, side) for launch in range(launches) for side in ("base", "new")
    )
    assert all(order[at][0] == order[at + 1][0] == at // 2 for at in range(0, 2 * launches, 2))
    firsts = [order[at][1] for at in range(0, 2 * launches, 2)]
    assert all(firsts[at] != firsts[at + 1] for at in range(0, launches - 1, 2))  # ABBA


def test_the_order_is_drawn_by_the_seed() -> None:
    orders = {tuple(turns(8, seed)) for seed in range(20)}
    assert len(orders) > 5
    assert turns(8, 3) == turns(8, 3)


# ---------------------------------------------------------------- verdicts


def test_a_planted_tenth_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """Seven pairs are the fewest that show it for two cases."""
    words = [
        "ab",
        *SIMULATED,
        LUCK,
        "--vs",
        *SLOWER,
        "--launches",
        "7",
        "--fail-on",
        "slower",
        "--delta",
        "3",
    ]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert "2 of 2 cases SLOWER" in out and "7 / 7" in out
    assert "ab: run 14 of 14" in err
    rows = commbench.compare(folder() / "base", folder() / "new", paired=True)
    assert list(rows.verdict) == ["SLOWER"] * 2
    assert "commbench compare" in out and "--paired" in out  # how to ask again
    [result], _ = read_ab_results([folder()])
    assert result.rules.delta == 0.03, "a report asks the same question"


@pytest.mark.long
def test_two_equal_sides_get_no_verdict_of_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "ab",
        "--launches=7",
        *SIMULATED,
        LUCK,
        "--fail-on=slower",
        "--vs",
        "backend.seed=7${trial}",
    ]
    assert main(words) == 0
    rows = commbench.compare(folder() / "base", folder() / "new", paired=True)
    assert set(rows.verdict) <= {"SAME", "UNDECIDED"}


@pytest.mark.long
def test_one_folder_holds_both_sides_and_the_question() -> None:
    words = [
        "ab",
        *SIMULATED,
        "seed=4",
        "--vs",
        "backend.model.latency_s=3e-6",
        "--launches",
        "2",
        "--seed",
        "5",
    ]
    assert main(words) == 0
    rows = commbench.load(folder())
    assert sorted(zip(rows.label, rows.trial, strict=True)) == [
        (side, launch) for side in ("base", "new") for launch in (0, 1) for _ in range(2)
    ]
    question = json.loads((folder() / "ab.json").read_text())
    assert question["seed"] == 5 and question["order"] == [list(turn) for turn in turns(2, 5)]
    assert (
        "backend.model.latency_s=3e-6" in question["new"]
        and "backend.model.latency_s=3e-6" not in question["base"]
    )


def test_variables_that_differ_are_compared_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ab", *SIMULATED, "env.A=1", "--vs", "env.A=2", "--launches", "1"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "--by=env" in " ".join(out.split()) and out.startswith("2 of 2 cases UNDECIDED")
    assert "can't show SLOWER or FASTER among 2 cases: at least 7 are needed" in err
    assert "ab: 1 launch of each side, 2 cases, about " in err


@pytest.mark.long
def test_a_real_run(world: Callable[..., Any]) -> None:
    """Two launches per side on gloo."""
    words = (
        "benchmark=[p2p_latency]",
        "sizes=[8]",
        "timing=fixed",
        "timing.repetitions=5",
        "layout=1x2",
    )
    # conftest adds output= at the end, behind --vs
    misplaced = ("--launches=2", "--vs", "env.OMP_NUM_THREADS=1")
    refused = world("commbench", "ab", "backend=gloo", *words, *misplaced, status=2)
    assert "output belongs to both sides; write it before --vs" in refused.stderr
    done = world("commbench", "ab", "--vs", "env.A=1", "--launches=2", "backend=gloo", *words)
    rows = done.cases
    assert (len(rows), set(rows.status), set(rows.label), set(rows.trial)) == (
        4,
        {"ok"},
        {"base", "new"},
        {0, 1},
    )
    assert "at least 6 are needed" in " ".join(done.stdout.split())


# ---------------------------------------------------------------- what stops it


def test_an_interruption_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = run.run
    calls = []

    def third_is_stopped(*words: object, **more: object) -> int:
        calls.append(words)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run", third_is_stopped)
    assert main(["ab", *SIMULATED, "--vs", "backend.seed=3", "--launches", "4"]) == 130
    assert "interrupted; what was finished: commbench compare" in capsys.readouterr().err
    assert len(commbench.load(folder())) == 4


def test_a_lost_launch_ends_with_its_own_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, six pairs remain: too few for the gate, which would end with 2."""
    original = run.run
    calls = []

    def third_breaks(*words: object, **more: object) -> int:
        calls.append(words)
        if len(calls) == 3:
            raise WorldBroken("rank 1 was lost")
        return original(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run", third_breaks)
    words = ["--launches=7", "--fail-on=slower", "--vs", "backend.seed=3"]
    assert main(["ab", *SIMULATED, *words]) == 3
    error = " ".join(capsys.readouterr().err.split())
    assert "--fail-on slower could not fail: 6 launches of each side can't show" in error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ab", "--vs"),
        ("ab backend=simulated", "--vs"),
        ("ab --vs", "--vs"),
        (
            "ab backend=simulated --vs backend=foo",
            "NEW: backend=foo is unknown; allowed: cuda_copy, cupy_nccl, gloo",
        ),
        ("ab backend=foo --vs seed=1", "BASE: backend=foo is unknown"),
        ("ab backend=simulated --vs sizs=[8]", "NEW: unknown key sizs; did you mean sizes?"),
        ("ab backend=simulated --vs sizes=[8],[16]", "NEW: sizes=[8],[16] has commas"),
        ("ab backend=simulated --vs layout=2x1 backend=gloo", "layout=2x1 needs 2 nodes"),
        (
            "ab backend=simulated --vs benchmark=[broadcast] --launches 0",
            "0 is not a whole number from 1 to 1000",
        ),
        ("ab backend=simulated --vs seed=1 --launches x", "x is not a whole number from 1 to 1000"),
        ("ab backend=simulated --vs seed=1 --seed -1", "-1"),
        (
            "ab backend=simulated --vs seed=1 --fail-on foo",
            "--fail-on foo is unknown; allowed: slower",
        ),
        (
            "ab backend=simulated --vs seed=1 --fail-on slower --launches 3",
            "of 33 cases: --launches 11 or more",
        ),
        ("ab backend=simulated trial=3 --vs seed=1", "commbench ab sets trial itself"),
        ("ab backend=simulated --vs label=x", "commbench ab sets label itself"),
        ("ab backend=simulated --vs output=x", "output belongs to both sides"),
        ("ab backend=simulated writer=[console] --vs seed=1", "BASE stores no results to compare"),
        (
            "ab backend=simulated sizes=[8] --vs sizes=[16]",
            "no case of NEW has a counterpart in BASE",
        ),
        (
            "ab backend=gloo benchmark=[all_reduce] --vs backend=tcp",
            "NEW has no case to measure: tcp is",
        ),
        (
            "ab backend=simulated --vs experiment=ec2_streams scale=cpu",
            "NEW has 4 runs; a side is one run",
        ),
        ("ab backend=simulated --vs seed=1 --frobnicate", "--frobnicate"),
        ("ab backend=simulated output=/proc/x --vs seed=1", "output=/proc/x can't be written"),
    ],
)
def test_bad_words_are_refused_before_anything_starts(
    line: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run", lambda *_, **__: pytest.fail("something was started"))
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.startswith("commbench: ")
    assert not Path("results").exists()


def test_inside_a_world_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(name, value)
    assert main(["ab", "backend=gloo", "--vs", "seed=1"]) == 2
    assert "call it outside of torchrun" in capsys.readouterr().err


def test_a_plan_of_both_sides_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["ab", "backend=simulated", "plan=true", "sizes=[8]", "--vs", "backend.model.noise=0.1"]
        )
        == 0
    )
    assert capsys.readouterr().out.count("nothing was started") == 2
    assert not Path("results").exists()


# ---------------------------------------------------------------- another Python


def test_a_side_is_measured_by_its_own_python(tmp_path: Path) -> None:
    """A wrapper stands for it, which sets a variable that Open MPI would read."""
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexport OMPI_MCA_planted=1\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    words = ("ab", *SIMULATED, "--launches", "1", "--vs", f"python={other}")
    assert main(words) == 0
    assert json.loads((folder() / "ab.json").read_text())["pythons"] == {
        "base": None,
        "new": str(other),
    }
    facts = {side: side_facts(folder() / side) for side in ("base", "new")}
    assert "environment.OMPI_MCA_planted" in facts["new"]
    assert "environment.OMPI_MCA_planted" not in facts["base"]


def side_facts(side: Path) -> dict[str, Any]:
    (run,) = side.iterdir()
    (node,) = load_run(run)["provenance"]["nodes"]
    return dict(node)


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("", "names no file"),
        ("/nonexistent", "No such file"),
        ("/bin/false", "can't run commbench"),
        ("/tmp", "denied"),
    ],
)
def test_a_python_without_commbench_is_refused(python: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ab([*SIMULATED, "--vs", f"python={python}"])
    assert not Path("results").exists()
