"""Readers of the files of other programs, one for each format, and the files that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from commbench.core.errors import Unreadable
from commbench.core.foreign import bounded_reading

from .foreign_files import ForeignFile, foreign_files

Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)
MOST_NAMED_FILES = 3


class NotRecognised(Exception):
    """Raised for a file of another program, with what it seems to be: it is left out."""


class Reader(Protocol[Content_co]):
    """One format. `form` is its name in texts."""

    form: str

    def recognises(self, file: ForeignFile) -> bool:
        """Whether a file is of this format, by its beginning."""

    def read(self, file: ForeignFile) -> Content_co:
        """What is in a file; raises Unreadable, and NotRecognised."""


def read_files(
    paths: Sequence[str], readers: Sequence[Reader[Content]], unknown: str, page: str
) -> tuple[list[tuple[ForeignFile, Content]], dict[str, str]]:
    """The files with what the first reader of each says, and why others were left out, by name.

    `unknown`: what a file is that no reader recognises; `page` of docs has the formats. Raises
    Unreadable, also where all files were left out.
    """
    contents = []
    left_out: dict[str, str] = {}
    for file in foreign_files(paths):
        try:
            with bounded_reading(file.name):
                contents.append((file, _reader_of(file, readers, unknown).read(file)))
            file.head = b""  # of thousands of files it would be much
        except NotRecognised as reason:
            left_out[file.name] = str(reason)
    if not contents:
        seen = left_out_texts(left_out or dict.fromkeys(paths, unknown))
        known = ", ".join(reader.form for reader in readers)
        raise Unreadable(f"{'; '.join(seen)}; known are: {known} ({page})")
    return contents, left_out


def _reader_of(
    file: ForeignFile, readers: Sequence[Reader[Content]], unknown: str
) -> Reader[Content]:
    """Raises NotRecognised."""
    if file.packed_as is not None:
        raise NotRecognised(f"packed as {file.packed_as}; unpack it")
    reader = next((reader for reader in readers if reader.recognises(file)), None)
    if reader is None:
        raise NotRecognised(unknown)
    return reader


def left_out_texts(left_out: Mapping[str, str]) -> list[str]:
    """One for each reason."""
    texts = []
    for reason in dict.fromkeys(left_out.values()):
        names = [name for name, why in left_out.items() if why == reason]
        unnamed = len(names) - MOST_NAMED_FILES
        more = f" and {unnamed} more" if unnamed > 0 else ""
        texts.append(f"{', '.join(names[:MOST_NAMED_FILES])}{more}: {reason}")
    return texts
