"""Whatever is in a file: either results, or one line that says what it is; never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from other_tools import all_reduce_bench, inspector_record, iperf3, nccl_json, nccl_text, osu_text

from commbench.core.errors import Unreadable
from commbench.features.other_tools.command import _runs
from commbench.features.other_tools.foreign_readers import read_files
from commbench.features.other_tools.readers.registry import READERS
from commbench.features.other_tools.runs import Told

FILES: dict[str, Callable[[], str]] = {
    "nccl-tests": lambda: nccl_text() + nccl_text("all_gather", version="2.18.3"),
    "nccl-tests JSON": lambda: json.dumps(nccl_json()),
    "OSU": lambda: osu_text() + osu_text("Bandwidth", "# Size      Bandwidth (MB/s)"),
    "iperf3": lambda: json.dumps(iperf3(), indent="\t"),
    "all_reduce_bench": all_reduce_bench,
    "NCCL Inspector": lambda: "\n".join(inspector_record(number) for number in range(4)),
}
RELAXED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def outcome(path: Path, content: bytes) -> list[float]:
    """The times of the rows that are ok; empty where the file is refused in one line."""
    path.write_bytes(content)
    try:
        contents, _ = read_files([str(path)], READERS, "no results", "docs/other_tools.md")
    except Unreadable as error:
        assert "\n" not in str(error)
        return []
    runs = _runs([(file.name, "0" * 64, content) for file, content in contents], Told())
    return [row.median_s or 0.0 for run in runs for row in run.rows if row.status == "ok"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_byte_has_no_other_numbers(name: str, tmp_path: Path) -> None:
    whole = FILES[name]().encode()
    times = outcome(tmp_path / "all.txt", whole)
    assert times
    steps = random.Random(name).sample(range(len(whole)), min(len(whole), 150))
    for end in steps:
        assert len(outcome(tmp_path / "all.txt", whole[:end])) <= len(times)


@pytest.mark.parametrize("name", ["nccl-tests", "OSU", "all_reduce_bench"])
def test_a_cut_table_has_only_times_of_the_whole_one(name: str, tmp_path: Path) -> None:
    whole = FILES[name]().encode()
    known = set(outcome(tmp_path / "a.txt", whole))
    for end in random.Random(7).sample(range(len(whole)), 150):
        assert set(outcome(tmp_path / "a.txt", whole[:end])) <= known


@pytest.mark.parametrize("name", FILES)
@RELAXED
@given(seed=st.integers(0, 2**32), damage=st.sampled_from(["bytes", "lines", "twice", "binary"]))
def test_damaged_files_end_in_numbers_or_in_a_line(
    name: str, seed: int, damage: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    content = bytearray(FILES[name]().encode())
    if damage == "bytes":
        for _ in range(chance.randrange(1, 20)):
            content[chance.randrange(len(content))] = chance.randrange(256)
    elif damage == "binary":
        at = chance.randrange(len(content))
        content[at:at] = chance.randbytes(chance.randrange(1, 400))
    else:
        lines = bytes(content).split(b"\n")
        chance.shuffle(lines)
        content = bytearray(b"\n".join(lines if damage == "lines" else [*lines, *lines]))
    outcome(tmp_path / "a.txt", bytes(content))


@RELAXED
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    for start in (
        b"",
        b"PAR1",
        b"{",
        b'{"nccl_version": 1, ',
        b'{"coll_perf": ',
        b'{"version": "iperf 3.1"',
    ):
        assert outcome(tmp_path / "a", start + content) == []


def test_large_and_deep_files_are_bounded(tmp_path: Path) -> None:
    deep = b'{"nccl_version": 1, "results": ' + b"[" * 200_000
    assert outcome(tmp_path / "deep.json", deep) == []
    number = b'{"nccl_version": ' + b"9" * 6000 + b"}"
    assert outcome(tmp_path / "number.json", number) == []
    long_line = nccl_text().encode() + b"x" * 2**23
    assert len(outcome(tmp_path / "long.log", long_line)) == 4
