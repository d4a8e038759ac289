"""The tables of world/exit_protocol.py: who prints, what a rank does when the world is lost, what the parent reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commbench.core.case import RankIdentity
from commbench.core.errors import CommbenchError, ConfigError, Missing, WorldBroken
from commbench.world.exit_protocol import (
    FOLDER,
    LOST,
    RESUME,
    STATUS_FILE,
    LostAction,
    Print,
    leave_status,
    lost_action,
    report_lost,
    report_refusal,
    run_status,
    who_prints,
)

RANKS = [None, *(RankIdentity("torchrun", rank, 3, rank) for rank in range(3))]
OUTSIDE, RANK_0, RANK_1, _ = RANKS


def recorded() -> WorldBroken:
    error = WorldBroken("rank 1 has ended")
    error.recorded = True
    return error


@pytest.mark.parametrize(
    ("error", "identity", "mpi_loaded", "printing"),
    [
        (ConfigError("x"), OUTSIDE, False, Print.NOW),
        (ConfigError("x", shared=True), RANK_0, True, Print.NOW),
        (WorldBroken("x"), RANK_0, False, Print.NOW),
        (recorded(), RANK_0, False, Print.NEVER),
        (ConfigError("x", shared=True), RANK_1, True, Print.NEVER),
        (ConfigError("x", shared=True), RANK_1, False, Print.AFTER_RANK_0),
        (ConfigError("x"), RANK_1, True, Print.AFTER_RANK_0),
        (Missing([0], "gather", 1.0), RANK_1, False, Print.AFTER_RANK_0),
        (WorldBroken("x"), RANK_1, False, Print.NOW),
    ],
)
def test_who_prints(error: CommbenchError, identity: RankIdentity | None, mpi_loaded: bool, printing: Print) -> None:
    assert who_prints(error, identity, mpi_loaded) is printing


@pytest.mark.parametrize(
    ("rank", "given", "has_record", "from_rank_0", "action"),
    [
        (0, True, True, False, LostAction.PRINT_AND_SAVE),
        (0, False, False, False, LostAction.PRINT_AND_SAVE),
        (0, False, True, False, LostAction.SAVE),
        (1, True, False, True, LostAction.NOTHING),
        (1, False, False, True, LostAction.NOTHING),
        (1, False, False, False, LostAction.TELL_PARENT),
        (2, False, False, False, LostAction.TELL_PARENT),
        (1, True, False, False, LostAction.PRINT),
        (2, True, False, False, LostAction.NOTHING),
    ],
)
def test_what_a_rank_does_when_the_world_is_lost(
    rank: int, given: bool, has_record: bool, from_rank_0: bool, action: LostAction
) -> None:
    assert lost_action(rank, (0, 1, 2), given, has_record, from_rank_0) is action


def test_a_node_without_rank_0_has_a_rank_that_prints() -> None:
    assert [lost_action(rank, (4, 5), True, False, False) for rank in (4, 5)] == [LostAction.PRINT, LostAction.NOTHING]


def write_run(folder: Path, **values: object) -> None:
    (folder / "run.json").write_text(json.dumps(values))


def test_a_finished_run_has_its_own_status(tmp_path: Path) -> None:
    write_run(tmp_path, status="done", exit_status=1)
    assert run_status(tmp_path, 255, ["rank 1"]) == 1


def test_a_refusal_is_the_status_of_a_world_without_a_run(tmp_path: Path) -> None:
    report_refusal(2, {FOLDER: str(tmp_path)})
    assert run_status(tmp_path, 1, []) == 2
    assert not tmp_path.exists(), "an empty folder is removed"


def test_a_run_without_a_writer_of_run_json_leaves_its_status(tmp_path: Path) -> None:
    leave_status(str(tmp_path), 1)
    assert run_status(tmp_path, 0, []) == 1


@pytest.mark.parametrize(("resume", "status", "left"), [(False, 2, False), (True, 2, True), (True, 3, False)])
def test_a_refusal_beside_a_run_json_counts_only_where_the_run_is_resumed(
    tmp_path: Path, resume: bool, status: int, left: bool
) -> None:
    write_run(tmp_path, status="broken", exit_status=None)
    report_refusal(status, {FOLDER: str(tmp_path), **({RESUME: "rest"} if resume else {})})
    assert (tmp_path / STATUS_FILE).exists() is left


@pytest.mark.parametrize(
    ("run", "lost", "first_ended", "said"),
    [
        ({"status": "broken", "exit_status": 3, "reason": "rank 1 is silent"}, None, [], "rank 1 is silent"),
        ({"status": "interrupted", "exit_status": 143, "reason": None}, None, [], "in the middle of the run"),
        ({"status": "running", "exit_status": None}, "rank 0 is silent", ["rank 0"], "rank 0 is silent"),
        ({"status": "running", "exit_status": None}, None, ["rank 1"], "rank 1 ended first"),
        ({"status": "running", "exit_status": None}, None, [], "rank 0 left no message"),
    ],
)
def test_a_broken_world_has_a_reason_in_run_json(
    tmp_path: Path, run: dict[str, object], lost: str | None, first_ended: list[str], said: str
) -> None:
    write_run(tmp_path, **run)
    if lost is not None:
        report_lost(str(tmp_path), lost)
    with pytest.raises(WorldBroken, match=said):
        run_status(tmp_path, 9, first_ended)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["exit_status"]) == ("broken", 3) and said in record["reason"]
    assert not (tmp_path / LOST).exists()


def test_a_world_that_leaves_nothing_is_broken(tmp_path: Path) -> None:
    with pytest.raises(WorldBroken, match="before anything was measured"):
        run_status(tmp_path, 9, [])
    with pytest.raises(WorldBroken, match="is gone"):
        run_status(tmp_path, 9, [])
