"""Notebooks: they run on the results beside them and keep their outputs, which tell nothing about
whose machine it was."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from generated_results import run_of
from loops import for_each
from places import ROOT

from commbench.results.load import read_cases, read_rows

HERE = ROOT / "notebooks"
FILES = sorted(HERE.glob("*.ipynb"))
CASES = [file for file in sorted((HERE / "data").glob("*.parquet")) if "counters" not in file.name]
MOST_BYTES = 2**20
PRIVATE = re.compile(
    r"/(?:home|root|tmp|work|usr|opt|var|Users)/|\b\d{1,3}(?:\.\d{1,3}){3}\b|hostname|boot_id"
)


def module(name: str) -> ModuleType:
    """A script of that folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def read(path: Path) -> nbformat.NotebookNode:
    book: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    return book


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of jupyter's own
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_runs_and_gives_what_it_keeps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    made = module("execute").execute(path)
    kept = read(path)
    for new, old in zip(made.cells, kept.cells, strict=True):
        assert new.source == old.source
        assert texts(new) == texts(old), (
            f"run python notebooks/execute.py {path.stem}, and look at it"
        )


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell prints, figures by their number."""
    outputs = cell.get("outputs", ())
    return [
        str(output.get("text") or output.get("data", {}).get("text/plain")) for output in outputs
    ]


@for_each("path", FILES)
def test_outputs_are_kept_and_no_cell_complains(path: Path) -> None:
    outputs = [output for cell in read(path).cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert all(output.name == "stdout" for output in outputs if output.output_type == "stream")
    figures = [
        base64.b64decode(output.data["image/png"])
        for output in outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(figures) >= 2
    assert all(figure.startswith(b"\x89PNG") and len(figure) > 5000 for figure in figures)


# ---------------------------------------------------------------- the results beside them


def test_the_results_are_small() -> None:
    assert sum(file.stat().st_size for file in (HERE / "data").iterdir()) < MOST_BYTES


def test_notebooks_and_their_results_name_no_machine_or_user() -> None:
    for path in FILES:
        book = json.loads(path.read_text())
        for cell in book["cells"]:
            for output in cell.get("outputs", ()):
                output.get("data", {}).pop("image/png", None)
        assert not PRIVATE.findall(json.dumps(book)), path
    sources, problems = read_cases(CASES)
    assert problems == []
    for source in sources:
        assert not PRIVATE.findall(json.dumps(source.records)), source.path
    frame = read_rows(CASES)
    assert frame["hosts"].isna().all()
    for name in frame.select_dtypes(include=["object", "str"]).columns.difference(["env"]):
        assert not any(PRIVATE.search(str(value)) for value in frame[name]), name


def test_the_results_are_of_real_runs() -> None:
    cases = read_rows(CASES)
    assert "simulated" not in set(cases.backend)
    assert set(cases.status) == {"ok"} and (cases.wrong_elements == 0).all()


def test_the_quiz_is_shown_with_both_kinds_of_buffers() -> None:
    cells = read(HERE / "02_backends_and_layouts.ipynb").cells
    (shown,) = [text for cell in cells for text in texts(cell) if "wrong_elements" in text]
    assert {"own", "shared"} <= set(shown.split())


def test_kept_results_have_the_rows_of_all_runs_and_no_host_name(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for number in (0, 1):
        run_of(results, number, hostname="secret7")
    module("keep_results").keep("both", [str(results)], folder=tmp_path)
    kept = tmp_path / "both.parquet"
    assert read_rows([kept]).equals(read_rows([results]))
    (source,), _ = read_cases([kept])
    assert len(source.records) == 2 and b"secret7" not in kept.read_bytes()
