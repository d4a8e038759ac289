"""Starts the ranks of a world on this machine by fork, from a process that has imported what every rank needs.

`launcher=local` runs it as `python -m commbench.world.rank_server RANKS WORD...`. It gives each rank the environment
that torchrun would give, waits for all of them as their parent, and ends the world when one of them fails. It prints
nothing: how the first rank failed is written to the run's folder for the process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from .exit_protocol import FOLDER, RankFailure, exit_text, record_failure
from .rendezvous import BACKLOG

LOOPBACK = "127.0.0.1"
LAUNCHER = "COMMBENCH_LAUNCHER"  # who has started this rank, where its variables do not say it
STORE_FD = "COMMBENCH_STORE_FD"  # rank 0's listening socket: no port is free in between, so nobody else can take it
PRELOADED = ("torch", "torch.distributed", "commbench.cli.run", "commbench.measure.session")
PR_SET_PDEATHSIG = 1  # linux/prctl.h
POLL_S = 0.05
STOPPED_S = 9.0  # heartbeats, which know more, find a stopped rank after 8 s
TERMINATE_S = 10.0  # between SIGTERM and SIGKILL
GRACE_S = 2.0  # of a world that ends after a stopped rank: nothing is left to wait for


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 if every rank exited with 0, else 1. `arguments`: the number of ranks, and a rank's own."""
    size, words = int(arguments[0]), list(arguments[1:])
    _die_with_parent()
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a rank would otherwise copy every page that the ranks share
    with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listener:
        port = listener.getsockname()[1]
        ranks = {_fork(rank, size, port, listener.fileno(), words): rank for rank in range(size)}
    return _Ranks(ranks, os.environ.get(FOLDER)).wait()


def _fork(rank: int, size: int, port: int, store_fd: int, words: list[str]) -> int:
    """The process id of a new rank."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _die_with_parent()
        os.environ |= rank_environment(rank, size, port)
        if rank == 0:
            os.environ[STORE_FD] = str(os.dup(store_fd))
        os.close(store_fd)
        sys.argv = ["commbench", *words]
        status = import_module("commbench.__main__").main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def rank_environment(rank: int, size: int, port: int) -> Mapping[str, str]:
    """The variables that torchrun exports on one node, and the launcher's name."""
    return {
        LAUNCHER: "local",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
    }


def _die_with_parent() -> None:
    """SIGKILL for this process when its parent dies, however that is ended."""
    parent = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


class _Ranks:
    """The ranks of one world, by process id, until all have ended."""

    def __init__(self, ranks: dict[int, int], folder: str | None) -> None:
        self._ranks, self._folder = ranks, None if folder is None else Path(folder)
        self._stopped: dict[int, float] = {}  # since when, by process id
        self._failed = False
        self._kill_at: float | None = None

    def wait(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._terminate(TERMINATE_S))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the ranks themselves
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid:
                self._changed(pid, status)
            else:
                self._look_at_time()
                time.sleep(POLL_S)
        return 1 if self._failed else 0

    def _changed(self, pid: int, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._stopped[pid] = time.monotonic()
        elif os.WIFCONTINUED(status):
            self._stopped.pop(pid, None)
        elif pid in self._ranks:
            rank = self._ranks.pop(pid)
            self._stopped.pop(pid, None)
            if status != 0:
                self._fail(rank, pid, exit_text(os.waitstatus_to_exitcode(status)))
                self._terminate(TERMINATE_S)

    def _look_at_time(self) -> None:
        now = time.monotonic()
        for pid, since in list(self._stopped.items()):
            if now - since > STOPPED_S:
                self._fail(self._ranks[pid], pid, "is stopped by a signal")
                self._terminate(GRACE_S)
        if self._kill_at is not None and now > self._kill_at:
            self._signal(signal.SIGKILL)

    def _fail(self, rank: int, pid: int, how: str) -> None:
        """Record the first failure; those that follow are its consequences, or our own signals."""
        if not self._failed and self._kill_at is None and self._folder is not None:
            record_failure(self._folder, RankFailure(rank, pid, socket.gethostname(), how))
        self._failed = True

    def _terminate(self, patience_s: float) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + patience_s
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
