"""What a parent makes of the end of its world."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from commbench.core.errors import (
    WorldBroken,
)
from commbench.runtime.exit_protocol import (
    ENDS,
    RankEnd,
    leave_end,
    leave_status,
)
from commbench.runtime.output import LOG
from commbench.runtime.recovery import mark_in_flight
from commbench.runtime.world_end import (
    RankFailure,
    WorldEnd,
    end_interrupted,
    exit_text,
    has_launches_left,
    run_status,
)


@pytest.fixture(autouse=True)
def ends_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this process's world, as its parent names it."""
    monkeypatch.setenv(ENDS, str(tmp_path / "ends"))
    return tmp_path / "ends"


def say_world_is_broken(reason: str) -> None:
    assert leave_end(RankEnd("world", "rank 1 on host (pid 7)", 3, reason))


def write_run(folder: Path, **values: object) -> None:
    (folder / "run.json").write_text(json.dumps(values))


KILLED_0 = RankFailure(0, 6, "was killed by SIGKILL")
KILLED = RankFailure(1, 7, "was killed by SIGKILL")
ENDED = WorldEnd(1, "torchrun (pid 5)")


def test_a_finished_run_has_its_own_status(tmp_path: Path) -> None:
    write_run(tmp_path, status="done", exit_status=1, reason="expected more")
    assert run_status(tmp_path, tmp_path / "ends", ENDED) == 1


@pytest.mark.parametrize("status", [1, 2])
def test_a_world_without_a_run_json_ends_with_the_status_that_rank_0_leaves(
    tmp_path: Path, status: int
) -> None:
    leave_status(str(tmp_path), status)
    (tmp_path / LOG).write_text("a launcher says that a rank has exited")
    assert run_status(tmp_path, tmp_path / "ends", ENDED) == status
    assert not (tmp_path / LOG).exists(), "it has nothing to add"


@pytest.mark.parametrize(
    ("resume", "status", "left"), [(False, 2, False), (True, 2, True), (True, 3, False)]
)
def test_a_refusal_beside_a_run_json_counts_only_where_the_run_is_resumed(
    tmp_path: Path, resume: bool, status: int, left: bool
) -> None:
    write_run(tmp_path, status="broken", exit_status=None)
    leave_status(str(tmp_path), status, resumed=resume)
    assert (tmp_path / "ends").exists() is left


BROKEN = {"status": "broken", "exit_status": 3}
INTERRUPTED = {"status": "interrupted", "exit_status": 143}
RUNNING = {"status": "running", "exit_status": None}
GONE = f"{KILLED.process} has ended while rank 0 was in warmup"


@pytest.mark.parametrize(
    ("run", "left", "end", "reason"),
    [
        (BROKEN | {"reason": "rank 1 is silent"}, None, ENDED, "rank 1 is silent"),
        (
            INTERRUPTED | {"reason": GONE},
            None,
            WorldEnd(1, "x", (KILLED,)),
            f"{KILLED} while rank 0 was in warmup",
        ),
        (
            INTERRUPTED | {"reason": None},
            None,
            ENDED,
            "torchrun (pid 5) exited with status 1 before the first case",
        ),
        (RUNNING, "rank 0 is silent", ENDED, "rank 0 is silent"),
        (RUNNING, GONE, WorldEnd(1, "x", (KILLED,)), f"{KILLED} while rank 0 was in warmup"),
        (
            RUNNING,
            "rank 0 is silent",
            WorldEnd(1, "x", (KILLED,)),
            f"{KILLED} before the first case",
        ),
        (
            RUNNING,
            GONE,
            WorldEnd(-9, "x", (KILLED,), "mpirun (pid 5) was killed by SIGKILL"),
            "mpirun (pid 5) was killed",
        ),
        (
            RUNNING,
            None,
            WorldEnd(-11, "mpirun (pid 5)"),
            "mpirun (pid 5) was killed by SIGSEGV before the first case",
        ),
    ],
)
def test_the_reason_of_a_broken_world_says_who_how_and_when(
    tmp_path: Path, run: dict[str, object], left: str | None, end: WorldEnd, reason: str
) -> None:
    write_run(tmp_path, **run)
    (tmp_path / LOG).write_text("forty lines")
    if left is not None:
        say_world_is_broken(left)
    with pytest.raises(WorldBroken) as broken:
        run_status(tmp_path, tmp_path / "ends", end)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["exit_status"]) == ("broken", 3)
    assert record["reason"].startswith(reason) and str(broken.value).startswith(reason)
    assert (
        f"finished cases are in {tmp_path}; the launcher's own messages are in {tmp_path / LOG}"
        in str(broken.value)
    )


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("No protocol specified\n------\n  \n", ", the last one: No protocol specified"),
        ("  one\n two words\x1b[1m\n", ", the last one: two words\\x1b[1m"),
        ("", ""),
        (
            "Sorry!  You were supposed to get help about:\n    unreachable proc\nfrom the file:\n",
            ", the first one: unreachable proc",
        ),
    ],
)
def test_a_world_that_died_without_a_word_of_its_ranks_has_the_launchers(
    tmp_path: Path, log: str, shown: str
) -> None:
    failed = RankFailure(1, 7, "exited with status 14")
    killed = WorldEnd(9, "x", (KILLED,))
    killed_together = WorldEnd(9, "x", ended=(KILLED, KILLED_0))
    for end, more in ((WorldEnd(14, "x", (failed,)), shown), (killed, ""), (killed_together, "")):
        (tmp_path / LOG).write_text(log)
        with pytest.raises(WorldBroken) as broken:
            run_status(tmp_path, tmp_path / "ends", end)
        assert str(broken.value).endswith(f"own messages are in {tmp_path / LOG}{more}")


