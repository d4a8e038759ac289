"""What a process prints: nothing that it measures or stores depends on who reads it, or when.

Inside `print_safely`, which every command enters, `print` neither raises nor waits:

- Where a reader does not read (Ctrl-S, `| less`), text stays in memory. It is written with the next
  text, or at the end, which waits until all is read; after a signal for LAST_TEXT_S.
- Where the reader has left (`| head -1`), or stdout is closed, the process goes on in silence.
- Where text can't be written (a full disk), the process goes on and says so on stderr at its end.
  Its exit status is then that of results that can't be saved, in place of 0.

All text passes `SafeStream.write`, which writes out what a terminal would act on, also where a pipe
(`| less -R`, ssh) ends at one.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

from commbench.core.errors import Unsaved
from commbench.core.terminal import print_error, printable_with_colors

LAST_TEXT_S = 0.5  # for text to be read after a signal
READ_S = 0.1  # in which an ordinary reader reads; then text keeps its place among that of others
MOST_WAITING_BYTES = 1 << 26  # above this, `print` waits
READER_LEFT = (errno.EPIPE, errno.ECONNRESET)


class OpenFile:
    """A file that this process prints to, and the text that waits for its reader."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        self.problem: str | None = None  # why text is missing
        self.lock = threading.RLock()
        self._waiting = bytearray()

    def put(self, data: bytes) -> None:
        with self.lock:
            wait_s = 0.0 if self._waiting else READ_S
            self._waiting += data
        self.write(None if len(self._waiting) > MOST_WAITING_BYTES else wait_s)

    def write(self, wait_s: float | None) -> bool:
        """Write what waits, until nobody reads for this time; returns whether nothing is left."""
        while True:
            with self.lock:
                while self._waiting and self._takes_text(0.0):
                    self._write_lines()
                if not self._waiting:
                    return True
            if not self._takes_text(wait_s):
                return False

    def finish(self, wait_s: float | None) -> None:
        """Write what waits, and drop what nobody reads for this time."""
        try:
            self.write(wait_s)
        finally:
            self._waiting.clear()

    def _takes_text(self, wait_s: float | None) -> bool:
        """Whether a write of PIPE_BUF bytes returns at once, within this time."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        return bool(poll.poll(None if wait_s is None else 1000 * wait_s))

    def _write_lines(self) -> None:
        """Write whole lines that a pipe takes at once."""
        size = self._waiting.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF
        try:
            del self._waiting[: os.write(self.descriptor, self._waiting[:size])]
        except BlockingIOError:  # another process has made it non-blocking
            pass
        except OSError as error:
            self._waiting.clear()
            has_left = error.errno in READER_LEFT
            if not has_left and not (self.is_terminal and error.errno == errno.EIO):
                self.problem = error.strerror


class SafeStream(io.TextIOBase):
    """A text stream whose `write` neither raises nor waits for a reader.

    With a `mark`, each line is written whole, in UTF-8, and with the mark before it.
    """

    def __init__(self, label: str, file: OpenFile, encoding: str, mark: bytes = b"") -> None:
        self.label = label
        self.file = file
        self._encoding = "utf-8" if mark else encoding
        self._mark = mark
        self._begun = ""  # a line without its end

    def write(self, text: str) -> int:
        self.write_unchanged(printable_with_colors(text))
        return len(text)

    def write_unchanged(self, text: str) -> None:
        with self.file.lock:
            *lines, self._begun = (self._begun + text).split("\n")
            if lines:
                self.write_bytes(b"".join(self._line(f"{line}\n") for line in lines))

    def flush(self) -> None:
        """Hand over the begun line; a marked one gets its end."""
        with self.file.lock:
            begun = self._begun
            self._begun = ""
            if begun:
                self.write_bytes(self._line(f"{begun}\n" if self._mark else begun))

    def write_bytes(self, data: bytes) -> None:
        self.file.put(data)

    def catches_up(self) -> bool:
        """Whether its reader has read all text so far."""
        return self.file.write(0.0)

    def fileno(self) -> int:
        return self.file.descriptor

    def isatty(self) -> bool:
        return self.file.is_terminal

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def _line(self, text: str) -> bytes:
        return self._mark + encoded(text, self._encoding)


class ForeignStream(io.TextIOBase):
    """A notebook's stream, a tee or another object with `write`. It may lack any other method of a
    file, and what it raises ends no run."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(Exception):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(Exception):
            self._stream.flush()

    def isatty(self) -> bool:
        with suppress(Exception):
            return bool(self._stream.isatty())
        return False

    def fileno(self) -> int:
        try:
            return int(self._stream.fileno())
        except Exception as error:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from error

    def writable(self) -> bool:
        return True


