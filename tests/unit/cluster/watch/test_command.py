"""`commbench watch` turn by turn on a simulated machine whose latency the test changes, and what it
refuses."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from generated_results import with_column
from small_disk import Disk, small_disk

from commbench.__main__ import main
from commbench.cli.run import run_launch
from commbench.cluster.baseline import fresh_launches
from commbench.cluster.baseline.store import stored_runs
from commbench.cluster.baseline.writer import add_runs
from commbench.cluster.search.command import DEFAULTS
from commbench.cluster.watch import command as watch_command
from commbench.cluster.watch import runs
from commbench.cluster.watch.command import next_due_s, watch_options
from commbench.cluster.watch.rehearsal import YoungStore
from commbench.cluster.watch.state import WATCH_FOLDER, read_state, state_path
from commbench.core.errors import ConfigError
from commbench.measure import run_record
from commbench.measure.time_limits import TotalBudget
from commbench.results import run_folder
from commbench.results.load import find_runs, load_run
from commbench.runtime.folder_lock import locked

pytestmark = pytest.mark.usefixtures("outside_any_world")
# each launch has another noise, of about 0.02 / sqrt(10) in a median
SUITE = (
    "backend=simulated",
    "backend.seed=${trial}",
    "backend.model.noise=0.02",
    "benchmark=[all_reduce,p2p_latency]",
    "sizes=[8,64]",
    "timing=fixed",
    "timing.repetitions=10",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
)
SEARCH = ("backend=simulated", "layout=8x1", "schedule=rounds", "benchmark=p2p_latency")
RUNS = 6
CHANGE = 1.3
Turn = Callable[..., int]


def take_turn(store: Path, *options: str) -> int:
    return main(["watch", "--baseline", str(store), "--once", *SUITE, *options])


def scale(run: Path, factor: float, message_bytes: int | None = None) -> None:
    """Multiply the times of a stored run, of one size or of all."""
    path = run / "cases.parquet"
    rows = pq.read_table(path)
    sizes = rows["message_bytes"].to_pylist()
    medians_s = [
        median_s * (factor if message_bytes in (None, size) else 1.0)
        for median_s, size in zip(rows["median_s"].to_pylist(), sizes, strict=True)
    ]
    pq.write_table(with_column(rows, "median_s", medians_s), path)


def repeat(store: Path, number: int, factor: float) -> Path:
    """The last run of a store once more, as if it had been an earlier one with times so much
    longer."""
    last = stored_runs(store)[-1]
    copy = last.with_name(f"20260101T0000{number:02}.000000-0000")
    shutil.copytree(last, copy)
    record = json.loads((copy / "run.json").read_text()) | {"run_id": copy.name}
    (copy / "run.json").write_text(json.dumps(record))
    rows = pq.read_table(copy / "cases.parquet")
    pq.write_table(with_column(rows, "run_id", copy.name), copy / "cases.parquet")
    scale(copy, factor)
    return copy


@pytest.fixture
def turn(store: Path) -> Turn:
    """turn("--fresh", "2"): the exit status of a turn with `store`."""
    return partial(take_turn, store)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store after RUNS healthy turns, all but one of which are copies; each test copies it."""
    store = tmp_path_factory.mktemp("filled") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commbench.runtime.rank_server.start_rank_server", lambda launcher: None)
        assert take_turn(store) == 4, "a first run gives no verdict"
    for number in range(RUNS - 1):
        repeat(store, number, 1 + 0.002 * (number - 2))
    return store


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "store"))


def make_faster(store: Path, factor: float, message_bytes: int | None = None) -> None:
    """Now the machine is slower than all runs of the store, by this factor."""
    for run in stored_runs(store):
        scale(run, 1 / factor, message_bytes)


