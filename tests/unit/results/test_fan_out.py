"""A writer that can't write costs its own output and the exit status; the other writers and the run
go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sample_cases import case_row

import commbench
from commbench.cli.run import resume
from commbench.cli.show import show
from commbench.core.errors import Unsaved, WorldBroken
from commbench.report.summary import read_results
from commbench.results.fan_out import FanOut
from commbench.results.load import load_run
from commbench.results.recorded import recorded_rows
from commbench.results.run_folder import write_json
from commbench.results.writer import Entry


class Notes:
    """A writer that keeps what it is told, and fails where it is asked to."""

    def __init__(self, **failures: Exception) -> None:
        self.calls: list[str] = []
        self._failures = failures

    def _do(self, what: str) -> None:
        self.calls.append(what)
        if what in self._failures:
            raise self._failures[what]

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        self._do("begin")

    def cases(self, entries: Sequence[Entry]) -> None:
        self._do("case")

    def end(self, run: Mapping[str, Any]) -> None:
        self._do("end")


def finished_run(*writers: Notes, folder: Path, status: int = 0) -> dict[str, Any]:
    """A run of two cases; run.json as it stands in memory afterwards."""
    fan_out = FanOut(writers)
    run = {"folder": str(folder), "exit_status": status}
    fan_out.begin(run)
    for _ in range(2):
        fan_out.cases([Entry(case_row())])
    fan_out.end(run)
    return run


def test_all_writers_hear_everything_and_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Notes()
    second = Notes()
    assert finished_run(first, second, folder=tmp_path)["exit_status"] == 0
    assert first.calls == second.calls == ["begin", "case", "case", "end"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("status", "order"), [("done", [0, 1]), ("interrupted", [1, 0])])
def test_results_are_stored_before_a_table_is_printed_but_not_after_a_signal(
    tmp_path: Path, status: str, order: list[int]
) -> None:
    ended: list[int] = []

    class Ending(Notes):
        def end(self, run: Mapping[str, Any]) -> None:
            ended.append(writers.index(self))

    writers = [Ending(), Ending()]
    fan_out = FanOut(writers)
    run = {"folder": str(tmp_path), "exit_status": 0, "status": status}
    fan_out.begin(run)
    fan_out.end(run)
    assert ended == order


def test_one_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Notes(
        case=OSError(28, "No space left on device"), end=Unsaved("1 of 2 cases are saved")
    )
    second = Notes()
    (tmp_path / "run.json").write_text('{"exit_status": 0}')
    assert finished_run(first, second, folder=tmp_path)["exit_status"] == 3
    assert first.calls == second.calls == ["begin", "case", "case", "end"]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "commbench: [Errno 28] No space left on device",
        "commbench: 1 of 2 cases are saved",
    ]
    assert '"exit_status": 3' in (tmp_path / "run.json").read_text(), (
        "who started the world reads it there"
    )


@pytest.mark.parametrize(("status", "after"), [(0, 3), (1, 3), (3, 3), (143, 143)])
def test_a_worse_status_stays(tmp_path: Path, status: int, after: int) -> None:
    assert (
        finished_run(Notes(end=Unsaved("x")), folder=tmp_path, status=status)["exit_status"]
        == after
    )
    assert list(tmp_path.iterdir()) == [], "no run.json is made where there was none"


def test_who_can_not_begin_ends_the_run_and_is_not_ended(tmp_path: Path) -> None:
    first = Notes()
    second = Notes(begin=WorldBroken("full"))
    third = Notes()
    fan_out = FanOut([first, second, third])
    run = {"folder": str(tmp_path), "exit_status": 3}
    with pytest.raises(WorldBroken, match="full"):
        fan_out.begin(run)
    fan_out.end(run)
    assert (first.calls, second.calls, third.calls) == (["begin", "end"], ["begin"], [])


def test_a_format_beside_the_table_stores_a_run_that_can_be_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("benchmark=all_reduce", "sizes=[8]", "timing=fixed", "timing.repetitions=20")
    folder = commbench.run(
        "backend=simulated", *words, "writer=[jsonl,console]", f"output={tmp_path}"
    )
    printed = capfd.readouterr()
    assert printed.out.splitlines()[-1] == f"results: {folder}"
    assert "not stored" not in printed.out and "results: " not in printed.err
    assert {path.name for path in folder.iterdir()} >= {"run.json", "cases.jsonl"}
    assert show([str(folder)]) == 0
    assert f"results: {folder}" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["jsonl", "osu"])
def test_a_format_alone_names_the_folder_and_can_be_reported(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (
        "benchmark=all_reduce",
        "sizes=[8]",
        "timing=fixed",
        "timing.repetitions=20",
        f"writer={name}",
    )
    folder = commbench.run("backend=simulated", *words, f"output={tmp_path}")
    out, err = capfd.readouterr()
    assert err.splitlines()[-1] == f"results: {folder}" and str(folder) not in out
    assert load_run(folder)["status"] == "done" and set(
        commbench.load(folder)["message_bytes"]
    ) == {8}
    assert len(read_results([folder]).rows) == len(commbench.load(folder)) > 0


def test_the_rest_of_a_run_that_began_without_pyarrow_joins_its_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("benchmark=all_reduce", "sizes=[8,64]", "timing=fixed", "timing.repetitions=5")
    with monkeypatch.context() as patched:
        patched.setattr("commbench.results.fan_out.is_installed", lambda module: False)
        folder = commbench.run("backend=simulated", *words, f"output={tmp_path}")
    lines = (folder / "cases.jsonl").read_text().splitlines(keepends=True)
    (folder / "cases.jsonl").write_text(lines[0])  # as if it had been killed after its first case
    record = load_run(folder)
    write_json(folder / "run.json", {**record, "status": "running"})
    assert resume([str(folder)]) == 0
    assert not (folder / "cases.parquet").exists()
    assert {row.message_bytes for row in recorded_rows(folder).values()} == {8, 64}
    assert set(commbench.load(folder)["message_bytes"]) == {8, 64}