def write_unchanged(stream: TextIO, data: str) -> None:
    """Write what is no text for people, such as the controls of a bar."""
    if isinstance(stream, SafeStream):
        stream.write_unchanged(data)
    else:
        stream.write(data)


def print_data(data: str) -> None:
    """Print a file for other programs, which get it unchanged; a terminal does not."""
    if sys.stdout.isatty():
        print(data, end="")
    else:
        write_unchanged(sys.stdout, data)


def encoded(text: str, encoding: str) -> bytes:
    """The text; +- and escapes stand for the letters that the encoding lacks."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:  # as an escape, ±2% would be read as 12%
        return text.replace("±", "+-").encode(encoding, errors="backslashreplace")


@contextmanager
def print_safely(marks: tuple[bytes, bytes] = (b"", b"")) -> Iterator[None]:
    """Apply the rule to sys.stdout and sys.stderr, with these marks, where they write to files of
    this process.

    At the end all text has been written, except after a signal.
    """
    if _safe_streams():
        yield
        return
    _open_closed_descriptors()
    stdout, stderr = _replaced(marks)
    with redirect_stdout(stdout), redirect_stderr(stderr):
        wait_s = None
        try:
            yield
        except (KeyboardInterrupt, SystemExit):  # finish_printing has waited, or there is no time
            wait_s = LAST_TEXT_S
            raise
        finally:
            finish_printing(0, wait_s)


def finish_printing(status: int, wait_s: float | None = None) -> int:
    """Wait until all text is read, unless nobody reads for this time, and say on stderr where some
    is missing; returns the exit status."""
    streams = _safe_streams()
    _finish_all(streams, wait_s)
    problems = {stream.label: stream.file.problem for stream in streams if stream.file.problem}
    if not problems:
        return status
    missing = "; ".join(f"{label} is incomplete: {problem}" for label, problem in problems.items())
    print_error(f"{missing}; make room for it, or send it elsewhere")
    _finish_all(streams, wait_s)
    for stream in streams:
        stream.file.problem = None  # it has been said
    return status or Unsaved.exit_status


def _finish_all(streams: list[SafeStream], wait_s: float | None) -> None:
    for stream in streams:
        stream.flush()
        stream.file.finish(wait_s)


def _safe_streams() -> list[SafeStream]:
    return [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, SafeStream)]


def _open_closed_descriptors() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed: a file of this process would get its
    number, and what a library prints would go into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # open() gives the lowest number that is free
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _replaced(marks: tuple[bytes, bytes]) -> list[Any]:
    """Safe streams for sys.stdout and sys.stderr."""
    files = dict[tuple[int, int], OpenFile]()
    streams = list[Any]()
    for stream, number, mark in zip((sys.stdout, sys.stderr), (1, 2), marks, strict=True):
        descriptor = number if stream is None else _descriptor(stream)
        if descriptor is None:
            streams.append(ForeignStream(stream))
            continue
        if mark:  # it tells both apart in one pipe, where launchers keep their order
            descriptor = 2
        status = os.fstat(descriptor)
        # text on one terminal keeps its order
        file = files.setdefault((status.st_dev, status.st_ino), OpenFile(descriptor))
        encoding = "utf-8" if stream is None else stream.encoding
        streams.append(SafeStream(("stdout", "stderr")[number - 1], file, encoding, mark))
    return streams


def _descriptor(stream: TextIO) -> int | None:
    """The descriptor that a stream writes to; None if it has none."""
    if not isinstance(stream, io.TextIOWrapper) or stream.closed:
        return None
    with suppress(OSError):
        stream.flush()
    try:
        return stream.fileno()
    except OSError:
        stream.reconfigure(errors="backslashreplace")  # a locale without a letter ends no run
        return None
