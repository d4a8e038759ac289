"""Cores are shared by the ranks of a node, and given back after each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from commbench.core.errors import ConfigError
from commbench.core.units import format_ranges
from commbench.hardware.host import numa_processors
from commbench.runtime import core_binding
from commbench.runtime.core_binding import bind_process


@pytest.fixture(autouse=True)
def one_thread_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setattr(core_binding, "read_text", lambda file: "")


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The cores of this process, as if they were all of the machine; given back afterwards."""
    before = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "cpu_count", lambda: len(before))
    yield before
    os.sched_setaffinity(0, before)


def bound(
    mode: str, local_rank: int, ranks_here: int, cores: list[int], threads: int = 1
) -> tuple[str, set[int]]:
    os.sched_setaffinity(0, cores)
    words = bind_process(mode, local_rank, ranks_here, threads)
    return words, os.sched_getaffinity(0)


@pytest.mark.parametrize("mode", ["core", "auto"])
def test_ranks_share_the_cores_without_overlap(mode: str, cores: list[int]) -> None:
    shares = [bound(mode, rank, len(cores), cores) for rank in range(len(cores))]
    assert shares == [(f"core {core}", {core}) for core in cores]


def test_a_single_rank_gets_every_core(cores: list[int]) -> None:
    words, mine = bound("core", 0, 1, cores)
    assert mine == set(cores)
    assert words == f"core {format_ranges(cores)}"


@pytest.mark.parametrize("mode", ["core", "auto"])
def test_a_larger_machine_is_divided_into_neighbouring_cores(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 8, 9, 10})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: held.append(cores))
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    words = [bind_process(mode, rank, 3, 2) for rank in range(3)]
    assert held == [{0, 1}, {2, 3}, {8, 9}]
    assert words == ["core 0-1", "core 2-3", "core 8-9"]


def test_a_rank_gets_both_threads_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks must not share a core while others are idle."""
    held: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: held.append(cores))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    # the threads of a core are 4 apart
    siblings = {f"cpu{number}": f"{number % 4},{number % 4 + 4}" for number in range(8)}
    monkeypatch.setattr(core_binding, "read_text", lambda file: siblings[file.parts[-3]])
    words = [bind_process("core", rank, 2, 1) for rank in range(2)]
    assert held == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert words == ["core 0-1,4-5", "core 2-3,6-7"]


def test_more_ranks_than_cores_take_turns(cores: list[int]) -> None:
    ranks = 2 * len(cores) + 1
    held = [bound("core", rank, ranks, cores)[1] for rank in range(ranks)]
    assert held == [{cores[rank % len(cores)]} for rank in range(ranks)]


def test_auto_leaves_ranks_alone_that_would_not_fit(cores: list[int]) -> None:
    assert bound("auto", 0, len(cores) + 1, cores) == ("none", set(cores))
    assert bound("auto", 0, len(cores), cores, threads=2) == ("none", set(cores))


def test_auto_respects_what_the_launcher_has_bound(
    cores: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: len(cores) + 1)
    assert bound("auto", 0, 1, cores) == ("none", set(cores))
    assert bound("core", len(cores) - 1, len(cores), cores)[1] == {cores[-1]}


def test_none_binds_nothing(cores: list[int]) -> None:
    assert bound("none", 0, 1, cores) == ("none", set(cores))


def test_numa_takes_the_nodes_with_processors_in_the_order_of_their_numbers(
    cores: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine like Grace: most nodes are the memory of GPUs."""
    for number in range(12):
        node = tmp_path / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cores[0]}\n" if number in (2, 10) else "\n")
    monkeypatch.setattr(core_binding, "numa_processors", partial(numa_processors, tmp_path))
    shares = [bound("numa", rank, 2, cores) for rank in range(2)]
    assert shares == [("numa node2", {cores[0]}), ("numa node10", {cores[0]})]


def test_numa_binds_within_a_node(cores: list[int]) -> None:
    if not list(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")):
        with pytest.raises(ConfigError, match="bind=core"):
            bind_process("numa", 0, 1, 1)
        return
    shares = [bound("numa", rank, 4, cores) for rank in range(4)]
    assert all(
        words.startswith("numa node") and mine and mine <= set(cores) for words, mine in shares
    )