def test_a_refused_process_is_named_once(tmp_path: Path) -> None:
    end = WorldEnd(9, "x", (KILLED,), limit="no more processes: raise its pids.max")
    with pytest.raises(WorldBroken) as broken:
        run_status(tmp_path, tmp_path / "ends", end)
    assert str(broken.value).endswith("; no more processes: raise its pids.max")
    write_run(tmp_path, status="broken", exit_status=3, reason="can't start: raise pids.max")
    with pytest.raises(WorldBroken) as broken:
        run_status(tmp_path, tmp_path / "ends", WorldEnd(9, "x", limit="pids.max again"))
    assert "again" not in str(broken.value)


RAISED = RankFailure(1, 7, "exited with status 3")


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ((RAISED,), f"{RAISED.process}: RuntimeError: planted;"),
        ((), GONE),
        ((KILLED_0,), f"{KILLED_0} before"),
    ],
)
def test_what_another_rank_raises_is_the_reason_where_it_failed_first(
    tmp_path: Path, failures: tuple[RankFailure, ...], reason: str
) -> None:
    write_run(tmp_path, **(INTERRUPTED | {"reason": GONE, "stacks": {"rank 0": ["a"]}}))
    assert leave_end(RankEnd("rank", RAISED.process, 3, "RuntimeError: planted", ["line", "b"]))
    with pytest.raises(WorldBroken) as broken:
        run_status(tmp_path, tmp_path / "ends", WorldEnd(1, "x", failures))
    assert str(broken.value).startswith(reason)
    stacks = json.loads((tmp_path / "run.json").read_text())["stacks"]
    assert stacks == {"rank 0": ["a"], "rank 1": ["line", "b"]}


def test_ranks_of_which_none_is_blamed_are_named_with_their_launcher() -> None:
    short = RankFailure(0, 6, "was killed by SIGKILL, because memory was short,")
    end = WorldEnd(9, "mpirun (pid 5)", ended=(KILLED, short))
    first, second, launcher = str(end).split("; ")
    assert first == str(KILLED)
    assert second == str(short).rstrip(",")
    assert launcher == "mpirun (pid 5) exited with status 9"
    many = WorldEnd(9, "mpirun (pid 5)", ended=(KILLED,) * 20)
    *named, rest, _ = str(many).split("; ")
    assert named == [str(KILLED)] * 8 and rest == "12 more ranks ended after them"


def test_what_a_rank_reports_goes_before_ends_that_blame_nobody(tmp_path: Path) -> None:
    """The launcher of a world that was found broken kills its ranks at once."""
    write_run(tmp_path, **RUNNING)
    say_world_is_broken("rank 0 is silent")
    end = WorldEnd(1, "mpirun (pid 5)", ended=(KILLED, KILLED_0))
    with pytest.raises(WorldBroken, match=r"^rank 0 is silent;"):
        run_status(tmp_path, tmp_path / "ends", end)


