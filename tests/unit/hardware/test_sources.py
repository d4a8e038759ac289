from __future__ import annotations

import pytest

from commbench.hardware import sources


def test_a_source_that_fails_leaves_the_others(tmp_path):
    def good(root):
        return {"x.a": 1, "x.b": None}

    def broken(root):
        raise ValueError("no\nway")

    facts = sources.gather("x", [good, broken], tmp_path)
    assert facts == {"x.a": 1, "x.error": r"broken: ValueError('no\nway')"}


def test_reading_what_cannot_be_read(tmp_path):
    assert sources.read_text(tmp_path) == ""  # a folder
    assert sources.read_line(tmp_path / "nothing") is None
    assert sources.read_int(tmp_path / "a\0b") is None
    assert sources.children(tmp_path / "nothing") == []
    (tmp_path / "bytes").write_bytes(b"\xff\xfe 12")
    assert sources.read_line(tmp_path / "bytes") == "\ufffd\ufffd 12"


def test_entries_of_a_folder_by_name(tmp_path):
    for name in ("node10", "node2", "has_cpu", "node2x"):
        (tmp_path / name).mkdir()
    assert [path.name for path in sources.children(tmp_path, r"node\d+")] == ["node2", "node10"]
    assert len(sources.children(tmp_path)) == 4


def test_mapped_files_are_found_by_the_begin_of_their_names(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 0 0:0 0 /usr/lib/libtorch_cuda.so\n7f01-7f02 r-xp 0 0:0 0\n"
        + 2 * "7f02-7f03 r-xp 0 0:0 0 /opt/a b/libnccl.so.2.30\n"
    )
    assert sources.mapped_files(("libnccl.so",), maps) == ["/opt/a b/libnccl.so.2.30"]
    assert sources.mapped_files(("libnccl.so",), tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("eth0.100", "eth0.100"),
        ("a b/c", "a_b_c"),
        ("..", "_._._"),
        ("", "_"),
        ("x@if2:1", "x@if2:1"),
    ],
)
def test_key_parts(name, part):
    assert sources.key_part(name) == part


def test_a_command_that_runs(tmp_path):
    ended = sources.run_command(["sh", "-c", "echo a; echo b >&2; exit 3"], 5)
    assert ended is not None
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "a\n", "b\n")


def test_of_a_command_that_prints_too_much_the_beginning_is_kept(monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_OUTPUT", 10)
    ended = sources.run_command(["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"], 5)
    assert ended is not None and ended.stdout == 10 * "x"


def test_what_a_command_prints_may_be_no_text():
    ended = sources.run_command(["printf", r"a\377b"], 5)
    assert ended is not None and ended.stdout == "a\ufffdb"
