"""What reading a foreign file may take, and that the limits of the process are as before."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from commbench.core.errors import Unreadable
from commbench.core.foreign import (
    DEEPEST,
    MOST_MEMORY_BYTES,
    bounded_reading,
    check_values,
    plain_file,
    whole_file,
)


def nested(depth: int, branches: int) -> list[Any]:
    """Few bytes of memory, and branches**depth values."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value] * branches
    return value


def test_reading_may_take_so_much_memory_and_the_process_more_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with (
        pytest.raises(Unreadable, match=r"a\.json takes more than 1 GiB"),
        bounded_reading("a.json"),
    ):
        bytearray(2 * MOST_MEMORY_BYTES)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with bounded_reading("a.json"):
        assert len(bytearray(2**26)) == 2**26


def test_readings_within_one_another_leave_the_limit_of_the_process() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with bounded_reading("a"), bounded_reading("b"):
        within = resource.getrlimit(resource.RLIMIT_DATA)
    assert within[0] != before[0] and resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    ("document", "cause"),
    [
        (nested(90, 2), "more than 4194304 values"),
        (nested(DEEPEST + 1, 1), "nested more than 100 deep"),
        ({"a": [2**70]}, "more than 64 bits"),
        ([0] * 2**22, "more than 4194304 values"),
    ],
)
def test_values_beyond_a_bound_are_refused(document: object, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        check_values(document)


def test_a_value_that_holds_itself_is_refused() -> None:
    document: dict[str, Any] = {"entries": []}
    document["entries"].append(document)
    with pytest.raises(ValueError, match="holds itself"):
        check_values(document)


def test_values_within_the_bounds_are_not() -> None:
    shared = {"frames": [{"line": number} for number in range(100)]}
    check_values({"entries": [shared] * 1000, "ranks": (0, True, None, 1.5, "a" * 10**6)})
    check_values(nested(DEEPEST - 1, 1))


def test_what_could_wait_forever_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a plain file"):
            plain_file(path)


def test_a_file_beyond_its_size_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(Unreadable, match=rf"{path} has more than 1 MiB"):
        whole_file(path, 2**20)
    assert len(whole_file(path)) == 2**20 + 1
