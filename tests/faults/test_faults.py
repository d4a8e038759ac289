"""A few faults in real worlds, and that the table's judge sees what is lost, late or left over."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from combination import GIVEN, HOSTS, OWN, PHASES, SIGNALS, Combination, quick, table
from scene import Scene, play
from sizes import in_order
from stack import lacking
from traces import TOKEN, Traces
from verdict import judge

import commbench

LONG = pytest.mark.long  # the first stands for all in `make test`


@pytest.mark.parametrize(
    "combination",
    [
        combination if at < 1 else pytest.param(combination, marks=LONG)
        for at, combination in enumerate(quick())
    ],
    ids=str,
)
def test_nothing_is_lost_and_the_end_comes_in_time(
    combination: Combination, tmp_path: Path
) -> None:
    reason = lacking(combination.world)
    if reason is not None:
        pytest.skip(reason)
    scene = play(combination, tmp_path)
    verdict = judge(scene)
    assert verdict.wrong == [], f"{verdict}\n{scene.stdout[-2000:]}\n{scene.stderr[-4000:]}"
    assert verdict.times == combination.times and verdict.lost == 0


def test_every_world_phase_and_signal_is_in_the_table() -> None:
    whole = list(table())
    assert {combination.world for combination in whole} == {*OWN, *GIVEN, *HOSTS}
    assert {combination.phase for combination in whole} == set(PHASES)
    assert set(SIGNALS) < {combination.fault for combination in whole}
    assert set(quick()) <= set(whole)


# ---------------------------------------------------------------- the judge


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run that had a rank without memory, had there been one: five cases, none of them
    skipped."""
    folder = tmp_path_factory.mktemp("finished")
    combination = Combination("kill", "in a call", 1, "gloo")
    sizes = in_order(combination)
    words = [
        "backend=simulated",
        "writer=parquet",
        "timing=quick",
        "benchmark=[all_reduce]",
        "layout=1x2",
    ]
    commbench.run(*words, f"sizes={sizes}", f"output={folder / 'results'}")
    lines = [
        (
            101.5,
            (
                "commbench: rank 1 on a (pid 7) was killed by SIGKILL, in x; fresh"
                " ranks measure the rest"
            ),
        )
    ]
    (folder / "out-0").write_text(f"results: {folder / 'results'}")
    return Scene(
        combination, sizes, folder, begun=90.0, ended=115.0, status=0, marks=[100.0], lines=lines
    )


def test_a_good_end_has_nothing_wrong(finished: Scene) -> None:
    verdict = judge(finished)
    assert (verdict.wrong, verdict.lost, verdict.finished, verdict.seconds) == ([], 0, 3, 1.5)
    assert verdict.message.startswith("rank 1 on a (pid 7) was killed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": 1}, "exit status 1"),
        ({"status": None}, "did not end by itself"),
        ({"marks": []}, "happened 0 times"),
        ({"marks": [80.0]}, "took 21.5 s"),
        ({"left": ["process 7 (python)"]}, "left over: process 7"),
        (
            {"lines": [(101.5, "commbench: rank 1 on a (pid 7) was killed by SIGKILL")] * 2},
            "2 lines of commbench",
        ),
        ({"lines": [(101.5, "terminate called")]}, "stderr also says 'terminate called'"),
        (
            {"combination": Combination("SIGTERM", "in a call", 0, "gloo")},
            "no line says how to resume",
        ),
        (
            {"lines": [(101.5, "commbench: it broke. fresh ranks measure the remaining cases")]},
            "no line names a rank",
        ),
        ({"sizes": [8, 16, 48, 32, 24]}, "lost: 48 B is nowhere"),
        (
            {"combination": Combination("kill", "in a call", 1, "gloo", times=2, restarts=2)},
            "32 B is ok, must be failed",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_end_is_seen(finished: Scene, change: dict[str, object], message: str) -> None:
    verdict = judge(replace(finished, **change))  # type: ignore[arg-type]
    assert [text for text in verdict.wrong if message in text], verdict.wrong
    assert verdict.lost == ("lost" in message)


@pytest.mark.long
def test_what_is_left_over_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traces.GONE_S", 0.2)
    shared = Path("/dev/shm") / f"commbench-test-{os.getpid()}"
    code = (
        "import mmap, pathlib, socket, sys, time\nfile = open(sys.argv[1],"
        " 'w+b')\nfile.truncate(mmap.PAGESIZE)\nheld = mmap.mmap(file.fileno(), 0)\nserver ="
        " socket.create_server(('127.0.0.1', 0))\nprint(server.getsockname()[1],"
        " flush=True)\ntime.sleep(60)"
    )
    traces = Traces(str(tmp_path))
    environment = {**os.environ, TOKEN: traces.token}
    command = [sys.executable, "-c", code, str(shared)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        traces.look()
        assert traces.pids() == [process.pid]
        left = traces.left()
        assert len(left) == 3 and left[1:] == [str(shared), f"port {port}"]
        traces.end()
        process.wait(10)
    assert traces.left() == [str(shared)]
    shared.unlink()
    assert traces.left() == []
