"""Whom a rank tells why it ends, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.core.errors import (
    CommbenchError,
    ConfigError,
    Missing,
    Unconnected,
    WorldBroken,
)
from commbench.runtime.exit_protocol import (
    ENDS,
    Cause,
    RankEnd,
    Tell,
    cause_of,
    leave_end,
    read_ends,
    whom_to_tell,
)


def recorded() -> WorldBroken:
    error = WorldBroken("rank 1 has ended")
    error.recorded = True
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (recorded(), "recorded"),
        (ConfigError("x", shared=True), "shared"),
        (ConfigError("x"), "common"),
        (Missing([0], "gather", 1.0), "common"),
        (Unconnected("no end"), "common"),
        (WorldBroken("x"), "own"),
    ],
)
def test_every_error_has_a_cause(error: CommbenchError, cause: Cause) -> None:
    assert cause_of(error) == cause


@pytest.mark.parametrize(
    ("cause", "rank_0", "rank_1"),
    # with a parent, with the user's own launcher
    [
        ("recorded", (Tell.NOBODY, Tell.USER), None),
        ("shared", (Tell.USER, Tell.USER), (Tell.NOBODY, Tell.NOBODY)),
        ("common", (Tell.USER, Tell.USER), (Tell.PARENT, Tell.USER)),
        ("own", (Tell.USER, Tell.USER), (Tell.PARENT, Tell.USER)),
        ("lost", (Tell.PARENT, Tell.USER), (Tell.PARENT, Tell.NOBODY)),
        ("verdict", None, (Tell.NOBODY, Tell.NOBODY)),
    ],
)
def test_one_process_says_why_a_world_ends(
    cause: Cause, rank_0: tuple[Tell, Tell] | None, rank_1: tuple[Tell, Tell] | None
) -> None:
    for rank, told in enumerate((rank_0, rank_1)):
        if told is not None:
            assert (whom_to_tell(cause, rank, True), whom_to_tell(cause, rank, False)) == told


def test_a_node_without_rank_0_has_a_rank_that_says_which_one_is_lost() -> None:
    assert whom_to_tell("lost", 4, False, is_first_on_node=True) is Tell.USER


@pytest.fixture(autouse=True)
def ends_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this process's world, as its parent names it."""
    monkeypatch.setenv(ENDS, str(tmp_path / "ends"))
    return tmp_path / "ends"


def test_a_line_that_a_rank_was_killed_in_is_left_out_and_the_others_count(
    ends_file: Path,
) -> None:
    first = RankEnd("rank", "rank 1 on host (pid 7)", 3, "planted", ["a"])
    assert leave_end(first)
    with ends_file.open("a") as file:
        file.write('{"ended": "wor\n[]\n')
    assert leave_end(RankEnd("world", "rank 1", 3, "silent"))
    assert [end.reason for end in read_ends(ends_file)] == ["planted", "silent"]
    assert read_ends(ends_file)[0] == first


def test_a_rank_without_a_parent_on_its_host_knows_that_nobody_reads_it(tmp_path: Path) -> None:
    for environ in ({}, {ENDS: str(tmp_path / "on another host" / "ends")}):
        assert not leave_end(RankEnd("world", "rank 1", 3, "silent"), environ)
