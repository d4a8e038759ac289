"""What the commands share: files that can't be written are refused before anything is computed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from commbench.cli.options import (
    check_file,
    percent,
    show_command,
    with_last_runs,
    write_file,
)
from commbench.core.errors import ConfigError
from commbench.results.columns import SCHEMA_VERSION


def test_a_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--save .*baseline\.parquet: there is no folder .*nowhere; make it"
    ):
        check_file("--save", str(tmp_path / "nowhere" / "baseline.parquet"))
    (tmp_path / "taken.parquet").mkdir()
    with pytest.raises(ConfigError, match=r"taken\.parquet is a folder; name a file in it"):
        check_file("--save", str(tmp_path / "taken.parquet"))
    assert [path.name for path in tmp_path.iterdir()] == ["taken.parquet"]


def test_a_file_is_replaced_only_if_it_may_be(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    write_file("--csv", str(file), "a\n")
    with pytest.raises(ConfigError, match="can't be written: File exists; choose another file"):
        write_file("--csv", str(file), "b\n", replace=False)
    assert file.read_text() == "a\n"
    write_file("--csv", str(file), "b\n")
    assert file.read_text() == "b\n"


@pytest.mark.parametrize(("word", "value"), [("5", 5.0), ("5%", 5.0), ("0.5%", 0.5)])
def test_a_percentage_may_have_its_sign(word: str, value: float) -> None:
    assert percent(word) == value


@pytest.mark.parametrize("word", ["%", "5%%", "0%", "-5%", "5 %", "1e2"])
def test_what_is_no_percentage_is_refused(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a percentage above 0"):
        percent(word)


def test_the_last_of_single_runs_is_one_and_of_a_sweep_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(day: int, sweep: str | None) -> str:
        folder = tmp_path / "results" / f"202601{day:02d}T000000.000000-0000"
        folder.mkdir(parents=True)
        record = {"schema_version": SCHEMA_VERSION, "sweep_id": sweep}
        (folder / "run.json").write_text(json.dumps(record))
        return str(folder.relative_to(tmp_path))

    run(1, None)
    newest = run(2, None)
    assert with_last_runs(["last"]) == [newest]
    sweep = [run(3, "a"), run(4, "a")]
    assert with_last_runs(["last"]) == sweep


def test_runs_of_another_version_are_no_obstacle_to_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, version in (("20260101T000000.000000-old0", 1), ("20260201T000000.000000-new0", 0)):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        record = {"schema_version": version or SCHEMA_VERSION, "sweep_id": name}
        (folder / "run.json").write_text(json.dumps(record))
    assert with_last_runs(["last"]) == ["results/20260201T000000.000000-new0"]
    (tmp_path / "results" / "20260201T000000.000000-new0" / "run.json").unlink()
    assert show_command([tmp_path / "elsewhere"]).endswith(" show elsewhere --flags")


@pytest.mark.parametrize(
    ("program", "is_found", "called"),
    [
        ("{here}/.venv/bin/commbench", False, ".venv/bin/commbench"),
        ("/elsewhere/bin/commbench", False, "/elsewhere/bin/commbench"),
        ("/elsewhere/bin/commbench", True, "commbench"),
        ("/clone/commbench/__main__.py", True, f"{sys.executable} -m commbench"),
    ],
)
def test_the_command_that_goes_on_works_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, is_found: bool, called: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    if is_found:
        (bin_folder / "commbench").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setattr(sys, "argv", [program.format(here=tmp_path)])
    assert show_command([tmp_path / "run"]) == f"{called} show run --flags"
