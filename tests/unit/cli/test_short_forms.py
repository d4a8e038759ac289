"""Programs of other tools as commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.cli.main import main
from commbench.cli.short_forms import expanded, short_forms
from commbench.config.compose import ConfigComposer
from commbench.report.nccl_tests import NCCL_TESTS_PROGRAMS
from commbench.report.osu import OSU_PROGRAMS


@pytest.mark.parametrize("program", short_forms())
def test_each_program_is_a_run_of_its_operation(program: str) -> None:
    with ConfigComposer() as composer:
        (job,) = composer.jobs(short_forms()[program], multirun=False)
    (benchmark,) = job.settings.benchmarks
    names = {name: each.name for name, each in OSU_PROGRAMS.items()} | NCCL_TESTS_PROGRAMS
    known = OSU_PROGRAMS[benchmark.name].name, NCCL_TESTS_PROGRAMS.get(benchmark.name)
    assert program in known and benchmark.name in names


def test_words_of_the_user_come_last_and_other_words_stay() -> None:
    assert expanded(["osu_latency", "sizes=[8]"])[-1] == "sizes=[8]"
    assert expanded(["osu_xyz"]) == ["osu_xyz"]


def test_a_program_of_osu_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("backend=simulated", "dtype=float32", "sizes=[8]", "layout=1x2")
    assert main(["osu_latency", *words, f"output={tmp_path}"]) == 0
    assert "p2p_latency, as osu_latency: " in capsys.readouterr().out
    assert main(["osu_latence", *words]) == 2
    assert "osu_latence" in capsys.readouterr().err
