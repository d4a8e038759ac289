"""50 seeded draws through the command itself: its exit status says how it ended, and nobody sees a
traceback."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

DRAWS = 50
SCRIPTS = 1  # the last one goes through the real script
DRAW_S = 20.0
QUICK = ("backend=simulated", "sizes=[8]", "timing=fixed", "timing.repetitions=5", "writer=console")
STATUSES = (0, 1, 2, 3)
VALUES = (
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "nan",
    "[]",
    "{}",
    "[[0,1]]",
    "1x2",
    "8x8",
    "all",
    "auto",
    "'${seed}'",
    "'${nope}'",
    "'\x1b[31m'",
    "'../../x'",
    "99999999999999999999",
    "[a,b]",
    "x",
    "''",
    "8",
    "1KiB",
    "sum",
    "[0,1]",
    "barrier",
    "[all_reduce,barrier]",
    "float16",
    "neighbours",
    "rounds",
    "none",
    "'median_s<1'",
)
KEYS = (
    "backend",
    "benchmark",
    "timing",
    "timing.target",
    "timing.case_s",
    "launcher",
    "budget.total_s",
    "budget.memory_share",
    "layout",
    "dtype",
    "sizes",
    "pairs",
    "schedule",
    "window",
    "streams",
    "reduction",
    "root",
    "in_place",
    "engine",
    "timer",
    "sync",
    "cache",
    "device",
    "cuda_ipc",
    "interface",
    "env.X",
    "trial",
    "bind",
    "expect",
    "preflight",
    "on_error",
    "plan",
    "label",
    "seed",
    "allow",
    "backend.seed",
    "+backend._target_",
    "hydra.mode",
    "nosuch",
)


def draw(number: int) -> list[str]:
    """Words of one command line; every third one only plans."""
    chance = random.Random(number)
    words = [
        f"{chance.choice(KEYS)}={chance.choice(VALUES)}" for _ in range(chance.choice((1, 1, 2)))
    ]
    return [*QUICK, *words, *(["plan=true"] if number % 3 == 0 else [])]


def ended(words: list[str], folder: str) -> tuple[Any, str]:
    """In a process of its own: a draw may start worlds, or leave anything behind."""
    from commbench.__main__ import main
    from commbench.runtime import rank_server

    # this process composes only what it starts
    rank_server.start_rank_server = lambda launcher: None
    os.chdir(folder)
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status: Any = main(words)
        except SystemExit as stop:
            status = stop.code
        except BaseException as error:
            status = repr(error)
    return status, err.getvalue()


def check(words: list[str], status: Any, err: str) -> None:
    assert status in STATUSES and "Traceback" not in err, (words, status, err[-2000:])
    if status == 2:
        assert err.startswith("commbench: ") and len(err.splitlines()) == 1, (words, err)


def test_draws_in_forked_processes_end_as_documented(tmp_path: Path) -> None:
    statuses = set()
    with get_context("spawn").Pool(1) as pool:
        for number in range(DRAWS - SCRIPTS):
            words = draw(number)
            status, err = pool.apply_async(ended, (words, str(tmp_path))).get(timeout=DRAW_S)
            check(words, status, err)
            statuses.add(status)
    assert {0, 2} <= statuses


@pytest.mark.parametrize("number", range(DRAWS - SCRIPTS, DRAWS))
def test_draws_through_the_script_end_as_documented(number: int, tmp_path: Path) -> None:
    words = draw(number)
    begin = time.monotonic()
    command = [str(Path(sys.executable).with_name("commbench")), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=2 * DRAW_S, check=False
    )
    check(words, done.returncode, done.stderr)
    assert time.monotonic() - begin < DRAW_S


def test_no_word_but_output_names_a_place_to_write(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    trap = "'../../x'"
    words = [
        *QUICK[:4],
        "writer=[parquet,jsonl,console]",
        f"label={trap}",
        f"env.X={trap}",
        "output=here",
    ]
    status, err = ended(words, str(inside))
    assert status == 0, err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert [path.name for path in inside.iterdir()] == ["here"]