def set_kernel(store: Path, version: str) -> None:
    """In the records of all runs of the store."""
    for run in stored_runs(store):
        record = json.loads((run / "run.json").read_text())
        record["provenance"]["nodes"][0]["host.kernel"] = version
        (run / "run.json").write_text(json.dumps(record))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only error on stderr, which is the last line."""
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("commbench: ") for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines[-1]


# ---------------------------------------------------------------- turns


def test_a_healthy_run_is_moved_to_the_store_and_nothing_else_is_left(
    store: Path, turn: Turn
) -> None:
    assert turn() == 0
    assert len(stored_runs(store)) == RUNS + 1
    assert sorted(path.name for path in (store / WATCH_FOLDER).rglob("*") if path.is_file()) == [
        "state.json"
    ]
    state = read_state(store)
    assert state is not None
    assert (state.launches, state.changes) == (2, {})


def test_a_change_is_shown_lasts_and_ends(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    make_faster(store, CHANGE)
    assert turn("--fresh", "1") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert ": 4 of 4 cases, the farthest " in " ".join(out.split())
    host = re.escape(socket.gethostname())
    assert re.search(rf"all_reduce 1x2 64 B: SLOWER 1\.[23]\d* x since 20\S+, on {host}", out)
    assert len(stored_runs(store)) == RUNS, "what shows a change is no baseline"
    changed = find_runs(store / WATCH_FOLDER / "changed")
    assert len(changed) == 2, "the run, and the fresh launch that confirms it"
    state = read_state(store)
    assert state is not None
    assert {change.verdict for change in state.changes.values()} == {"SLOWER"}
    assert {change.since_run for change in state.changes.values()} == {changed[0].name}
    # it lasts: nothing is measured again
    assert turn("--fresh", "1") == 1
    assert "4 of 4 cases, the farthest " in " ".join(capsys.readouterr().out.split())
    again = read_state(store)
    assert again is not None
    assert again.launches == state.launches + 1
    assert again.changes == state.changes
    # it ends
    make_faster(store, 1 / CHANGE)
    assert turn("--fresh", "1") == 0
    assert "no longer SLOWER" in capsys.readouterr().out
    assert len(stored_runs(store)) == RUNS + 1
    ended = read_state(store)
    assert ended is not None
    assert ended.changes == {}


def test_a_quiet_turn_prints_only_what_has_changed(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*options: str, status: int) -> str:
        assert turn("--quiet", "--fresh", "1", *options) == status
        return "".join(capsys.readouterr())

    assert printed(status=0) == ""
    make_faster(store, CHANGE)
    assert "4 of 4 cases, the farthest " in " ".join(printed(status=1).split())
    assert printed(status=1) == "", "it lasts"
    make_faster(store, 1 / CHANGE)
    assert "no longer SLOWER" in " ".join(printed(status=0).split())
    monkeypatch.setattr(TotalBudget, "end_reason", lambda self, later_s=0.0: "it is spent")
    assert "4 cases were not measured: it is spent" in " ".join(printed(status=4).split())


def test_the_first_turns_of_a_store_are_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert take_turn(tmp_path / "store", "--quiet") == 4
    assert "".join(capsys.readouterr()) == ""


def test_a_planted_slow_node_is_told_from_its_turn_on_with_its_cause(
    turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsal = ("--plant", "3:backend.model.slow_node=0")
    rehearsal += ("--plant", f"3:backend.model.slow_factor={CHANGE}", "--fresh", "1")
    assert turn(*rehearsal) == 0, "the second turn of this store"
    capsys.readouterr()
    assert turn(*rehearsal) == 1
    out = " ".join(capsys.readouterr().out.split())
    found = re.search(r"4 of 4 cases, the farthest ([\d.]+) x", out)
    assert found and float(found[1]) == pytest.approx(CHANGE, rel=0.02)
    assert f"config.backend.model.slow_factor: 1.0 -> {CHANGE}" in out


def test_the_first_line_names_the_node_that_has_become_slower_until_it_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in (("timing.case_s", "0.02"), ("sizes", "[8,64]"), ("window", "2")):
        monkeypatch.setitem(DEFAULTS, key, value)
    store = tmp_path / "store"
    words = ("layout=4x1", "benchmark=all_reduce", "backend.model.slow_node=2", "--fresh", "1")
    words = (*words, "backend.model.slow_factor=${oc.env:FACTOR}")

    def told(factor: float) -> str:
        monkeypatch.setenv("FACTOR", str(factor))
        capsys.readouterr()
        take_turn(store, *words)
        return " ".join(capsys.readouterr().out.split())

    told(1.0001)
    for number in range(RUNS - 1):
        repeat(store, number, 1 + 0.002 * (number - 2))
    first = r"watch: [^a-z]* UTC: node2: SLOWER since .*: 2 of 2 cases, the farthest \S* x "
    assert re.match(
        f"{first}SLOWER: node2; Slurm: --exclude=node2; Kubernetes: kubectl cordon node2 node2:"
        " sends, receives, latency take .* next: commbench locate backend=simulated ",
        told(2.0),
    )
    assert re.match(f"{first}all_reduce", told(2.0))
    assert "node2" not in told(1.0001)


@pytest.mark.parametrize("factor", [CHANGE, 1.001])
def test_a_rehearsal_leaves_the_store_and_its_state_as_they_are(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    """Also where the planted change is too small to be told."""
    before = tree(store)
    planted = f"backend.model.slow_factor={factor}"
    rehearsal = ("--plant", "1:backend.model.slow_node=0", "--plant", f"1:{planted}")
    for _ in range(2):
        assert turn(*rehearsal, "--fresh", "1") == (1 if factor == CHANGE else 0)
        out = " ".join(capsys.readouterr().out.split())
        assert f"rehearsal with backend.model.slow_node=0 {planted}: this turn does not" in out
    after = tree(store)
    assert {name: text for name, text in after.items() if name in before} == before
    assert all(name.startswith("watch/runs/") for name in after.keys() - before.keys())
    assert turn() == 0, "the change was not real"


@pytest.mark.parametrize("when", [("--once",), ("--every", "1h")])
def test_a_rehearsal_that_begins_in_a_young_store_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], when: tuple[str, ...]
) -> None:
    rehearsal = ("--plant", "3:backend.model.latency_s=1")
    assert main(["watch", "--baseline", str(tmp_path / "young"), *when, *SUITE, *rehearsal]) == 2
    assert one_line(capsys) == (
        "commbench: --plant begins with turn 3, when the store has at most 2 healthy launches of a"
        " case; a change is told from 5 on: begin with turn 6"
    )
    assert not stored_runs(tmp_path / "young")


def test_turns_that_are_taken_until_a_rehearsal_begins_make_the_store_old_enough(
    tmp_path: Path,
) -> None:
    assert take_turn(tmp_path / "young", "--plant", "6:backend.model.latency_s=1") == 4


def test_a_rehearsal_that_is_refused_later_ends_the_watch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Turns before it were not healthy."""
    turns: list[float] = []

    def take(options: Any) -> int:
        turns.append(0.0)
        if len(turns) == 3:
            raise YoungStore("too young")
        return 0

    monkeypatch.setattr(watch_command, "time", Clock())
    monkeypatch.setattr(watch_command, "jobs_in_the_way", lambda: None)
    monkeypatch.setattr(watch_command, "watch_turn", take)
    words = ["watch", "backend=simulated", "--baseline", str(tmp_path / "s"), "--every", "1h"]
    assert main(words) == 2
    assert len(turns) == 3 and "commbench: too young" in capsys.readouterr().err