def test_the_case_in_flight_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, **RUNNING)
    mark_in_flight(str(tmp_path), "abc", "all_reduce 1x2 8 B")
    with pytest.raises(
        WorldBroken, match=r"was killed by SIGKILL while measuring all_reduce 1x2 8 B; finished"
    ):
        run_status(tmp_path, tmp_path / "ends", WorldEnd(1, "x", (KILLED,)))


def test_a_world_that_leaves_nothing_is_broken(tmp_path: Path) -> None:
    with pytest.raises(
        WorldBroken, match=r"exited with status 1 while starting, before anything was measured$"
    ):
        run_status(tmp_path, tmp_path / "ends", ENDED)
    with pytest.raises(WorldBroken, match="is gone"):
        run_status(tmp_path / "gone", tmp_path / "ends", ENDED)


@pytest.mark.parametrize(
    ("status", "exit_status", "further"),
    [
        ("running", 0, True),
        ("running", None, False),
        ("running", 1, False),
        ("done", 0, False),
        ("interrupted", 130, False),
        ("interrupted", 143, False),
        ("broken", 3, False),
    ],
)
def test_another_launch_follows_only_a_world_that_ended_well_in_a_run_that_goes_on(
    tmp_path: Path, status: str, exit_status: int | None, further: bool
) -> None:
    run = {"status": status, "exit_status": exit_status}
    assert has_launches_left(run) is further
    write_run(tmp_path, **run)
    end_interrupted(tmp_path, 130)
    ended = json.loads((tmp_path / "run.json").read_text())
    incomplete = further or exit_status is None or status == "interrupted"
    assert ended == ({"status": "interrupted", "exit_status": 130} if incomplete else run), (
        "a signal between two launches interrupts the run"
    )


def test_a_run_whose_record_is_removed_was_begun_nevertheless(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    with pytest.raises(WorldBroken) as broken:
        run_status(tmp_path, tmp_path / "ends", WorldEnd(1, "x", (KILLED,)))
    problem = f"{tmp_path / 'run.json'} is gone: it was removed or renamed"
    assert str(broken.value) == f"{KILLED} and {problem}"


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_ended_by_itself_is_not_blamed_for_an_end_that_could_not_be_written(
    tmp_path: Path, status: int
) -> None:
    """Rank 0 has said that the disk is full."""
    write_run(tmp_path, **RUNNING)
    ended = RankFailure(1, 7, f"exited with status {status}")
    with pytest.raises(WorldBroken) as broken:
        run_status(tmp_path, tmp_path / "ends", WorldEnd(-15, "x", (ended,)))
    assert str(broken.value) == (
        f"{tmp_path / 'run.json'} does not have the end of this run; make room on its disk"
    )


def test_a_rank_that_ended_well_is_not_blamed_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    well = RankFailure(1, 7, "exited with status 0")
    gone = tmp_path / "gone"
    for end in (WorldEnd(0, "x"), WorldEnd(0, "x", (well,)), WorldEnd(-15, "x", (well,))):
        with pytest.raises(WorldBroken) as broken:
            run_status(gone, tmp_path / "ends", end)
        assert str(broken.value) == f"{gone} is gone: it was removed or renamed"


@pytest.mark.parametrize("run", [{}, RUNNING, INTERRUPTED])
def test_an_interrupted_run_is_complete_or_gone(tmp_path: Path, run: dict[str, object]) -> None:
    (tmp_path / LOG).write_text("Abort is in progress")
    if run:
        write_run(tmp_path, **run)
    end_interrupted(tmp_path, 130)
    if run:
        record = json.loads((tmp_path / "run.json").read_text())
        assert record == {"status": "interrupted", "exit_status": 130}
    else:
        assert not (tmp_path / LOG).exists()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGTERM, "was ended by SIGTERM"),
        (143, "was ended by SIGTERM"),
        (-35, "was killed by signal 35"),
        (3, "exited with status 3"),
        (0, "exited with status 0"),
        (None, "has ended"),
    ],
)
def test_every_way_to_end_has_its_own_words(code: int | None, text: str) -> None:
    assert exit_text(code) == text
