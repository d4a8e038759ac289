"""What `commbench watch` keeps: read as it was written, refused in one line where it can't be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sample_cases import CASE

from commbench.cluster.baseline.suite_key import suite_key
from commbench.cluster.watch.state import (
    MOST_TURNS,
    KnownChange,
    WatchState,
    check_cases,
    check_suite,
    read_state,
    state_path,
    write_state,
)
from commbench.core.errors import ConfigError, Unreadable
from commbench.results.row import row_of

STATE = WatchState(
    ("backend=gloo", "layout=1x2"),
    ("a", "b"),
    17,
    {
        "a": KnownChange("SLOWER", "20261125T000000.000000-0000", 1.1),
        "b": KnownChange("FASTER", "20261125T000000.000000-0000", 0.98),
    },
    {"a": "20261124T000000.000000-0000"},
    ("20261125T000000.000000-0000", "20261125T060000.000000-0000"),
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE


def test_the_words_of_earlier_versions_are_read(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    path = state_path(tmp_path)
    path.write_text(path.read_text().replace("SLOWER", "slower").replace("FASTER", "faster"))
    assert read_state(tmp_path) == STATE


def test_turns_are_counted_though_only_the_last_are_named(tmp_path: Path) -> None:
    state = replace(STATE, turns=())
    for number in range(MOST_TURNS + 2):
        state = state.after_turn(f"run{number}")
    write_state(tmp_path, state)
    read = read_state(tmp_path)
    assert read is not None
    assert (read.taken, len(read.turns), read.turns[0]) == (MOST_TURNS + 2, MOST_TURNS, "run2")


def test_a_state_without_the_count_has_the_turns_that_it_names(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    path = state_path(tmp_path)
    stored = json.loads(path.read_text())
    del stored["taken"]
    path.write_text(json.dumps(stored))
    read = read_state(tmp_path)
    assert read is not None
    assert read.taken == len(STATE.turns)


def test_the_first_run_of_a_turn_that_is_so_many_turns_back_is_known() -> None:
    assert STATE.oldest_of_last(2) == STATE.turns[0]
    assert STATE.oldest_of_last(3) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"version": 2, "suite": [',
        "[]",
        '{"version": 1}',
        '{"version": 2}',
        json.dumps({"version": 2, "suite": [], "cases": [], "launches": 1, "changes": {"a": 3}}),
        json.dumps(
            {
                "version": 2,
                "suite": [],
                "cases": [],
                "launches": 1,
                "changes": {"a": {"verdict": "slowr", "since_run": "r"}},
            }
        ),
    ],
)
def test_a_damaged_state_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = state_path(tmp_path)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(Unreadable, match=r"state\.json") as caught:
        read_state(tmp_path)
    assert "\n" not in str(caught.value)
    assert path.read_text() == text


def test_a_state_that_can_not_be_replaced_stays(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    path = state_path(tmp_path)
    path.with_suffix(".tmp").mkdir()  # in place of a full disk: nothing can be written there
    with pytest.raises(ConfigError, match="can't be written"):
        write_state(tmp_path, replace(STATE, launches=18))
    assert read_state(tmp_path) == STATE


def test_another_suite_is_refused() -> None:
    check_suite(Path("store"), STATE, STATE.suite)
    with pytest.raises(ConfigError, match="layout=1x2; here it is backend=gloo layout=1x4"):
        check_suite(Path("store"), STATE, ("backend=gloo", "layout=1x4"))


def test_a_suite_whose_cases_have_changed_is_refused() -> None:
    check_cases(Path("store"), STATE, STATE.cases)
    with pytest.raises(ConfigError, match="2 of its cases are new, 1 are gone"):
        check_cases(Path("store"), STATE, ("a", "c", "d"))


def test_a_new_version_of_the_library_is_the_same_case() -> None:
    keys = {suite_key(replace(CASE, library=version)) for version in (None, "2.1", "2.2")}
    assert len(keys) == 1
    assert suite_key(replace(CASE, pair="0-1")) not in keys


def test_a_row_has_the_key_of_its_case() -> None:
    case = replace(CASE, env=(("B", "2"), ("A", "1")))
    row = row_of(vars(case) | {"env": {"A": "1", "B": "2"}, "hosts": "node1"})
    assert suite_key(row) == suite_key(replace(case, env=(("A", "1"), ("B", "2"))))
