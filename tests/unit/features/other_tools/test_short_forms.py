"""Programs of other tools as commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.cli.main import main
from commbench.config.compose import ConfigComposer
from commbench.features.other_tools.nccl_tests import NCCL_TESTS_PROGRAMS
from commbench.features.other_tools.osu import OSU_PROGRAMS
from commbench.features.other_tools.short_forms import short_forms


@pytest.mark.parametrize("program", short_forms())
def test_each_program_is_a_run_of_its_operation(program: str) -> None:
    with ConfigComposer() as composer:
        (job,) = composer.jobs(short_forms()[program], multirun=False)
    (benchmark,) = job.settings.benchmarks
    names = {name: each.name for name, each in OSU_PROGRAMS.items()} | NCCL_TESTS_PROGRAMS
    known = OSU_PROGRAMS[benchmark.name].name, NCCL_TESTS_PROGRAMS.get(benchmark.name)
    assert program in known and benchmark.name in names


def test_a_program_of_osu_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("backend=simulated", "dtype=float32", "sizes=[8]", "layout=1x2")
    assert main(["osu_latency", *words, f"output={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("p2p_latency, as osu_latency: " in line for line in lines)
    # the user's sizes count
    assert [line.split()[0] for line in lines if line[:1].isdigit()] == ["8"]
    assert main(["osu_latence", *words]) == 2
    assert "osu_latence" in capsys.readouterr().err