def test_fresh_launches_measure_only_what_is_suspected(
    store: Path, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[list[str]] = []

    def recorded(words: list[str], config_dir: str | None) -> int:
        launched.append(words)
        return run_launch(words, config_dir)

    monkeypatch.setattr(fresh_launches, "run_launch", recorded)
    make_faster(store, CHANGE, message_bytes=64)
    assert turn("--fresh", "2") == 1
    first, *fresh = launched
    assert "sizes=[8,64]" in first
    assert len(fresh) == 2
    for words in fresh:
        assert "sizes=[64]" in words
        assert "sizes=[8,64]" not in words
    numbers = [word for words in launched for word in words if word.startswith("trial=")]
    assert len(set(numbers)) == 3


def test_a_run_that_showed_the_change_unnoticed_leaves_the_store(store: Path, turn: Turn) -> None:
    """It is the last of 21, and was a little faster than the machine is now."""
    for number in range(RUNS, 20):
        repeat(store, number, 1 + 0.002 * (number % 5 - 2))
    make_faster(store, 1.13)
    late = stored_runs(store)[-1]
    scale(late, 1.1)
    assert turn("--fresh", "1") == 1
    state = read_state(store)
    assert state is not None
    assert {change.since_run for change in state.changes.values()} == {late.name}
    assert len(stored_runs(store)) == 19
    changed = find_runs(store / WATCH_FOLDER / "changed")
    assert changed[0].name == late.name
    assert len(changed) == 3


def test_a_changed_run_that_the_user_adds_stays_in_the_store(store: Path, turn: Turn) -> None:
    """As where a new driver is faster, and that is to be what is healthy."""
    for number in range(RUNS, 20):
        repeat(store, number, 1 + 0.002 * (number % 5 - 2))
    make_faster(store, 1 / CHANGE)
    assert turn("--fresh", "1") == 1
    changed = find_runs(store / WATCH_FOLDER / "changed")[0]
    assert [run.name for run in add_runs(store, [changed]).added] == [changed.name]
    assert turn("--fresh", "1") == 1, "one run among 20 does not make it normal"
    assert changed.name in [run.name for run in stored_runs(store)]


def set_clock(patch: pytest.MonkeyPatch, hours: int) -> None:
    """The clock of this process is wrong by so many hours."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: timezone | None = None) -> Clock:  # type: ignore[override]
            return cls.fromtimestamp(datetime.now(tz).timestamp() + 3600 * hours, tz)

    for module in (run_folder, run_record):
        patch.setattr(module, "datetime", Clock)


def test_turns_are_in_their_order_though_the_clock_goes_back(
    store: Path,
    turn: Turn,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first turn of a change seems to be an hour before the last healthy one."""
    assert turn() == 0
    make_faster(store, CHANGE)
    with monkeypatch.context() as patch:
        set_clock(patch, -1)
        assert turn("--fresh", "1") == 1
    assert "the clock was up to 60 min behind the run before" in capsys.readouterr().out
    state = read_state(store)
    assert turn("--fresh", "1") == 1
    later = read_state(store)
    assert state is not None
    assert later is not None
    assert later.changes == state.changes
    assert len(stored_runs(store)) == RUNS + 1


def test_a_healthy_run_dated_in_the_future_is_before_a_change(
    store: Path,
    turn: Turn,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        set_clock(patch, 24)
        assert turn() == 0
    make_faster(store, CHANGE)
    set_kernel(store, "5.10.0-old")
    assert turn("--fresh", "1") == 1
    assert "host.kernel: 5.10.0-old ->" in " ".join(capsys.readouterr().out.split())


def test_what_else_has_changed_is_shown(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    make_faster(store, CHANGE)
    set_kernel(store, "5.10.0-old")
    assert turn("--fresh", "1") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"changed with 20\S+: (\S+: .*)?host.kernel: 5\.10\.0-old ->", out)
    assert out.count("host.kernel") == 1, "once for all cases"


def test_other_bits_than_those_of_the_healthy_runs_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "bits"
    words = ("benchmark=all_reduce", "sizes=[64]", "payload=rounding")
    take_turn(store, *words)
    take_turn(store, *words)
    assert "bits" not in " ".join(capsys.readouterr().out.split("store"))
    for run in stored_runs(store):
        rows = pq.read_table(run / "cases.parquet")
        pq.write_table(with_column(rows, "launch_hashes", [["0"]]), run / "cases.parquet")
    for kept in (1, 2):  # told again: it does not count as healthy
        assert take_turn(store, *words, "--quiet") == 1
        out = " ".join(capsys.readouterr().out.split())
        assert "all_reduce 1x2 64 B: other bits than the healthy runs: the library, or its" in out
        assert len([*(store / "watch" / "changed").iterdir()]) == kept
        assert len(stored_runs(store)) == 2


def test_a_new_version_of_the_library_is_compared_with_the_runs_before(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    make_faster(store, CHANGE)
    for run in stored_runs(store):
        path = run / "cases.parquet"
        pq.write_table(with_column(pq.read_table(path), "library", "of last year"), path)
    for software in store.glob("hardware=*/software=*"):
        software.rename(software.with_name("software=of-last-year"))
    assert turn("--fresh", "1") == 1
    assert "4 of 4 cases, the farthest " in " ".join(capsys.readouterr().out.split())


def test_the_metrics_are_those_of_the_turn(turn: Turn, tmp_path: Path) -> None:
    path = tmp_path / "commbench.prom"
    assert turn("--prometheus", str(path)) == 0
    text = path.read_text()
    assert text.count('verdict="same"} 1.0') == 4
    assert text.count("commbench_healthy_low_seconds{") == 4
    assert text.count(f"}} {RUNS}.0") == 4  # healthy runs
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_budget_that_is_spent_leaves_cases_undecided(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = "budget.total_s=60 is spent"
    monkeypatch.setattr(TotalBudget, "end_reason", lambda self, later_s=0.0: spent)
    assert turn("--budget", "60s") == 4
    out = " ".join(capsys.readouterr().out.split())
    assert f"4 cases were not measured: {spent}" in out
    assert len(stored_runs(store)) == RUNS


@pytest.mark.long
def test_a_change_that_no_launch_shows_alone_is_told_by_many_turns_and_ends_by_them(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Launches spread by 2 %, and the last 16 of 46 take 4 % longer, as the machine does now."""
    for run in stored_runs(store)[:-1]:
        shutil.rmtree(run)
    for number in range(46):
        spread = 1 + 0.006 * ((number * 7) % 11 - 5)
        repeat(store, number, spread * (1.0 if number >= 30 else 1 / 1.04))
    assert turn() == 1
    out = " ".join(capsys.readouterr().out.split())
    assert len(re.findall(r"SLOWER 1\.0[2-6]\d* x since 20260101", out)) == 4
    assert 25 <= len(stored_runs(store)) <= 35, "runs that show it are no baseline"
    told = read_state(store)
    assert told is not None
    # it lasts though each launch is within the healthy ones, and nothing is measured again
    assert turn() == 1
    assert "4 of 4 cases, the farthest " in " ".join(capsys.readouterr().out.split())
    lasting = read_state(store)
    assert lasting is not None
    assert lasting.launches == told.launches + 1
    make_faster(store, 1 / 1.04)  # it ends
    assert turn() == 0
    assert capsys.readouterr().out.count("no longer SLOWER") == 4
    ended = read_state(store)
    assert ended is not None
    assert ended.changes == {}


def test_a_run_that_fresh_launches_do_not_confirm_is_kept_apart_for_some_turns(
    store: Path, turn: Turn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first launch of the first turn is disturbed."""
    launched = 0

    def disturbed(words: list[str], config_dir: str | None) -> int:
        nonlocal launched
        launched += 1
        status = run_launch(words, config_dir)
        (output,) = (word.partition("=")[2] for word in words if word.startswith("output="))
        for run in find_runs(Path(output.strip("'\""))) if launched == 1 else []:
            scale(run, CHANGE)
        return status

    monkeypatch.setattr(fresh_launches, "run_launch", disturbed)
    monkeypatch.setattr(runs, "QUARANTINE_TURNS", 2)
    assert turn("--fresh", "1") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "SLOWER in this launch alone: 1 fresh one does not confirm it" in out
    (suspect,) = find_runs(store / WATCH_FOLDER / "quarantine")
    assert len(stored_runs(store)) == RUNS
    for _ in range(3):
        assert turn("--fresh", "1") == 0
    assert not (store / WATCH_FOLDER / "quarantine").exists()
    assert suspect.name in [run.name for run in stored_runs(store)]


def test_old_runs_that_show_nothing_are_removed_and_others_stay(store: Path, turn: Turn) -> None:
    runs = store / WATCH_FOLDER / "runs"
    base = stored_runs(store)[0]

    def left_behind(name: str, **record: Any) -> Path:
        """A run in a folder of its own, as a launch leaves it."""
        folder = Path(shutil.copytree(base, runs / name / name))
        rows = with_column(pq.read_table(folder / "cases.parquet"), "run_id", name)
        pq.write_table(rows, folder / "cases.parquet")
        own = json.loads((folder / "run.json").read_text()) | {"run_id": name} | record
        (folder / "run.json").write_text(json.dumps(own))
        return folder

    fresh = left_behind("20260101T000000.000000-fre5")
    in_store = left_behind(base.name)
    broken = left_behind("20260101T000000.000000-b404", status="broken", exit_status=3)
    young = left_behind("29990101T000000.000000-0000")
    assert turn("--keep-turns", "3") == 0
    assert fresh.exists(), "it is the second turn"
    assert turn("--keep-turns", "3") == 0
    assert not fresh.parent.exists()
    assert not in_store.parent.exists()
    assert broken.exists()
    assert young.exists()


# ---------------------------------------------------------------- bad input: one line, exit 2,
# nothing lost


def test_another_suite_is_refused(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(store)
    assert turn("seed=1") == 2
    assert "watches another suite" in one_line(capsys)
    assert tree(store) == before


def test_a_suite_with_other_cases_is_refused(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    path = state_path(store)
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"cases": state["cases"][:-1]}))
    before = tree(store)
    assert turn() == 2
    assert "1 of its cases are new, 0 are gone" in one_line(capsys)
    assert tree(store) == before


def test_a_store_of_another_cluster_is_refused(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in stored_runs(store):
        record = json.loads((run / "run.json").read_text())
        record["provenance"]["nodes"][0]["host.cpu_model"] = "POWER9"
        (run / "run.json").write_text(json.dumps(record))
    before = tree(store)
    assert turn() == 2
    assert "is of another cluster" in one_line(capsys)
    assert before.items() <= tree(store).items()


def test_a_store_of_another_schema_is_refused(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored_runs(store)[2] / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))
    before = tree(store)
    assert turn() == 2
    assert "has schema version 2" in one_line(capsys)
    assert tree(store) == before


@pytest.mark.parametrize("name", ["run.json", "cases.parquet"])
def test_a_run_that_is_half_written_is_refused(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = stored_runs(store)[2] / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = tree(store)
    assert turn() == 2
    assert str(path.parent) in one_line(capsys)
    assert tree(store) == before


def test_a_state_that_is_half_written_is_refused(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    path = state_path(store)
    path.write_bytes(path.read_bytes()[:40])
    before = tree(store)
    assert turn() == 2
    assert str(path) in one_line(capsys)
    assert tree(store) == before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def test_a_full_disk_loses_nothing(
    filled: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(filled, disk.path / "store"))
    before = tree(copy)
    disk.fill()
    assert take_turn(copy) == 2
    assert "No space left on device" in one_line(capsys)
    assert tree(copy) == before
    disk.free()
    assert take_turn(copy) == 0


def test_a_disk_that_is_full_after_the_run_loses_neither_the_store_nor_the_run(
    filled: Path, disk: Disk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(filled, disk.path / "store"))
    before = tree(copy)

    def and_fill(words: list[str], config_dir: str | None) -> int:
        status = run_launch(words, config_dir)
        disk.fill()
        return status

    monkeypatch.setattr(fresh_launches, "run_launch", and_fill)
    assert take_turn(copy) == 2
    assert "can't be written: No space left on device" in one_line(capsys)
    assert before.items() <= tree(copy).items()
    (run,) = find_runs(copy / WATCH_FOLDER / "runs")
    assert load_run(run)["status"] == "done"


def test_a_metrics_file_that_can_not_be_written_is_said_and_the_turn_is_stored(
    store: Path, turn: Turn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "commbench.tmp").mkdir()  # where it is written before it is renamed
    assert turn("--prometheus", str(tmp_path / "commbench.prom")) == 2
    assert "the turn is stored" in one_line(capsys)
    assert len(stored_runs(store)) == RUNS + 1


def test_two_watches_do_not_share_a_store(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(store / WATCH_FOLDER):
        assert turn() == 2
    assert "is watching with" in one_line(capsys)
    assert len(stored_runs(store)) == RUNS


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tp_dp", "--baseline", "s", "--once"], "experiment=NAME"),
        (["backend=gloo", "--once"], "required: --baseline"),
        (["backend=gloo", "--baseline", "s"], "--every --once is required"),
        (["backend=gloo", "--baseline", "s", "--every", "6"], "write it as 90s, 10min, 6h or 1d"),
        (["backend=gloo", "--baseline", "s", "--every", "0s"], "not a time above 0"),
        (["backend=gloo", "--baseline", "s", "--once", "--every", "1h"], "not allowed with"),
        (["trial=3", "--baseline", "s", "--once"], "sets trial itself"),
        (
            ["budget.total_s=3", "--baseline", "s", "--once", "--budget", "3s"],
            "sets budget.total_s",
        ),
        (["writer=[console]", "--baseline", "s", "--once"], "add parquet"),
        (["pairs=search", *SEARCH, "--baseline", "s", "--once"], "commbench locate"),
        (["experiment=nope", "--baseline", "s", "--once"], "experiment=nope is unknown"),
        (["layuot=1x2", "--baseline", "s", "--once"], "layuot"),
        (
            ["-m", *SUITE, "timing.repetitions=10,20", "--baseline", "s", "--once"],
            "two runs of this suite have the same case",
        ),
        (["seed=1", "--baseline", "s", "--once", "--plant", "sizes=[8]"], "is not TURN:KEY=VALUE"),
        (
            [*SUITE, "--baseline", "s", "--once", "--plant", "9:sizes=[64,128]"],
            "changes which cases",
        ),
        (["seed=1", "--baseline", "s", "--once", "--plant", "9:nope=1"], "nope"),
        (
            ["seed=1", "--baseline", "s", "--once", "--plant", "7:a=1", "--plant", "9:b=1"],
            "--plant 7:a=1, 9:b=1: turns with a plant are not counted, so the later ones never",
        ),
        (["seed=1", "--baseline", "s", "--every", "1h", "--quiet"], "--quiet is for --once"),
        (["seed=1", "--baseline", "s", "--once", "--prometheus", "metrics"], "end in .prom"),
        (["seed=1", "--baseline", "s", "--once", "--prometheus", "no/m.prom"], "no folder"),
        (
            [
                "backend=simulated",
                "layout=24x1",
                "pairs=all",
                "benchmark=p2p_latency",
                "sizes=[8]",
                "--baseline",
                "s",
                "--once",
                "--prometheus",
                "m.prom",
            ],
            "takes at most 500 cases",
        ),
    ],
)
def test_mistakes_are_refused_before_anything_is_made(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["watch", *words]) == 2
    assert text in one_line(capsys)
    assert list(Path().iterdir()) == []


def test_a_store_that_is_a_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("store").write_text("")
    assert main(["watch", "backend=simulated", "--baseline", "store", "--once"]) == 2
    assert "--baseline store can't be made" in one_line(capsys)


def test_it_is_not_called_inside_of_a_world(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["watch", "backend=simulated", "--baseline", "store", "--once"]) == 2
    assert "call it outside of torchrun" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


# ---------------------------------------------------------------- when


@pytest.mark.parametrize(
    ("now_s", "due_s"), [(0.0, 60.0), (59.9, 60.0), (60.0, 120.0), (61.0, 120.0), (299.0, 300.0)]
)
def test_turns_begin_at_whole_multiples_and_missed_ones_are_left_out(
    now_s: float, due_s: float
) -> None:
    assert next_due_s(1000.0, 60.0, 1000.0 + now_s) == 1000.0 + due_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("6h", 21600), ("1d", 86400)]
)
def test_a_time_has_a_unit(text: str, seconds: int) -> None:
    assert watch_options(["seed=1", "--baseline", "s", "--every", text]).every_s == seconds


def test_a_turn_is_left_out_while_slurm_has_jobs(
    store: Path, turn: Turn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_command, "jobs_in_the_way", lambda: "job 7 of Slurm runs on n1")
    assert turn() == 4
    assert "job 7 of Slurm runs on n1: this turn is left out" in capsys.readouterr().out
    assert len(stored_runs(store)) == RUNS


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
        if self.now_s > 4 * 3600:
            raise KeyboardInterrupt


def test_with_every_a_turn_waits_for_slurms_jobs_until_the_next_is_due(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    turns: list[float] = []

    def in_the_way() -> str | None:
        return "job 7 of Slurm runs on n1" if 3000 < clock.now_s < 2 * 3600 + 100 else None

    def take(options: Any) -> int:
        turns.append(clock.now_s)
        return 0

    monkeypatch.setattr(watch_command, "time", clock)
    monkeypatch.setattr(watch_command, "jobs_in_the_way", in_the_way)
    monkeypatch.setattr(watch_command, "watch_turn", take)
    words = ["watch", "backend=simulated", "--baseline", str(tmp_path / "s"), "--every", "1h"]
    assert main(words) == 130
    assert turns == [0.0, 2 * 3600 + 120.0, 3 * 3600.0, 4 * 3600.0]
    out = capsys.readouterr().out
    assert out.count("job 7 of Slurm runs on n1: this turn waits") == 2
    assert out.count("this turn is left out") == 1


def test_a_later_turn_that_fails_does_not_end_the_watch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    turns: list[float] = []

    def take(options: Any) -> int:
        turns.append(clock.now_s)
        if len(turns) == 2:
            raise ConfigError("the disk is full")
        return 0

    monkeypatch.setattr(watch_command, "time", clock)
    monkeypatch.setattr(watch_command, "jobs_in_the_way", lambda: None)
    monkeypatch.setattr(watch_command, "watch_turn", take)
    words = ["watch", "backend=simulated", "--baseline", str(tmp_path / "s"), "--every", "1h"]
    assert main(words) == 130
    assert len(turns) == 5
    assert "commbench: the disk is full" in capsys.readouterr().err
