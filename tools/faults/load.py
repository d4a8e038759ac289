"""Load: many ranks, many cases, a long run, many runs at once. All must end by themselves with
correct results."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scene import TIMING
from traces import TOKEN, Traces

from commbench.results.load import find_runs, load_run, read_rows

LIMIT_S = 1200.0  # of a section, plus the soak's own time
SOAK_S = 300.0
RANKS = 64
CASES = 1000
RUNS = 20
MIB = 2**20


@dataclass(frozen=True)
class Burden:
    """A line of the table; `wrong` is empty if everything is as it must be."""

    name: str
    seconds: float
    result: str
    wrong: str

    def __str__(self) -> str:
        return (
            f"{'BAD ' if self.wrong else 'ok  '}{self.name:36} {self.seconds:6.0f} s  {self.result}"
            f"  {self.wrong}"
        )


def burdens(soak_s: float) -> Iterator[Burden]:
    """Run all sections one after the other."""
    names = ("barrier", "all_reduce", "broadcast")
    wide = [f"benchmark=[{','.join(names)}]", f"layout=1x{RANKS}", "sizes=[8,1024]", *TIMING]
    sizes = ",".join(str(8 * number) for number in range(1, CASES + 1))
    yield _burden(
        f"{RANKS} gloo ranks",
        [wide],
        LIMIT_S,
        lambda cases: "" if len(cases) == 5 else "not 5 cases",
    )
    many = ["benchmark=[all_reduce]", "layout=1x2", f"sizes=[{sizes}]", *TIMING]
    yield _burden(
        f"{CASES} cases in one world",
        [many],
        LIMIT_S,
        lambda cases: "" if len(cases) == CASES else "too few",
    )
    soak = [
        "benchmark=[all_reduce]",
        "layout=1x2",
        "sizes=[1024]",
        "timing=soak",
        f"timing.duration_s={soak_s:g}",
    ]
    yield _burden(
        f"a soak of {soak_s:g} s", [soak], LIMIT_S + soak_s, lambda cases: _lasted(cases, soak_s)
    )
    short = ["benchmark=[p2p_latency,all_reduce]", "layout=1x2", "sizes=[8,1024]", *TIMING]
    counted = f"{RUNS} runs at once"
    yield _burden(
        counted,
        [short] * RUNS,
        LIMIT_S,
        lambda cases: "" if len(cases) == 4 * RUNS else "too few cases",
    )


def _lasted(cases: pd.DataFrame, soak_s: float) -> str:
    reasons = ", ".join(cases.stop_reason)
    return "" if reasons == "duration" else f"it stopped by {reasons}, not after {soak_s:g} s"


def _burden(
    name: str, commands: list[list[str]], limit_s: float, check: Callable[[pd.DataFrame], str]
) -> Burden:
    traces = Traces(secrets.token_hex(8))
    with tempfile.TemporaryDirectory(prefix="commbench-load-") as folder:
        output = Path(folder) / "results"
        begin = time.monotonic()
        processes = [
            _start(words, output, traces.token, Path(folder, f"err-{at}"))
            for at, words in enumerate(commands)
        ]
        try:
            _wait(processes, begin + limit_s, traces)
            seconds = time.monotonic() - begin
            left = traces.left()
        finally:
            traces.end()
            statuses = [process.wait() for process in processes]
        wrong = [f"exit statuses {sorted(set(statuses))}"] if any(statuses) else []
        wrong += [f"left over: {', '.join(left)}"] if left else []
        if len(find_runs(output)) != len(commands):
            return Burden(name, seconds, "", "; ".join([*wrong, "results are missing"]))
        cases = read_rows([output])
        wrong += (
            []
            if set(cases.status) == {"ok"}
            else [f"cases are {cases.status.value_counts().to_dict()}"]
        )
        wrong += [text for text in [check(cases)] if text]
        return Burden(name, seconds, _result(output, cases), "; ".join(wrong))


def _start(words: list[str], output: Path, token: str, errors: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {TOKEN: token, "RES_OPTIONS": "timeout:1 attempts:1"}
    command = [
        sys.executable,
        "-m",
        "commbench",
        "backend=gloo",
        *words,
        f"output={output}",
        "budget.late_s=300",
    ]
    with errors.open("wb") as err:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
        )


def _wait(processes: list[subprocess.Popen[bytes]], until: float, traces: Traces) -> None:
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        traces.look()
        time.sleep(2.0)


def _result(output: Path, cases: pd.DataFrame) -> str:
    """Counts of runs, cases and repetitions, and the peak memory of rank 0."""
    peak = max(load_run(run)["memory"]["peak_bytes"] for run in find_runs(output)) / MIB
    wrong = int(cases.wrong_elements.sum())
    amount = int(cases.repetitions.sum())
    runs = len(find_runs(output))
    return (
        f"{runs} run{'s' * (runs > 1)}, {len(cases)} cases, {amount:,} repetitions, {wrong} wrong"
        f" elements, rank 0 at most {peak:.0f} MiB"
    )
