"""What this machine tells of a process: whether it runs, how it has ended, and which shared memory
of MPI it has mapped."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# by the letter of proc(5)
STOPPED = {"T": "is stopped by a signal", "t": "is stopped by a debugger"}
ENDED = "has ended"
PROCESS_STATES = {"Z": ENDED, "X": ENDED, **STOPPED}
# pidfd_info of linux/pidfd.h (Linux 6.15): how a process ended, also for those that are not its
# parent
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO = "QQ11Ii"
# what MPI libraries leave in /dev/shm when their ranks are killed
MPI_SHARED_MEMORY = re.compile(
    r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.|ucx_shm_posix_)\S+"
)


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, see proc(5): the first is the state, a letter.
    Raises OSError."""
    # the name before may end within a letter: the kernel cuts it at 15 bytes
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if not fields:
        raise OSError(f"/proc/{pid}/stat is masked")
    return fields


def process_state(pid: int) -> str | None:
    """What has happened to a process of this kernel, in words; None while it runs, and where
    nobody may see it."""
    try:
        return PROCESS_STATES.get(stat_fields(pid)[0])
    except FileNotFoundError:
        return ENDED
    except OSError:
        return None


def how_stopped(pid: int) -> str | None:
    """How a process is stopped, in words; None if it runs or is gone."""
    state = process_state(pid)
    return None if state == ENDED else state


def exit_code(pidfd: int, pid: int) -> int | None:
    """How another process's child ended: from the kernel (Linux 6.15), or from the process while it
    is a zombie."""
    info = bytearray(struct.pack(PIDFD_INFO, PIDFD_INFO_EXIT, *[0] * 13))
    with suppress(OSError):
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info, True)
        mask, *_, status = struct.unpack(PIDFD_INFO, info)
        if mask & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    with suppress(OSError, ValueError):
        fields = stat_fields(pid)
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None
    return None


# ---------------------------------------------------------------- shared memory


def mapped_shared_memory(pids: Iterable[int]) -> set[Path]:
    """The MPI libraries' files in /dev/shm that these processes have mapped, unless they are
    deleted already."""
    files: set[Path] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            text = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
            lines = text.splitlines()
            matches = (
                MPI_SHARED_MEMORY.search(line) for line in lines if not line.endswith("(deleted)")
            )
            files |= {Path(match[0]) for match in matches if match is not None}
    return files


def remove_shared_memory(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):  # already gone
            file.unlink()
