"""Files that a user names: packed in any way, in archives, and behind links."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from trace_writers import Call, write_kineto

from commbench.core.errors import Unreadable
from commbench.features.other_tools.foreign_files import (
    MOST_UNPACKED_BYTES,
    ForeignFile,
    foreign_files,
)
from commbench_replay.readers.registry import read_traces
from commbench_replay.training_job import training_job

SCHEDULE = [Call("0", (0, 1), "all_reduce", "float32", 8)]
Content = dict[str, bytes]


def ranks_of(path: Path) -> tuple[int, ...]:
    traces, left_out = read_traces([str(path)])
    assert left_out == {}
    return training_job(traces).ranks


@pytest.fixture
def profiles(tmp_path: Path) -> Content:
    folder = tmp_path / "written"
    folder.mkdir()
    write_kineto(SCHEDULE, folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def zipped(files: Content, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("traces/", b"")
        for name, content in files.items():
            archive.writestr(f"traces/{name}", content)
            archive.writestr(f"__MACOSX/traces/._{name}", b"\0\x05\x16\x07")
    return packed.getvalue()


def tarred(files: Content, mode: str = "w") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            for member_name, data in ((name, content), (f"._{name}", b"\0\x05\x16\x07")):
                member = tarfile.TarInfo(member_name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def each(pack: Callable[[bytes], bytes], files: Content) -> Content:
    return {name: pack(content) for name, content in files.items()}


ARCHIVES: dict[str, Callable[[Content], bytes]] = {
    "zip": zipped,
    "a zip of stored files": lambda files: zipped(files, zipfile.ZIP_STORED),
    "a zip by lzma": lambda files: zipped(files, zipfile.ZIP_LZMA),
    "a zip of gzip": lambda files: zipped(each(gzip.compress, files)),
    "a tar of gzip": lambda files: tarred(each(gzip.compress, files)),
    "a tar of xz": lambda files: tarred(each(lzma.compress, files)),
    "tar": tarred,
    "tar.gz": lambda files: tarred(files, "w:gz"),
    "tar.gz of gzip": lambda files: tarred(each(gzip.compress, files), "w:gz"),
    "tar.bz2": lambda files: tarred(files, "w:bz2"),
    "tar.xz": lambda files: tarred(files, "w:xz"),
    "a tar in a zip": lambda files: zipped({"traces.tar.gz": tarred(files, "w:gz")}),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_the_ranks_in_an_archive_are_read(name: str, tmp_path: Path, profiles: Content) -> None:
    """Without the metadata that macOS adds, and whatever the archive is called."""
    path = tmp_path / "attached"
    path.write_bytes(ARCHIVES[name](profiles))
    assert ranks_of(path) == (0, 1)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_packed_files_are_read(
    pack: Callable[[bytes], bytes], tmp_path: Path, profiles: Content
) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    for name, content in profiles.items():
        (folder / name).write_bytes(pack(content))
    assert ranks_of(folder) == (0, 1)


@pytest.mark.parametrize(
    "pack", [gzip.compress, partial(lzma.compress, preset=0), bz2.compress], ids=["gz", "xz", "bz2"]
)
def test_a_small_packed_file_that_is_cut_counts_until_there(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "cut"
    text = b"".join(b"%d\n" % number**9 for number in range(60_000))
    packed = pack(text)
    path.write_bytes(packed[: len(packed) * 9 // 10])
    ((content, ended_early),) = [
        (b"".join(file.chunks()), file.ended_early) for file in foreign_files([str(path)])
    ]
    assert ended_early and text.startswith(content) and len(content) > len(text) // 2


PACKED_OTHERWISE = {
    "zstd": b"\x28\xb5\x2f\xfd" + b"x" * 99,
    "lz4": b"\x04\x22\x4d\x18" + b"x" * 99,
    "7z": b"7z\xbc\xaf\x27\x1c" + b"x" * 99,
}


@pytest.mark.parametrize("name", PACKED_OTHERWISE)
def test_a_packing_that_is_not_read_is_named(name: str, tmp_path: Path, profiles: Content) -> None:
    path = tmp_path / "traces.bin"
    path.write_bytes(PACKED_OTHERWISE[name])
    with pytest.raises(Unreadable, match=rf"traces\.bin: packed as {name}; unpack it"):
        read_traces([str(path)])
    beside = tmp_path / "written" / "rank2.bin"
    path.rename(beside)
    _, left_out = read_traces([str(beside.parent)])
    assert left_out == {str(beside): f"packed as {name}; unpack it"}


def test_a_zip_in_an_archive_is_named(tmp_path: Path, profiles: Content) -> None:
    path = tmp_path / "traces.zip"
    path.write_bytes(zipped({"inner.zip": zipped(profiles)}))
    with pytest.raises(Unreadable, match=r"inner\.zip: packed as a zip in an archive; unpack it"):
        read_traces([str(path)])


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda packed: packed[:-40], "can't be read: File is not a zip file"),
        (lambda packed: packed.replace(b"\x14\0\0\0", b"\x14\0\x01\0"), "encrypted"),
        (lambda packed: packed.replace(b"\0\0\x08\0", b"\0\0\x09\0"), "can't be unpacked"),
        (lambda packed: packed[:200] + b"junk" + packed[204:], "can't be read"),
    ],
)
def test_a_damaged_or_locked_zip_is_refused_by_name(
    damage: Callable[[bytes], bytes], cause: str, tmp_path: Path, profiles: Content
) -> None:
    path = tmp_path / "traces.zip"
    path.write_bytes(damage(zipped(profiles)))
    with pytest.raises(Unreadable, match=cause) as refused:
        read_traces([str(path)])
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_a_tar_that_is_cut_is_refused_by_name(tmp_path: Path, profiles: Content) -> None:
    path = tmp_path / "traces.tar.gz"
    packed = tarred(profiles, "w:gz")
    for kept in range(20, len(packed), 50):
        path.write_bytes(packed[:kept])
        with pytest.raises(Unreadable, match=r"traces\.tar\.gz"):
            read_traces([str(path)])


BOMB = bytes(MOST_UNPACKED_BYTES + 2**20)
BOMBS: dict[str, Callable[[], bytes]] = {
    "xz": lambda: lzma.compress(BOMB),
    "bz2": lambda: bz2.compress(BOMB),
    "zip": lambda: zipped({"rank0.json": BOMB}),
    "zips": lambda: zipped({f"rank{rank}.json": BOMB[::8] for rank in range(9)}),
    "gzip in gzip": lambda: gzip.compress(gzip.compress(BOMB)),
    "gzip in tar": lambda: tarred({"rank0.json.gz": gzip.compress(BOMB)}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_unpacks_to_far_more_than_its_bytes_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "traces"
    path.write_bytes(BOMBS[name]())
    with pytest.raises(Unreadable, match="unpacks to more than 200 times its bytes"):
        for file in foreign_files([str(path)]):
            for _ in file.chunks():
                pass


def test_folders_behind_links_are_read_once_each(tmp_path: Path, profiles: Content) -> None:
    """As TensorBoard recommends to put runs together; circles end."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number, (name, content) in enumerate(profiles.items()):
        real = tmp_path / f"host{number}"
        real.mkdir()
        (real / name).write_bytes(content)
        (tree / f"node{number}").symlink_to(real)
        (tree / f"again{number}").symlink_to(real)
        (real / "up").symlink_to(tree)
        (real / "latest.json").symlink_to(real / name)
    assert ranks_of(tree) == (0, 1)
    names = [Path(file.name).name for file in foreign_files([str(tree)])]
    assert names == ["rank0.json", "rank1.json"], "a file goes before the links to it"


def test_a_tree_of_links_alone_is_no_empty_folder(tmp_path: Path, profiles: Content) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "all").symlink_to(tmp_path / "written")
    assert ranks_of(tmp_path / "tree") == (0, 1)


@pytest.mark.parametrize("target", ["gone", "link"])
def test_a_link_to_nothing_is_refused_because_a_rank_would_be_missing(
    target: str, tmp_path: Path, profiles: Content
) -> None:
    (tmp_path / "written" / "link").symlink_to(target)
    with pytest.raises(Unreadable, match="link is a link to nothing; copy what it led to"):
        read_traces([str(tmp_path / "written")])


def test_metadata_of_macos_is_no_file(tmp_path: Path, profiles: Content) -> None:
    for name in profiles:
        (tmp_path / "written" / f"._{name}").write_bytes(b"\0\x05\x16\x07\0\x02\0\0Mac OS X")
    assert ranks_of(tmp_path / "written") == (0, 1)


def test_a_stream_may_give_less_than_is_asked_for() -> None:
    file = ForeignFile("x", io.BytesIO(b"abc"))
    assert file.head == b"abc" and b"".join(file.chunks()) == b"abc"
