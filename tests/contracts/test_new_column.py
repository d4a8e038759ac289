"""A column of a feature is a line in three files: in a copy of the package that has one more, runs
store it, tables and reports show it, and it is loaded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from forked_commands import commands, packages
from places import PACKAGES

LINES = {  # file: the line before it, and the line
    "results/row.py": (
        'error_ulp_rms: float | None = result("payload=rounding: root of the mean square")',
        'error_ulp_mean: float | None = result("payload=rounding: mean distance")',
    ),
    "features/accuracy/findings.py": (
        '"error_ulp_rms": Column(_rms),',
        '"error_ulp_mean": Column(lambda every: 0.125 * len(every)),',
    ),
    "features/accuracy/tables.py": (
        "format_number(sums.error_ulp_rms),",
        "format_number(sums.row.error_ulp_mean),",
    ),
}
HEAD = '"rms\\nulp", '  # of the cell
WORDS = ("backend=gloo", "benchmark=all_reduce", "layout=1x2", "payload=rounding", "sizes=[8]")
FEW = ("timing=fixed", "timing.repetitions=5", "output=runs")


def with_column(folder: Path) -> Path:
    """The folder of a copy of the package that has the column."""
    copy = folder / "tree" / "commbench"
    shutil.copytree(PACKAGES[0], copy)
    for name, (before, line) in LINES.items():
        source = (copy / name).read_text()
        assert source.count(before) == 1
        source = source.replace(before, f"{before}\n{indent(source, before)}{line}")
        (copy / name).write_text(source.replace(HEAD, f'{HEAD}"mean\\nulp", '))
    return copy.parent


def indent(source: str, line: str) -> str:
    (of_line,) = (each for each in source.splitlines() if line in each)
    return of_line.partition(line)[0]


def test_a_new_column_is_stored_shown_and_loaded(tmp_path: Path) -> None:
    tree = with_column(tmp_path)
    env = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{packages()}"}
    program = "import commbench; print(*commbench.load('runs').error_ulp_mean)"
    measured, loaded = (
        subprocess.run(
            [sys.executable, "-S", *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        for words in (["-m", "commbench", *WORDS, *FEW], ["-c", program])
    )
    assert measured.returncode == 0, measured.stderr
    assert loaded.stdout == "0.25\n", loaded.stderr  # of two processes
    for read in commands(tree, tmp_path, ["show", "runs"], ["report", "runs"]):
        assert read.returncode == 0, read.stderr
        assert "rms   mean" in read.stdout
        assert re.search(r"float32 +\S+ +\S+ +0\.250 ", read.stdout)
