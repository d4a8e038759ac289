"""Real runs in a real terminal: the bar moves, the table is whole, and nothing of either is left in
the other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import in_terminal

ERASE = "\r\x1b[2K"
SOAK = (
    "benchmark=all_reduce",
    "sizes=[8,1KiB]",
    "timing=soak",
    "timing.duration_s=0.8",
    "timing.warmup_s=0",
)
QUICK = (
    "benchmark=all_reduce",
    "sizes=[8,1KiB]",
    "timing=fixed",
    "timing.repetitions=8",
    "timing.warmup_s=0",
)


def without_color(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("backend", "columns", "color"),
    [("gloo", 60, True), pytest.param("mpi", 80, False, marks=pytest.mark.long)],
)
def test_a_terminal_shows_progress_and_then_the_whole_table(
    warm_executable: Path, tmp_path: Path, backend: str, columns: int, color: bool
) -> None:
    root = {
        f"{kind}_ALLOW_RUN_AS_ROOT{more}": "1"
        for kind in ("OMPI", "PRTE")
        for more in ("", "_CONFIRM")
    }
    environ = {
        **os.environ,
        **root,
        "TERM": "xterm-256color",
        **({} if color else {"NO_COLOR": "1"}),
    }
    words = [
        str(warm_executable),
        "-m",
        "commbench",
        f"backend={backend}",
        *SOAK,
        f"output={tmp_path}",
    ]
    status, text = in_terminal(words, columns, environ)
    assert status == 0, text
    assert ("\x1b[1m" in text) == color
    plain = without_color(text)
    drawn = re.findall(re.escape(ERASE) + r"((?:\[[#-]{10}\]|starting )[^\r\n]+)", plain)
    assert any(line.startswith(f"starting 2 ranks of {backend}  0:") for line in drawn)
    assert any("of 2 cases  0:" in line and "all_reduce 1x2" in line for line in drawn)
    assert max(map(len, drawn)) <= columns
    lines = [line.rpartition(ERASE)[2] for line in plain.split("\n")]  # what stays
    table = [line.split() for line in lines if re.match("all_reduce +[0-9]+ [KB]", line)]
    assert [words[1:3] for words in table] == [["8", "B"], ["1", "KiB"]]
    assert not any("[#" in line or "[--" in line or "\x1b" in line for line in lines)
    (folder,) = tmp_path.iterdir()
    assert lines[-2] == f"results: {folder}"
    # a path is never folded, nor is what other processes' load makes a run say
    whole = [line for line in lines if str(folder) in line or "machine is busy" in line]
    assert max(len(line) for line in lines if line not in whole) <= columns
    assert sum("time line of" in line for line in lines) == 2
    files = {"run.json", "cases.parquet", "samples.parquet", "counters.parquet"}
    assert {file.name for file in folder.iterdir()} == files


def test_a_file_has_lines_to_search_and_no_bar(world: Callable[..., Any]) -> None:
    run = world(
        "commbench", "backend=mpi", *QUICK, env={"LC_ALL": "C", "PYTHONUTF8": "0", "TERM": "xterm"}
    )
    assert "\x1b" not in run.stdout and "\r" not in run.stdout and "starting" not in run.stderr
    rows = [line.split() for line in run.stdout.splitlines() if line.startswith("all_reduce")]
    assert [row[1:3] for row in rows] == [["8", "B"], ["1", "KiB"]]


def test_a_sweep_over_backends_ends_with_one_table_and_prints_no_number_twice(
    world: Callable[..., Any],
) -> None:
    run = world("commbench", "-m", "backend=gloo,mpi", *QUICK, "label=x")
    lines = run.stdout.splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith("all_reduce")]
    assert {"gloo", "mpi"} <= set(lines[at].split())
    assert [line.split()[:2] for line in lines[at + 1 : at + 3]] == [["8", "B"], ["1", "KiB"]]
    assert sum(line.startswith("results: ") for line in lines) == 2
    assert not any("jobs, " in line for line in lines)
