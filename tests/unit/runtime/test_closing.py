"""The end of a library after the last result: planted in a rank of mpirun, and in records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from commbench.runtime.closing import closing_text, record_closing

WARNING = "WARNING: IPC handles are still open"
RULER = "-" * 74
IPC_WARNING = (  # as Open MPI prints it
    RULER,
    "The call to cuIpcCloseMemHandle failed. This is a warning and the program",
    "will continue to run.",
    RULER,
)
AFTER = "after the last result the ranks"
# a module of the user's, which each rank imports
SLOW_END = f"""
import atexit, os, sys, time
from commbench.benchmarks.p2p_latency import P2PLatency as Benchmark
def end():  # rank 0 has printed its results when the warning comes
    time.sleep(3.5)
    print({WARNING!r}, file=sys.stderr, flush=True)
if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    atexit.register(end)
"""


def recorded(folder: Path, **values: Any) -> Path:
    ago = datetime.now(timezone.utc) - timedelta(seconds=5)
    run = {"status": "done", "exit_status": 0, "finished_at": ago.isoformat(), **values}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def test_a_rank_that_sleeps_and_warns_in_its_end_is_told(world: Any, tmp_path: Path) -> None:
    (tmp_path / "slow_end.py").write_text(SLOW_END)
    file = tmp_path / "benchmark" / "slow_end.yaml"
    file.parent.mkdir()
    file.write_text("# @package benchmarks.slow_end\n_target_: slow_end.Benchmark\n")
    run = world(
        *("commbench", "--config-dir", str(tmp_path), "allow=[slow_end]", "benchmark=slow_end"),
        *("launcher=mpirun", "backend=tcp", "layout=1x2", "sizes=[8]"),
        *("timing=fixed", "timing.repetitions=5"),
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert run.record["closing"]["printed"] == [WARNING]
    assert 3.5 <= run.record["closing"]["seconds"] < 30
    assert "s to end, and printed 1 line" in run.stderr and WARNING in run.stderr
    assert WARNING in (Path(run.record["folder"]) / "launcher.log").read_text()


def test_a_short_and_silent_end_is_recorded_only(world: Any) -> None:
    run = world("commbench", "backend=gloo", "layout=1x2", "benchmark=barrier", "timing=quick")
    assert run.record["closing"]["printed"] == []
    assert "to end" not in run.stderr


@pytest.mark.parametrize(
    ("seconds", "printed", "text"),
    [
        (0.3, [], None),
        (20.14, [], f"{AFTER} took 20.1 s to end"),
        (1.0, ["a", "b"], f"{AFTER} took 1.0 s to end, and printed 2 lines: a"),
        (None, [], None),
        (None, ["a"], f"{AFTER} printed 1 line: a"),
        (20.3, IPC_WARNING, f"{AFTER} took 20.3 s to end, and printed 4 lines: {IPC_WARNING[1]}"),
        (1.0, [RULER], f"{AFTER} took 1.0 s to end, and printed 1 line: {RULER}"),
    ],
)
def test_what_is_noteworthy(
    seconds: float | None, printed: Sequence[str], text: str | None
) -> None:
    assert closing_text({"seconds": seconds, "printed": printed}) == text


def test_the_time_counts_from_the_end_of_the_run(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    finished = datetime.fromisoformat(json.loads((folder / "run.json").read_text())["finished_at"])
    assert record_closing(folder, ["x"], is_local=True) is not None
    most_s = (datetime.now(timezone.utc) - finished).total_seconds()
    run = json.loads((folder / "run.json").read_text())
    assert 5 <= run["closing"]["seconds"] < most_s + 0.001 and run["exit_status"] == 0


def test_the_clocks_of_two_hosts_give_no_time(tmp_path: Path) -> None:
    assert record_closing(recorded(tmp_path), [], is_local=False) is None
    assert json.loads((tmp_path / "run.json").read_text())["closing"]["seconds"] is None


@pytest.mark.parametrize("values", [{"status": "broken"}, {"finished_at": None}])
def test_a_run_without_an_end_has_none(tmp_path: Path, values: dict[str, Any]) -> None:
    assert record_closing(recorded(tmp_path, **values), ["x"], is_local=True) is None
    assert "closing" not in json.loads((tmp_path / "run.json").read_text())
