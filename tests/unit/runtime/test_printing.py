"""Text that ends, blocks or is closed: the process goes on, and its exit status says what is
missing."""

from __future__ import annotations

import errno
import io
import os
import pty
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commbench.core.errors import Unsaved
from commbench.core.terminal import Terminal
from commbench.runtime.printing import encoded, finish_printing, print_data, print_safely

SCRIPT = """
import os, sys, time
from commbench.runtime.printing import finish_printing, print_safely
with print_safely():
    print("table")
    print("progress", file=sys.stderr, flush=True)
    begun_s = time.monotonic()
    for _ in range(3):
        print("x" * 50_000)
    with open(sys.argv[1], "w") as log:
        log.write(f"{time.monotonic() - begun_s:.3f}")
    status = finish_printing(int(sys.argv[2]))
raise SystemExit(status)
"""


def ended(
    tmp_path: Path, redirected: str, status: int = 0
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A script of four lines, run by a shell with such redirections; and the file that it wrote
    after its text."""
    measured = tmp_path / "measured"
    command = ["bash", "-c", f'"$@" {redirected}', "bash", sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        [*command, str(measured), str(status)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, measured


@pytest.mark.parametrize(
    ("redirected", "status", "stderr"),
    [
        ("| cat", 0, "progress\n"),
        ("| head -c 1; exit ${PIPESTATUS[0]}", 0, "progress\n"),
        ("2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}", 0, ""),
        (">&-", 0, "progress\n"),
        ("2>&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
        (
            ">/dev/full",
            Unsaved.exit_status,
            "progress\ncommbench: stdout is incomplete: No space left on device; make room for it,"
            " or send it elsewhere\n",
        ),
        ("2>/dev/full", Unsaved.exit_status, ""),
        (">/dev/full 2>&1", Unsaved.exit_status, ""),
        (">/dev/full 2>&-", Unsaved.exit_status, ""),
    ],
)
def test_text_that_ends_or_is_closed_stops_nothing(
    tmp_path: Path, redirected: str, status: int, stderr: str
) -> None:
    done, measured = ended(tmp_path, redirected)
    assert (done.returncode, done.stderr) == (status, stderr)
    assert measured.exists()


def test_a_worse_exit_status_is_not_replaced(tmp_path: Path) -> None:
    done, _ = ended(tmp_path, ">/dev/full", status=2)
    assert done.returncode == 2 and "stdout is incomplete" in done.stderr


def test_a_file_of_the_process_never_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom commbench.runtime.printing import print_safely\n"
        "with print_safely():\n"
        "    file = open(sys.argv[1], 'w')\n"
        "    os.write(2, b'of a library')\n"
        "    file.write(str(file.fileno()))\n"
    )
    file = tmp_path / "results"
    line = f'exec "{sys.executable}" -c "$0" "$1" <&- >&- 2>&-'
    subprocess.run(["bash", "-c", line, script, str(file)], timeout=60, check=True)
    assert int(file.read_text()) > 2


@contextmanager
def printing_to_a_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """print_safely with a pipe as stdout, and the end that reads it."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with print_safely():
            yield read_end
    os.close(read_end)


def read_bytes(read_end: int, size: int) -> None:
    while size > 0:
        size -= len(os.read(read_end, 65536))


def test_a_pipe_that_nobody_reads_delays_nothing_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with printing_to_a_pipe(monkeypatch) as read_end:
        begun_s = time.monotonic()
        for _ in range(100):
            print("x" * 10_000)
        assert time.monotonic() - begun_s < 5.0
        reader = threading.Thread(target=read_bytes, args=(read_end, 100 * 10_001))
        reader.start()
        assert finish_printing(0) == 0
        reader.join(30)
        assert not reader.is_alive()


def test_after_a_signal_a_process_does_not_wait_for_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt), printing_to_a_pipe(monkeypatch):
        print("x" * 100_000)
        raise KeyboardInterrupt
    assert time.monotonic() - begun_s < 5.0


def test_a_stopped_terminal_delays_nothing_and_text_keeps_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    termios.tcflow(theirs, termios.TCOOFF)
    with (
        os.fdopen(theirs, "w") as terminal,
        os.fdopen(os.dup(theirs), "w") as again,
    ):
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", again)
        with print_safely():
            for number in range(10):
                print(f"line {number}", file=(sys.stdout, sys.stderr)[number % 2])
            termios.tcflow(theirs, termios.TCOON)
        text = ""
        while text.count("\n") < 10:
            text += os.read(ours, 65536).decode()
    os.close(ours)
    assert text.split("\r\n") == [*(f"line {number}" for number in range(10)), ""]


def test_marked_lines_of_both_streams_keep_their_order_in_one_pipe() -> None:
    script = """
import sys
from commbench.runtime.printing import print_safely
with print_safely((b"<o>", b"<e>")):
    for number in range(4):
        print(number, file=(sys.stdout, sys.stderr)[number % 2])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("", "<o>0\n<e>1\n<o>2\n<e>3\n")


def test_text_without_end_waits_for_its_reader_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commbench.runtime.printing.MOST_WAITING_BYTES", 1 << 17)
    with printing_to_a_pipe(monkeypatch) as read_end:
        reader = threading.Timer(0.5, read_bytes, (read_end, 300_001))
        reader.start()
        begun_s = time.monotonic()
        print("x" * 300_000)
        assert time.monotonic() - begun_s > 0.4
        reader.join(30)


def test_a_terminal_that_has_gone_has_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with print_safely():
            os.close(ours)
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                os.write(theirs, b"x")
            print("line")
            assert finish_printing(0) == 0


def test_a_locale_without_a_letter_shows_what_can_not_be_taken_for_a_number() -> None:
    assert encoded("±2% é", "ascii") == b"+-2% \\xe9"
    assert encoded("±2% é", "utf-8").decode() == "±2% é"


class Tee:
    """As notebooks and logging libraries put in place of sys.stdout: nothing but `write`."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def test_a_stream_that_can_only_write_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tee = Tee()
    monkeypatch.setattr(sys, "stdout", tee)
    with print_safely():
        print("table", flush=True)
        assert Terminal.of(sys.stdout) == Terminal()
        with pytest.raises(OSError, match="Bad file descriptor"):
            sys.stdout.fileno()
    assert tee.text == "table\n"
    assert sys.stdout is tee


@pytest.mark.parametrize("stream", [io.StringIO(), io.TextIOWrapper(io.BytesIO()), object()])
def test_a_stream_that_takes_no_text_ends_nothing(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(stream, io.TextIOBase):
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with print_safely():
        print("progress", file=sys.stderr, flush=True)
        assert not sys.stderr.isatty()


EVIL = "\x1b]0;title\x07 \x1b[8m \u202e \x1b[2J"


def test_all_text_passes_one_door_that_writes_out_what_a_terminal_acts_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with printing_to_a_pipe(monkeypatch) as read_end:
        print(f"\x1b[1;32mPASS\x1b[0m {EVIL}")
        assert os.read(read_end, 65536).decode() == (
            "\x1b[1;32mPASS\x1b[0m \\x1b]0;title\\x07 \\x1b[8m \\u202e \\x1b[2J\n"
        )


def test_a_file_for_other_programs_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with printing_to_a_pipe(monkeypatch) as read_end:
        print_data(f"label,{EVIL}\n")
        assert os.read(read_end, 65536).decode() == f"label,{EVIL}\n"
