"""The files that a user names: plain, packed, in an archive, or a folder of them, read from front
to end."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, cast
from zipfile import BadZipFile, ZipFile

from commbench.core.errors import Unreadable, no_permission
from commbench.core.foreign import bounded_reading, check_size, plain_file
from commbench.core.terminal import one_line
from commbench.results.run_folder import walk

HEAD_BYTES = 2**16
PART_BYTES = 2**20
LONGEST_LINE_BYTES = 2**20
ZIP_MAGIC = b"PK\x03\x04"
UNPACKERS: dict[bytes, Callable[[BinaryIO], IO[bytes]]] = {
    b"\x1f\x8b": lambda packed: cast(IO[bytes], gzip.GzipFile(fileobj=packed)),
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
}
NOT_UNPACKED = {  # Python can't, or can't without going back in the file
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7z",
    ZIP_MAGIC: "a zip in an archive",
}
MOST_LAYERS = 3  # an archive, packed, of packed files
MOST_UNPACKED_BYTES = 2**26  # of any file
MOST_UNPACKED_RATIO = 200  # beyond that; profiles have 10 to 40
TAR_MAGIC = b"ustar"
TAR_MAGIC_AT = 257
APPLE_DOUBLE = "._"  # metadata that macOS adds to archives
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, tarfile.TarError, BadZipFile)
LOCKED = RuntimeError  # a zip with a password, or of a method that Python does not have


class Stream(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""


class ForeignFile:
    """One file, decompressed. `head` is its beginning; `chunks` may be called once.

    `ended_early`: the file is cut, and what was read until there counts. `notes`: what else is
    wrong with it, with a number.
    """

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = one_line(name)
        self.ended_early = False
        self.notes: Counter[str] = Counter()
        self.read_bytes = 0
        self.sha256 = hashlib.sha256()  # of what was read
        self._stream = stream
        self.head = self._read(HEAD_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """All of it, in parts of at most PART_BYTES; raises Unreadable."""
        chunk = self.head
        while chunk:
            self.read_bytes += len(chunk)
            self.sha256.update(chunk)
            yield chunk
            chunk = self._read(PART_BYTES)

    def lines(self) -> Iterator[bytes]:
        """All of it, line by line; of a longer one than LONGEST_LINE_BYTES only the end."""
        rest = b""
        for chunk in self.chunks():
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()[-LONGEST_LINE_BYTES:]
            yield from lines
        yield rest

    @property
    def packed_as(self) -> str | None:
        """The packing that stands in the way of reading it; None where there is none."""
        return next(
            (NOT_UNPACKED[magic] for magic in NOT_UNPACKED if self.head.startswith(magic)), None
        )

    def content(self) -> bytes:
        """All of a file that must be small; raises Unreadable."""
        parts = []
        for chunk in self.chunks():
            parts.append(chunk)
            check_size(self.name, self.read_bytes)
        return b"".join(parts)

    def _read(self, most_bytes: int) -> bytes:
        if self.ended_early:
            return b""
        try:
            return self._stream.read(most_bytes)
        except EOFError:
            self.ended_early = True
            return b""
        except DAMAGED as error:
            raise Unreadable(
                f"{self.name} can't be read: {one_line(str(error))}; copy it again, or leave it out"
            ) from error


class _FromStart(io.RawIOBase):
    """A stream of which the first bytes were read, with them."""

    def __init__(self, head: bytes, stream: Stream) -> None:
        super().__init__()
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._head[: len(buffer)] or self._stream.read(len(buffer))
        self._head = self._head[len(part) :]
        buffer[: len(part)] = part
        return len(part)


@dataclass
class _Allowance:
    """What all that is packed in one file may unpack to."""

    path: Path
    left_bytes: int

    @classmethod
    def of(cls, path: Path, file: BinaryIO) -> _Allowance:
        packed_bytes = os.fstat(file.fileno()).st_size
        return cls(path, max(MOST_UNPACKED_BYTES, MOST_UNPACKED_RATIO * packed_bytes))

    def take(self, size_bytes: int) -> None:
        self.left_bytes -= size_bytes
        if self.left_bytes < 0:
            raise Unreadable(
                f"{self.path} unpacks to more than {MOST_UNPACKED_RATIO} times its bytes; unpack"
                " it yourself, or leave it out"
            )


@dataclass(frozen=True)
class _Unpacked:
    """Of a few bytes, decompression makes a thousand times as many."""

    stream: Any  # has read1
    allowance: _Allowance

    def read(self, size: int) -> bytes:
        """Also what stands before an early end."""
        content = bytearray()
        try:
            while part := self.stream.read1(size - len(content)):
                content += part
        except EOFError:
            if not content:
                raise
        self.allowance.take(len(content))
        return bytes(content)


def foreign_files(paths: Sequence[str]) -> Iterator[ForeignFile]:
    """Each file below the paths, open until the next one is asked for; raises Unreadable."""
    for path in paths:
        folder = Path(path)
        if not folder.exists():
            raise Unreadable(f"{one_line(path)} does not exist; name a file, or a folder of them")
        files = _files_below(folder) if folder.is_dir() else [folder]
        for file in files:
            if not file.name.startswith(APPLE_DOUBLE):
                yield from _open_files(file)
        if not files:
            raise Unreadable(f"{one_line(path)} is an empty folder; name one with files")


def _files_below(folder: Path) -> list[Path]:
    """Also by links, each folder and file once. Raises Unreadable where a folder may not be read,
    or a link leads nowhere: ranks would be missing without a word."""

    def unreadable(error: OSError) -> None:
        if isinstance(error, PermissionError):
            raise Unreadable(no_permission(error.filename)) from error

    found: dict[tuple[int, int], Path] = {}
    for parent, _, names in walk(folder, unreadable):
        # a file goes before the links to it
        for path in sorted(map(parent.joinpath, sorted(names)), key=Path.is_symlink):
            found.setdefault(_identity(path), path)
    return sorted(path for path in found.values() if path.is_file())


def _identity(path: Path) -> tuple[int, int]:
    """The same for all links to a file."""
    try:
        status = path.stat()
    except PermissionError as error:
        raise Unreadable(no_permission(path)) from error
    except OSError as error:
        raise Unreadable(
            f"{path} is a link to nothing; copy what it led to, or leave it out"
        ) from error
    return status.st_dev, status.st_ino


def _open_files(path: Path) -> Iterator[ForeignFile]:
    try:
        with plain_file(path) as raw:
            allowance = _Allowance.of(path, raw)
            if raw.read(len(ZIP_MAGIC)) == ZIP_MAGIC:
                yield from _zipped_files(path, raw, allowance)
            else:
                raw.seek(0)
                yield from _files_in(str(path), raw, allowance)
    except PermissionError as error:
        raise Unreadable(no_permission(path)) from error
    except LOCKED as error:
        raise Unreadable(
            f"{path} can't be unpacked: {one_line(str(error))}; unpack it yourself"
        ) from error
    except DAMAGED as error:
        raise Unreadable(f"{path} can't be read: {one_line(str(error))}; check the file") from error


def _zipped_files(path: Path, raw: BinaryIO, allowance: _Allowance) -> Iterator[ForeignFile]:
    with bounded_reading(str(path)):
        archive = ZipFile(raw)
    for member in archive.infolist():
        if not member.is_dir() and not Path(member.filename).name.startswith(APPLE_DOUBLE):
            with archive.open(member) as content:
                name = f"{path}:{member.filename}"
                yield from _files_in(name, _Unpacked(content, allowance), allowance)


def _files_in(
    name: str, stream: Stream, allowance: _Allowance, layers: int = MOST_LAYERS
) -> Iterator[ForeignFile]:
    """The file that a stream is, or those that it is an archive of."""
    file = ForeignFile(name, stream)
    unpack = next((UNPACKERS[magic] for magic in UNPACKERS if file.head.startswith(magic)), None)
    is_tar = file.head[TAR_MAGIC_AT:].startswith(TAR_MAGIC)
    if not layers or not (unpack or is_tar):
        yield file
        return
    again = io.BufferedReader(_FromStart(file.head, stream))
    if unpack is not None:
        unpacked = _Unpacked(unpack(again), allowance)
        yield from _files_in(name, unpacked, allowance, layers - 1)
        return
    with tarfile.open(fileobj=again, mode="r|") as archive:
        for member in archive:
            # a sparse file has no bytes in the archive for what it reads as
            is_plain = member.isfile() and not member.issparse()
            content = archive.extractfile(member) if is_plain else None
            if content is not None and not Path(member.name).name.startswith(APPLE_DOUBLE):
                yield from _files_in(f"{name}:{member.name}", content, allowance, layers - 1)
