"""What a process prints: nothing that it measures or stores depends on who reads it, or when.

The rule for every command, inside `print_safely`:

    stdout or stderr ...                     the process
    ---------------------------------------  -------------------------------------------------
    has no reader any more (`| head -1`)     goes on in silence
    is closed (`>&-`)                        goes on in silence
    can't be written (a full disk)           goes on, says so on stderr at its end, and exits with
                                             INCOMPLETE_TEXT in place of 0
    waits for its reader (Ctrl-S, `| less`)  goes on, and waits at its end until all is read;
                                             after a signal for LAST_TEXT_S

So `print` neither raises nor waits: a thread writes, one for each open file.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from commbench.core.terminal import printable

INCOMPLETE_TEXT = 4  # exit status of a command that is right in all but its text
LAST_TEXT_S = 0.5  # for text to be read after a signal
# the ordinary reader needs microseconds; then text has the place among that of other processes
# that it has in time
READ_S = 0.1
MOST_WAITING_BYTES = 1 << 26  # a library may print without end while a terminal is stopped
READER_LEFT = (errno.EPIPE, errno.ECONNRESET)


class SafeStream(io.TextIOBase):
    """A text stream whose `write` neither raises nor waits for a reader.

    With a `mark`, each line is written whole, in UTF-8, and with the mark before it.
    """

    def __init__(
        self, label: str, descriptor: int, queue: WriteQueue, encoding: str, mark: bytes = b""
    ) -> None:
        self.label = label
        self.problem: str | None = None  # why text is missing
        self._descriptor = descriptor
        self._is_terminal = os.isatty(descriptor)
        self._queue = queue
        self._encoding = encoding
        self._mark = mark
        self._begun = ""  # a line without its end
        self._reader_left = False

    def write(self, text: str) -> int:
        with self._queue.changed:
            *lines, self._begun = (self._begun + text).split("\n")
            if lines:
                self.write_bytes(b"".join(map(self._line, lines)))
        return len(text)

    def flush(self) -> None:
        """Hand over the begun line; a marked one gets its end."""
        with self._queue.changed:
            begun = self._begun
            self._begun = ""
            if begun:
                self.write_bytes(self._line(begun) if self._mark else self._encoded(begun))

    def write_bytes(self, data: bytes) -> None:
        """Have the thread write this, unless nobody reads it."""
        if self._reader_left:
            return
        if not self._queue.put(self, data):
            self.problem = f"more than {MOST_WAITING_BYTES >> 20} MiB waited for its reader"

    def write_now(self, data: bytes) -> None:
        """Called by the thread of the queue: returns once it is written, or never will be."""
        while data and not self._reader_left:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process has made it non-blocking
                writable = select.poll()
                writable.register(self._descriptor, select.POLLOUT)
                writable.poll()
            except OSError as error:
                # EIO: the terminal is gone
                gone = error.errno == errno.EIO and self._is_terminal
                self._reader_left = gone or error.errno in READER_LEFT
                if not self._reader_left:
                    self.problem = error.strerror
                return

    @property
    def is_behind(self) -> bool:
        """Whether its reader has not read for READ_S."""
        return self._queue.is_behind

    def wait(self, until_s: float | None) -> None:
        """Wait until all is written, or until this time (time.monotonic)."""
        self.flush()
        self._queue.wait(until_s)

    def close_queue(self) -> None:
        self._queue.close()

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def _line(self, text: str) -> bytes:
        return self._mark + self._encoded(f"{text}\n")

    def _encoded(self, text: str) -> bytes:
        if self._mark:
            return text.encode(errors="replace")
        return text.encode(self._encoding, errors="backslashreplace")


class WriteQueue:
    """What waits to be written to an open file, and the thread that writes it, which ends when it
    is closed and has written all."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.is_behind = False
        self._waiting = deque[tuple[SafeStream, bytes]]()
        self._waiting_bytes = 0
        self._closed = False
        self._is_unread = False
        self._thread: threading.Thread | None = None

    def put(self, stream: SafeStream, data: bytes) -> bool:
        """Returns whether there is room for it."""
        with self.changed:
            if self._closed:
                return True
            if self._waiting_bytes >= MOST_WAITING_BYTES:
                return False
            if not self._has_thread():
                stream.write_now(data)
                return True
            self._waiting.append((stream, data))
            self._waiting_bytes += len(data)
            self.changed.notify_all()
            if not self.is_behind:
                self.is_behind = not self.changed.wait_for(self._is_empty, READ_S)
            return True

    def _has_thread(self) -> bool:
        """Start the thread, once; False where the system starts no more threads."""
        if self._thread is None:
            thread = threading.Thread(target=self._write_all, name="commbench-print", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def wait(self, until_s: float | None) -> None:
        """Wait until all is written, or until this time (time.monotonic). A wait that ended before
        all was written is the last: nobody reads."""
        timeout_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        with self.changed:
            if self._is_unread:
                return
            try:
                self._is_unread = not self.changed.wait_for(self._is_empty, timeout_s)
            except KeyboardInterrupt:
                self._is_unread = True
                raise

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def _is_empty(self) -> bool:
        return not self._waiting

    def _write_all(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                stream, data = self._waiting[0]
            stream.write_now(data)
            with self.changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                self.is_behind = self.is_behind and bool(self._waiting)
                self.changed.notify_all()


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
    before = (sys.stdout, sys.stderr)
    after = _replaced(marks)
    sys.stdout = after[0]
    sys.stderr = after[1]
    try:
        yield
        finish_printing(0)
    except (KeyboardInterrupt, SystemExit):  # finish_printing has waited, or there is no time
        finish_printing(0, LAST_TEXT_S)
        raise
    except BaseException:
        finish_printing(0)
        raise
    finally:
        for stream in _safe_streams():
            stream.close_queue()
        sys.stdout = before[0]
        sys.stderr = before[1]


def finish_printing(status: int, patience_s: float | None = None) -> int:
    """Wait until all text is written, for at most this time, and say on stderr where some is
    missing.

    Returns the exit status: INCOMPLETE_TEXT in place of 0 if some is missing.
    """
    until_s = None if patience_s is None else time.monotonic() + patience_s
    streams = _safe_streams()
    _wait_for_all(streams, until_s)
    problems = [
        f"{stream.label} is incomplete: {stream.problem}" for stream in streams if stream.problem
    ]
    if not problems:
        return status
    line = f"commbench: {'; '.join(problems)}; make room for it, or send it elsewhere"
    print(printable(line), file=sys.stderr)
    _wait_for_all(streams, until_s)
    for stream in streams:
        stream.problem = None  # it has been said
    return status or INCOMPLETE_TEXT


def _wait_for_all(streams: Iterable[SafeStream], until_s: float | None) -> None:
    for stream in streams:
        stream.wait(until_s)


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
    """Safe streams for sys.stdout and sys.stderr; a notebook's stream, which is no file, stays."""
    queues: dict[tuple[int, int], WriteQueue] = {}
    streams: list[Any] = []
    for stream, label, mark in zip(
        (sys.stdout, sys.stderr), ("stdout", "stderr"), marks, strict=True
    ):
        descriptor = _descriptor(stream)
        if descriptor is None:
            streams.append(stream)
            continue
        status = os.fstat(descriptor)
        # text on one terminal keeps its order
        queue = queues.setdefault((status.st_dev, status.st_ino), WriteQueue())
        encoding = "utf-8" if stream is None else stream.encoding
        streams.append(SafeStream(label, descriptor, queue, encoding, mark))
    return streams


def _descriptor(stream: TextIO | None) -> int | None:
    """The descriptor that a stream writes to, /dev/null's for a closed one; None if it has none."""
    if stream is None:
        return os.open(os.devnull, os.O_WRONLY)
    if not isinstance(stream, io.TextIOWrapper):
        return None
    with suppress(OSError):
        stream.flush()
    try:
        return stream.fileno()
    except OSError:
        stream.reconfigure(errors="backslashreplace")  # a locale without a letter ends no run
        return None
