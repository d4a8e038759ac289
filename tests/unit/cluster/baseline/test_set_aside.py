"""A run that shows a change leaves the store, and is kept elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from healthy_runs import healthy_run

from commbench.cluster.baseline.store import stored_runs
from commbench.cluster.baseline.writer import add_runs, set_aside
from commbench.core.errors import ConfigError
from commbench.results.load import find_runs


def test_runs_that_are_set_aside_are_whole_and_no_part_of_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    runs = [healthy_run(tmp_path / "results", number) for number in range(3)]
    add_runs(store, runs)
    first, *rest = stored_runs(store)
    set_aside(store, [first], store / "watch" / "changed")
    assert stored_runs(store) == rest
    assert [run.name for run in find_runs(store / "watch" / "changed")] == [first.name]
    set_aside(store, rest, store / "watch" / "changed")
    assert list(store.glob("hardware=*")) == [], "no empty folders stay"


def test_a_run_that_can_not_be_moved_stays(tmp_path: Path) -> None:
    store = tmp_path / "store"
    add_runs(store, [healthy_run(tmp_path / "results", 1)])
    target = tmp_path / "file"
    target.write_text("")
    with pytest.raises(ConfigError, match="can't be moved"):
        set_aside(store, stored_runs(store), target)
    assert len(stored_runs(store)) == 1
