"""Traces of strangers: what is beyond the bounds is refused by name, and time grows as the file."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from trace_writers import Call, write_kineto

from commbench.core.errors import Unreadable
from commbench.features.other_tools.foreign_files import MOST_UNPACKED_BYTES, MOST_UNPACKED_RATIO
from commbench_replay.readers.registry import read_traces

DUMP = b'{"pg_status": {}, "entries": ['
DUMP_KEY = b"\x80\x02}X\x09\0\0\0pg_status"
CALL = "n1:7:7 [0] NCCL INFO AllReduce: opCount 2 "
COMMUNICATOR = "n1:7:7 [0] NCCL INFO "


def pickled(entries: object) -> bytes:
    return pickle.dumps({"pg_status": {}, "entries": entries}, protocol=2)


def shared_lists() -> bytes:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    return pickled([{"profiling_name": value}])


def lists_in_lists() -> bytes:
    return DUMP_KEY + b"]" * 100_000 + b"a" * 99_999 + b"s."


def packed_values() -> bytes:
    """200 kB of gzip, and 5 GB of lists."""
    return gzip.compress(DUMP + b"[]," * 2**26 + b"[]]}", compresslevel=9)


REFUSED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a place of a memo": ("rank0.pkl", lambda: DUMP_KEY + b"r\xff\xff\xff\xff.", "1 GiB of memory"),
    "shared lists": ("rank0.pkl", shared_lists, "more than 4194304 values"),
    "deep lists": ("rank0.pkl", lists_in_lists, "nested|no entries|recursion"),
    "a large number": ("rank0.pkl", lambda: pickled([10**5000]), "more than 64 bits"),
    "values": ("rank0.json.gz", packed_values, "1 GiB of memory|unpacks to more"),
    "gzip": (
        "rank0.json.gz",
        lambda: gzip.compress(DUMP + bytes(MOST_UNPACKED_BYTES + 2**24)),
        f"unpacks to more than {MOST_UNPACKED_RATIO} times",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_trace_beyond_the_bounds_is_refused_by_name(name: str, tmp_path: Path) -> None:
    file_name, content, cause = REFUSED[name]
    path = tmp_path / file_name
    path.write_bytes(content())
    begun = process_time()
    with pytest.raises(Unreadable, match=cause) as refused:
        read_traces([str(path)])
    assert process_time() - begun < 30
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_members_of_an_archive_have_the_bounds_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "traces.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("notes.txt")
        member.size = MOST_UNPACKED_BYTES + 2**24
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(Unreadable, match="unpacks to more"):
        read_traces([str(path)])


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(Unreadable, match="not a plain file"):
        read_traces([str(tmp_path / "rank0.json")])


def test_a_shape_of_a_million_numbers_has_no_known_bytes(tmp_path: Path) -> None:
    """Their product has millions of digits."""
    shape = [[9] * 1_000_000]
    call = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "process_group": ["0", ""]}
    sides = {f"{side}_sizes": shape for side in ("input", "output")}
    types = {f"{side}_dtypes": ["Float"] for side in ("input", "output")}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"pg_status": {}, "entries": [{**call, **sides, **types}]}))
    begun = process_time()
    ((trace,), _) = read_traces([str(path)])
    assert process_time() - begun < 10
    assert trace.operations[0].input_bytes is None


def test_a_shape_of_a_million_numbers_in_a_profile_has_no_known_bytes(tmp_path: Path) -> None:
    write_kineto([Call("0", (0,), "all_reduce", "float32", 8)], tmp_path)
    path = tmp_path / "rank0.json"
    profile = json.loads(path.read_text())
    for event in profile["traceEvents"]:
        event["args"].pop("In msg nelems", None)
        event["args"] |= {"Input Dims": [[9] * 1_000_000], "Input type": ["float"]}
    path.write_text(json.dumps(profile))
    begun = process_time()
    ((trace,), _) = read_traces([str(path)])
    assert process_time() - begun < 10
    assert trace.operations[0].input_bytes is None


LINES = {
    "processes": lambda length: "n1:7:7 [0] " * (length // 11) + " opCount  nranks ",
    "colons": lambda length: "1:1:" * (length // 4) + " NCCL INFO x nranks ",
    "messages": lambda length: CALL * (length // len(CALL)),
    "counts": lambda length: CALL + "count 1 datatype 1 " * (length // 19),
    "communicators": lambda length: COMMUNICATOR + "comm 0x1 rank 1 nranks 1 " * (length // 25),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_nccl_takes_time_in_proportion_to_its_length(name: str, tmp_path: Path) -> None:
    """Of a cubic expression, eight times the length would take 512 times as long."""
    seconds = []
    for length in (40_000, 320_000):
        path = tmp_path / f"rank{length}.log"
        path.write_text(f"{COMMUNICATOR}ncclCommInitRank\n{LINES[name](length)}\n")
        begun = process_time()
        with suppress(Unreadable):
            read_traces([str(path)])
        seconds.append(process_time() - begun)
    assert seconds[1] < 20 * max(seconds[0], 0.05)
