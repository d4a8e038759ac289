"""The processes, shared memory and listening ports of a run, and which of them are left behind."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = "COMMBENCH_FAULT_ID"  # in the environment of every process of a run
SHARED = "/dev/shm/"
LISTENS = "0A"  # in the fourth column of /proc/net/tcp
GONE_S = 3.0  # seconds that a killed process may take to disappear


@dataclass
class Traces:
    """Those of processes whose environment has this token; call `look` repeatedly during the run,
    then `left`."""

    token: str
    shared: set[str] = field(default_factory=set)
    # inodes: another process may get the same port soon
    sockets: set[str] = field(default_factory=set)

    def pids(self) -> list[int]:
        """The running processes; a zombie has ended."""
        mark = f"{TOKEN}={self.token}".encode()
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended meanwhile
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    pids.append(int(process.name))
        return pids

    def look(self) -> None:
        listening = _listening()
        for pid in self.pids():
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
                self.shared |= {
                    line[line.index(SHARED) :].split()[0] for line in lines if SHARED in line
                }
                links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
                self.sockets |= {inode for inode in listening if f"socket:[{inode}]" in links}

    def left(self) -> list[str]:
        """Descriptions of what is left after waiting GONE_S for it to disappear."""
        until = time.monotonic() + GONE_S
        while (left := self._left_now()) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def _left_now(self) -> list[str]:
        left = [f"process {pid} ({command_of(pid)[:80]})" for pid in self.pids()]
        left += [path for path in sorted(self.shared) if Path(path).exists()]
        listening = _listening()
        return left + [
            f"port {listening[inode]}" for inode in sorted(self.sockets) if inode in listening
        ]

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _listening() -> dict[str, int]:
    """The listening ports of this network namespace by the inode of their socket."""
    ports = {}
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                ports[words[9]] = int(words[1].rpartition(":")[2], 16)
    return ports


def command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""
