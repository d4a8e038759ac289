"""UCX's log with UCX_LOG_LEVEL=info: the transports of each kind of connection, and the variables
that it does not know. Seen with UCX 1.20."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from .sources import fact_text

WITHIN = "within_nodes"
BETWEEN = "between_nodes"
LEVEL = "UCX_LOG_LEVEL"
FILE = "UCX_LOG_FILE"
NAME = "commbench-ucx-log"
MOST_BYTES = 1 << 20
# inter-node cfg#2 tag(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1)  rma(...)
_CONNECTION = re.compile(r"(intra|inter)-node cfg#\d+ (?:tag|am|rma)\(([^)\n]{1,400})\)")
_UNUSED = re.compile(r"unused environment variables?: (UCX_[^\n]{1,400})")


class UcxLog:
    """The log of this process in memory, from the start of MPI to `end`; empty where there is no
    UCX, or the user has a log."""

    def __init__(self) -> None:
        self.text = ""
        self._descriptor: int | None = None

    @contextmanager
    def begun(self, environ: MutableMapping[str, str]) -> Iterator[None]:
        """UCX must be loaded in this block: it reads its variables then."""
        with suppress(OSError):
            if LEVEL not in environ and FILE not in environ:
                self._descriptor = os.memfd_create(NAME)
                environ.update({LEVEL: "info", FILE: f"/proc/self/fd/{self._descriptor}"})
        try:
            yield
        finally:
            if self._descriptor is not None:
                del environ[LEVEL], environ[FILE]

    def end(self) -> None:
        """Read it. What UCX writes from now on goes to stderr: its errors must be seen."""
        if self._descriptor is None:
            return
        ctypes.CDLL(None).fflush(None)  # UCX writes through a buffer of the C library
        self.text = os.pread(self._descriptor, MOST_BYTES, 0).decode(errors="replace")
        os.close(self._descriptor)
        self._descriptor = None
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if NAME in str(link.readlink()):
                    os.dup2(2, int(link.name))


@cache
def ucx_log() -> UcxLog:
    """That of this process."""
    return UcxLog()


def ucx_transports(text: str) -> dict[str, str]:
    """The transports of messages WITHIN and BETWEEN nodes: `ucx/sysv+cma`, `ucx/tcp:eth0`."""
    found = dict[str, str]()
    for match in _CONNECTION.finditer(text):
        lanes = (lane.removesuffix("/memory") for lane in match[2].split())
        names = dict.fromkeys(fact_text(lane).replace("/", ":") for lane in lanes)
        found.setdefault(WITHIN if match[1] == "intra" else BETWEEN, f"ucx/{'+'.join(names)}")
    return found


def unknown_variables(text: str) -> set[str]:
    """The variables that UCX has not used."""
    return {name for match in _UNUSED.finditer(text) for name in re.findall(r"UCX_\w+", match[1])}
