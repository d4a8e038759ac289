"""A run that is interrupted and resumed says how far all of it is."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from commbench.__main__ import main
from commbench.measure.recorder import Recorder
from commbench.results.load import find_runs, load_run

SIZES = "sizes=[8,16,32,64,128]"
WORDS = ("backend=simulated", "benchmark=all_reduce", "layout=1x2", "timing=fixed", SIZES)


def interrupted_in_visit(number: int, words: list[str], patch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when a start of the run begins this visit, counted from 0."""
    visits = itertools.count()
    begin_visit = Recorder.begin_visit

    def begun(self: Recorder, planned: object) -> None:
        if next(visits) == number:
            raise KeyboardInterrupt
        begin_visit(self, planned)  # type: ignore[arg-type]

    with patch.context() as own:
        own.setattr(Recorder, "begin_visit", begun)
        assert main(words) == 130


@pytest.mark.usefixtures("outside_any_world")
def test_a_run_that_is_interrupted_twice_counts_the_cases_of_all_its_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_in_visit(1, [*WORDS, f"output={tmp_path}"], monkeypatch)
    (folder,) = find_runs(tmp_path)
    assert "4 of 5 cases not begun" in capsys.readouterr().out
    interrupted_in_visit(2, ["resume", str(folder)], monkeypatch)
    seen = capsys.readouterr()
    assert "2 of 5 cases not begun" in seen.out
    assert "4 cases, " in seen.err, "those of this start"
    assert load_run(folder)["cases"] == 5
    assert main(["resume", str(folder)]) == 0
    assert load_run(folder)["cases"] == 5
