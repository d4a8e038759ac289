"""The files that a user names: plain, gzip, tar, or a folder of them, read from front to end."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from commbench.core.errors import Unreadable, no_permission
from commbench.core.foreign import check_size, plain_file
from commbench.core.terminal import one_line

HEAD_BYTES = 2**16
PART_BYTES = 2**20
LONGEST_LINE_BYTES = 2**20
GZIP_MAGIC = b"\x1f\x8b"
MOST_UNPACKED_BYTES = 2**26  # of any file
MOST_UNPACKED_RATIO = 200  # beyond that; profiles have 10 to 40
TAR_MAGIC = b"ustar"
TAR_MAGIC_AT = 257
APPLE_DOUBLE = "._"  # metadata that macOS adds to archives


class TraceFile:
    """One file, decompressed. `head` is its beginning; `chunks` may be called once.

    `ended_early`: the file is cut, and what was read until there counts. `notes`: what else is
    wrong with it, with a number.
    """

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self.name = one_line(name)
        self.ended_early = False
        self.notes: Counter[str] = Counter()
        self.read_bytes = 0
        self._stream = stream
        self.head = self._read(HEAD_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """All of it, in parts of at most PART_BYTES; raises Unreadable."""
        chunk = self.head
        while chunk:
            self.read_bytes += len(chunk)
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
        except (OSError, zlib.error, tarfile.TarError) as error:
            raise Unreadable(
                f"{self.name} can't be read: {one_line(str(error))}; copy it again, or leave it out"
            ) from error


class _Unpacked(gzip.GzipFile):
    """Of a file of a few bytes, gzip makes a thousand times as many."""

    def __init__(self, path: Path, packed: BinaryIO) -> None:
        super().__init__(fileobj=packed)
        self._path = path
        packed_bytes = os.fstat(packed.fileno()).st_size
        self._most_bytes = max(MOST_UNPACKED_BYTES, MOST_UNPACKED_RATIO * packed_bytes)

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        if self.tell() > self._most_bytes:
            raise Unreadable(
                f"{self._path} unpacks to more than {MOST_UNPACKED_RATIO} times its bytes; unpack"
                " it yourself, or leave it out"
            )
        return content


def trace_files(paths: Sequence[str]) -> Iterator[TraceFile]:
    """Each file below the paths, open until the next one is asked for; raises Unreadable."""
    for path in paths:
        folder = Path(path)
        if not folder.exists():
            raise Unreadable(f"{one_line(path)} does not exist; name a trace, or a folder of them")
        files = _files_below(folder) if folder.is_dir() else [folder]
        for file in files:
            if not file.name.startswith(APPLE_DOUBLE):
                yield from _open_files(file)
        if not files:
            raise Unreadable(f"{one_line(path)} is an empty folder; name one with traces")


def _files_below(folder: Path) -> list[Path]:
    """Raises Unreadable where a folder may not be read: ranks would be missing without a word."""

    def unreadable(error: OSError) -> None:
        if isinstance(error, PermissionError):
            raise Unreadable(no_permission(error.filename)) from error

    below = os.walk(folder, onerror=unreadable)
    files = (Path(parent, name) for parent, _, names in below for name in names)
    return sorted(file for file in files if file.is_file())


def _open_files(path: Path) -> Iterator[TraceFile]:
    try:
        with plain_file(path) as raw:
            compressed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            raw.seek(0)
            stream = cast(IO[bytes], _Unpacked(path, raw)) if compressed else raw
            file = TraceFile(str(path), stream)
            if file.head[TAR_MAGIC_AT:].startswith(TAR_MAGIC):
                stream.seek(0)
                yield from _members(path, stream)
            else:
                yield file
    except PermissionError as error:
        raise Unreadable(no_permission(path)) from error
    except (OSError, tarfile.TarError) as error:
        raise Unreadable(f"{path} can't be read: {one_line(str(error))}; check the file") from error


def _members(path: Path, stream: IO[bytes]) -> Iterator[TraceFile]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            # a sparse file has no bytes in the archive for what it reads as
            is_plain = member.isfile() and not member.issparse()
            content = archive.extractfile(member) if is_plain else None
            if content is not None and not Path(member.name).name.startswith(APPLE_DOUBLE):
                yield TraceFile(f"{path}:{member.name}", content)
