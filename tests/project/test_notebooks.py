"""Notebooks: they run on their own results, show what they say, and tell nothing about whose
machine it was."""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from loops import for_each
from places import ROOT

from commbench.analysis.reference import published
from commbench.report.compare_text import read_ab_results
from commbench.results.load import find_runs, read_rows

HERE = ROOT / "notebooks"
FILES = sorted(HERE.glob("*.ipynb"))
NAMES = [
    "01_quickstart",
    "02_backends_and_layouts",
    "03_links_and_topology",
    "04_stability",
    "05_compare",
    "06_replay",
]
# workloads of jobs and what holds anywhere: nobody has published a measurement
UNPUBLISHED = {"moe_dispatch", "overlap", "fsdp_step", "tp_dp", "guidelines", "acceptance"}
EXPERIMENTS = sorted(
    {file.stem for file in (HERE.parent / "conf" / "experiment").glob("*.yaml")} - UNPUBLISHED
)
MAY_IMPORT = {"pathlib", "numpy", "pandas", "matplotlib", "notebook_figures"}
READING = tuple(
    f"commbench.{room}." for room in ("analysis", "report", "results", "replay", "stats")
)
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


def code(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def test_they_are_the_six() -> None:
    assert [path.stem for path in FILES] == NAMES


@pytest.mark.filterwarnings("ignore")  # of jupyter's own
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == NAMES[0] else pytest.mark.long) for path in FILES],
    ids=lambda path: path.stem,
)
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
    outputs = [output for cell in code(path) for output in cell.outputs]
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_imports_what_reads_results_only(path: Path) -> None:
    for cell in code(path):
        for node in ast.walk(ast.parse(cell.source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                reads = name.startswith(READING)
                assert reads or name.split(".")[0] in MAY_IMPORT, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_notebook_names_the_machine_of_its_results_in_one_line(path: Path) -> None:
    first = code(path)[0].source
    assert re.fullmatch(r'RESULTS = "data[\w/]*"  # yours: .+', first)
    assert "2-core x86-64 cloud VM" in read(path).cells[0].source


def test_every_experiment_has_a_section_with_what_was_published() -> None:
    text = "\n".join(cell.source for path in FILES for cell in read(path).cells)
    for name in EXPERIMENTS:
        assert re.search(rf"^#.*`{name}`|^`{name}` is", text, re.MULTILINE), name
        compared = f'published("{name}")' in text
        assert compared or name == "mlbench_allreduce", name
        if compared:
            assert len(published(name))
    assert "**Published / ours / ratio: none.**" in text  # and why


# ---------------------------------------------------------------- result sets


def test_the_sets_are_small() -> None:
    assert (
        sum(file.stat().st_size for file in (HERE / "data").rglob("*") if file.is_file())
        < MOST_BYTES
    )


def test_notebooks_and_their_data_name_no_machine_or_user() -> None:
    for file in [*FILES, *(HERE / "data").rglob("*.json")]:
        book = json.loads(file.read_text())
        for cell in book.get("cells", ()):
            for output in cell.get("outputs", ()):
                output.get("data", {}).pop("image/png", None)
        assert not PRIVATE.findall(json.dumps(book)), file
    for run in find_runs(HERE / "data"):
        for table in ("cases", "counters"):
            frame = read_rows([run], table)
            for name in frame.select_dtypes(include=["object", "str"]):
                if name not in ("env", "warnings"):
                    texts = map(str, frame[name].dropna().drop_duplicates())
                    assert not any(map(PRIVATE.search, texts)), (run, name)


def test_the_sets_are_of_real_runs() -> None:
    cases = read_rows([HERE / "data"])
    assert "simulated" not in set(cases.backend)
    assert (cases[cases.status == "ok"].wrong_elements == 0).all()
    assert set(cases.status) == {"ok"}


def test_what_is_kept_can_be_read_as_before(tmp_path: Path) -> None:
    source = HERE / "data" / "openbsd_soak"
    module("keep_results").keep(str(source), str(tmp_path), samples=False, counters="interval.")
    for table in ("cases", "counters"):
        before = read_rows([source], table)
        after = read_rows([tmp_path], table)
        assert before.drop(columns="env", errors="ignore").equals(
            after.drop(columns="env", errors="ignore")
        )


def test_a_comparison_is_kept_with_its_sides_and_its_record(tmp_path: Path) -> None:
    source = HERE / "data" / "ab"
    module("keep_results").keep(str(source), str(tmp_path / "ab"), samples=False, counters="")
    (before,), _ = read_ab_results([source])
    (after,), problems = read_ab_results([tmp_path / "ab"])
    assert problems == [] and after.sentence() == before.sentence()
    assert after.frame.equals(before.frame)
