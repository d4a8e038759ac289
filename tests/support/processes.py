"""What tests need of processes that they start: a free port, a terminal, the moment when something
is reached."""

from __future__ import annotations

import os
import pty
import random
import select
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from typing import Any

import pytest

# what a container's root has to set for mpirun
AS_ROOT = {
    f"{kind}_ALLOW_RUN_AS_ROOT{more}": "1"
    for kind in ("OMPI", "PRTE")
    for more in ("", "_CONFIRM")
    if os.geteuid() == 0
}


def need(*words: str) -> None:
    """Skip the test where `words`, before another command, are refused: a container's root has few
    of the rights of root."""
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"no {words[0]} here")
    if tried.returncode:
        pytest.skip(tried.stderr.strip())


def free_port() -> int:
    """Below the ports that the kernel chooses for connections and servers: nobody takes it before
    it is used."""
    while True:
        port = random.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until(
    reached: Callable[[], Any], seconds: float = 60.0, explain: Callable[[], str] = lambda: ""
) -> Any:
    """What reached() returns once it is true; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (seen := reached()):
        assert time.monotonic() < deadline, f"not reached within {seconds:g} s {explain()}"
        time.sleep(0.02)
    return seen


def in_terminal(words: Sequence[str], columns: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """The exit status of a command, and what its terminal of so many columns receives."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
    )
    os.close(theirs)
    received = b""
    deadline_s = time.monotonic() + 90
    try:
        while time.monotonic() < deadline_s:
            if select.select([ours], [], [], 0.2)[0]:
                received += os.read(ours, 65536)
            elif process.poll() is not None:
                break
    except OSError:  # Linux: all that had the terminal have ended
        pass
    finally:
        os.close(ours)
        if time.monotonic() > deadline_s:
            process.kill()
        status = process.wait()
    return status, received.decode(errors="replace").replace("\r\n", "\n")
