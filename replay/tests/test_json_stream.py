"""Lists in JSON of any size: skipping changes nothing, and hostile texts end in one line."""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import for_each

from commbench.core.errors import Unreadable
from commbench.features.other_tools import foreign_files
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.json_stream import (
    BACKSLASHES,
    NOT_JSON,
    NOT_UTF8,
    TEXT_AROUND,
    JsonList,
    document_head,
    nanoseconds,
    small_document,
    whole,
)


def members(text: bytes, wanted: Sequence[str] = ()) -> list[dict[str, Any]]:
    return list(JsonList(ForeignFile("t", io.BytesIO(text)), "events", wanted))


VALUES = st.recursive(
    st.none() | st.integers(-(2**70), 2**70) | st.text(alphabet='a{}[]," \\}é', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
EVENTS = st.lists(st.dictionaries(st.sampled_from(["name", "x", "keep"]), VALUES), max_size=6)


@given(events=EVENTS, other=VALUES, indent=st.sampled_from([None, 1]))
def test_members_and_other_keys_are_those_of_the_document(
    events: list[dict[str, Any]], other: Any, indent: int | None
) -> None:
    document = {"before": other, "events": events, "after": other}
    text = json.dumps(document, indent=indent).encode()
    stream = JsonList(ForeignFile("t", io.BytesIO(text)), "events")
    assert list(stream) == events
    assert stream.outer == {"before": other, "after": other}
    assert not stream.file.ended_early


PLAIN = st.recursive(
    st.integers(0, 9) | st.sampled_from(["a", "b c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy", max_size=2), inner),
    max_leaves=6,
)


@given(
    events=st.lists(st.dictionaries(st.sampled_from(["p", "q", "KEEP"]), PLAIN), max_size=8),
    indent=st.sampled_from([None, 1]),
    after=PLAIN,
)
def test_no_member_with_a_wanted_word_is_skipped(
    events: list[dict[str, Any]], indent: int | None, after: Any
) -> None:
    document = {"events": events, "after": [{"z": after}, {"z": 1}]}
    text = json.dumps(document, indent=indent).encode()
    stream = JsonList(ForeignFile("t", io.BytesIO(text)), "events", ["KEEP"])
    kept = [member for member in stream if "KEEP" in member]
    assert kept == [event for event in events if "KEEP" in event]
    assert stream.outer == {"after": document["after"]}


@given(
    events=st.lists(st.dictionaries(st.sampled_from(["p", "q", "KEEP"]), PLAIN), max_size=8),
    indent=st.sampled_from([None, 1]),
    is_enough=st.booleans(),
)
def test_what_is_skipped_is_skimmed_once_or_parsed(
    events: list[dict[str, Any]], indent: int | None, is_enough: bool
) -> None:
    skimmed: list[dict[str, Any]] = []

    def skim(text: str) -> bool:
        skimmed.extend(json.loads(f"[{text.rstrip().removesuffix(',')}]") if is_enough else [])
        return is_enough

    text = json.dumps({"events": events}, indent=indent).encode()
    parsed = list(JsonList(ForeignFile("t", io.BytesIO(text)), "events", ["KEEP"], skim))
    assert sorted(map(str, parsed + skimmed)) == sorted(map(str, events))


def test_a_bare_list_is_read_too() -> None:
    assert members(b' [{"a": 1}, 3, {"b": 2}]') == [{"a": 1}, {"b": 2}]


@for_each("end", [1, 3, 12, 13, 14, 20, 25, 30])
def test_a_cut_text_yields_the_members_before_the_cut(end: int) -> None:
    text = b'{"events": [{"a": 1}, {"b": "long"}], "c": 12}'
    file = ForeignFile("t", io.BytesIO(text[:end]))
    assert list(JsonList(file, "events")) == [{"a": 1}][: end >= 20]
    assert file.ended_early


@for_each(
    "text",
    [
        b'{"events": [{"a": 1 2}, {"a": 1}, {"a": 1}]}',
        b'{"events": [' + b'{"a": [' * 100_000,
        b'{"events": [{"a": ' + b"9" * 5000 + b"}]}",
        b'{"events" 1}' + b" " * 100,
        b"junk",
    ],
)
def test_what_is_no_json_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(Unreadable, match=r"^t is not the JSON of a trace.*record it again") as got:
        members(text)
    assert "\n" not in str(got.value)


def read(text: bytes, wanted: Sequence[str] = ()) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Members, and what is wrong with the file."""
    stream = JsonList(ForeignFile("t", io.BytesIO(text)), "events", wanted)
    found = list(stream)
    assert not stream.file.ended_early
    return found, stream.file.notes


def test_bytes_that_are_no_characters_are_replaced_and_counted() -> None:
    text = b'{"events": [{"a": "x\xff\xfey"}, {"b": "\xc3\xa9"}], "c": "\xff"}'
    assert read(text) == ([{"a": "x\ufffd\ufffdy"}, {"b": "\u00e9"}], {NOT_UTF8: 3})
    real = '{"events": [{"b": "\ufffd"}]}'.encode()
    assert read(real) == ([{"b": "\ufffd"}], {})
    file = ForeignFile("t", io.BytesIO())
    assert small_document(file, b'{"a": "\xff"}') == {"a": "\ufffd"}
    assert file.notes == {NOT_UTF8: 1}


FILLER = b'{"name": "other"}'
DAMAGED = [
    b'{"name": "an "other" one"}',
    b'{"name": "other" "b": 2}',
    b'{"name": "other", "args": {"x": 1}',
    b'{"name": other}',
    b'{"name": ' + b"9" * 5000 + b"}",
    b'{"name": "\xff"}',
]


@for_each("damaged", DAMAGED)
def test_a_defect_where_nothing_is_read_costs_only_itself(damaged: bytes) -> None:
    """In a small file and in one of which most is skipped, wherever the defect is."""
    kept = b'{"name": "KEEP"}'
    for fillers in (0, 2, 100_000):
        for place in (0, 1, 2):
            members = [b",".join([FILLER] * fillers)] * (fillers > 0) + [kept, kept]
            members.insert(place, damaged)
            text = b'{"events": [' + b", ".join(members) + b'], "after": [{"x": 1}, {"x": 2}]}'
            found, _ = read(text, ["KEEP"])
            names = [member.get("name") for member in found]
            assert names.count("KEEP") == 2, (fillers, place)


@for_each("damaged", DAMAGED[:-1])
def test_a_defect_in_what_is_read_is_refused(damaged: bytes) -> None:
    text = b'{"events": [' + damaged.replace(b'"name"', b'"KEEP"') + b", " + FILLER + b"]}"
    with pytest.raises(Unreadable, match="is not the JSON of a trace"):
        read(text, ["KEEP"])
    with pytest.raises(Unreadable, match="is not the JSON of a trace"):
        read(text)


WINDOWS = [
    (r"C:\Sers\x", r"C:\Sers\x"),
    (r"D:\Users\\new", r"D:\Users\new"),
    (r"\u12 \u \q", r"\u12 \u \q"),
    (r"\u00e9\S\"", 'é\\S"'),
]


@pytest.mark.parametrize(("written", "name"), WINDOWS)
@pytest.mark.parametrize("part_bytes", [1, 7, 2**20])
def test_backslashes_that_json_does_not_allow_stand_for_themselves(
    written: str, name: str, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In members, around them, and wherever a part of the file ends; escapes stay escapes."""
    monkeypatch.setattr(foreign_files, "HEAD_BYTES", part_bytes)
    monkeypatch.setattr(foreign_files, "PART_BYTES", part_bytes)
    text = (
        f'{{"events": [{{"KEEP": "{written}?\\n"}}, {{"KEEP": "a\t{written}"}}], "x": "{written}"}}'
    )
    kept = [{"KEEP": f"{name}?\n"}, {"KEEP": f"a\t{name}"}]
    assert read(text.encode(), ["KEEP"]) == (kept, {BACKSLASHES: 1})
    file = ForeignFile("t", io.BytesIO(text.encode()))
    whole_list = JsonList(file, "events")
    assert list(whole_list) == kept and whole_list.outer == {"x": name}
    assert small_document(file, text.encode()) == {"events": kept, "x": name}


def test_what_is_left_out_is_counted() -> None:
    """But for the first one, which is skipped with the text around it."""
    text = b'{"events": [{"a": b}, {"KEEP": 1}, {"a": c}], "after": 12}'
    assert read(text, ["KEEP"]) == ([{"KEEP": 1}], {NOT_JSON: 1})


def test_text_around_the_document_is_left_out_and_said() -> None:
    document = b'{"events": [{"a": 1}]}'
    assert read(document) == read(b"\xef\xbb\xbf " + document + b"\n\n") == ([{"a": 1}], {})
    for text in (b"[rank0]: warning\n" + document, document + b"\nDone.", document * 2):
        assert read(text) == ([{"a": 1}], {TEXT_AROUND: 1})
        assert document_head(text).startswith(b'{"events"')
        file = ForeignFile("t", io.BytesIO())
        assert small_document(file, text) == {"events": [{"a": 1}]}
        assert file.notes == {TEXT_AROUND: 1}
    assert document_head(b"no document {") == b""


def test_text_on_the_line_of_the_document_is_refused() -> None:
    with pytest.raises(Unreadable, match="text stands before it, and it has no events"):
        read(b'INFO {"events": [\n{"a": 1}]}')


def test_one_endless_value_is_refused() -> None:
    with pytest.raises(Unreadable, match="one value has more than 16 MiB"):
        members(b'{"events": [{"a": "' + b"x" * (20 * 2**20))


def test_numbers_out_of_range_are_not_known() -> None:
    assert [whole(2**63), whole(-1), whole(True), whole(float("nan"))] == [None] * 4
    assert [whole(float("inf")), nanoseconds(1e300), nanoseconds("1")] == [None] * 3
    assert [whole(3.0), nanoseconds(12.345), nanoseconds(2)] == [3, 12345, 2000]


LARGE = """
import sys
from commbench.backends.buffers.memory import resident_bytes
from commbench_replay.json_stream import JsonList
from commbench.features.other_tools.foreign_files import foreign_files
for file in foreign_files(sys.argv[1:]):
    print(sum(1 for member in JsonList(file, "traceEvents", ["nccl"])), file.read_bytes)
print(resident_bytes(peak=True))  # ru_maxrss would be that of pytest, which has forked it
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    event = '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1.5, "args": {"x": [1, 2]}}'
    kept = event.replace("aten::add", "nccl:all_reduce")
    block = ",\n".join([*[event] * 9999, kept]) + ",\n"
    path = tmp_path / "rank0.json"
    with path.open("w") as out:
        out.write('{"traceEvents": [\n')
        for _ in range(400):
            out.write(block)
        out.write(f"{kept}]}}\n")
    assert path.stat().st_size > 300 * 2**20
    limit = 2**30
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr
    counted, used_bytes = done.stdout.splitlines()
    assert counted.split() == ["401", str(path.stat().st_size)]
    assert int(used_bytes) < 200 * 2**20


@for_each("indent", [None, 1])
def test_a_wanted_word_deep_inside_a_member_keeps_all_of_it(indent: int | None) -> None:
    wanted = {"parts": [{"x": 1}, {"x": 2}, {"name": "KEEP"}, {"x": 3}], "id": 7}
    document = {"events": [{"x": 0}, {"x": 0}, wanted, {"x": 0}, {"x": 0}]}
    text = json.dumps(document, indent=indent).encode()
    assert wanted in members(text, ["KEEP"])
