"""One process at a time measures into the folder of a run, or adds to a store of baselines.

It holds a POSIX record lock (fcntl) on a file in the folder. NFS passes these locks on to the
server, so they hold between hosts; the kernel releases them however the process ends, and forks do
not inherit them. A process loses its lock when it closes any descriptor of the file, so nothing
else in the process may open it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from commbench.core.errors import ConfigError
from commbench.core.terminal import print_error

LOCK_FILE = "lock"  # names the host and process id of its holder
HELD_ELSEWHERE = (errno.EACCES, errno.EAGAIN)
LONGEST_HOLDER_BYTES = 300
FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, process id


@dataclass(frozen=True)
class FolderUse:
    """What the holder of a lock does, and what a process that is refused can do."""

    doing: str
    advice: str


MEASURING = FolderUse("measuring into", "wait for its end, or end it, then resume the run")

_descriptors = dict[Path, int]()  # of the locks of this process, by folder


@contextmanager
def locked(folder: str | Path, use: FolderUse = MEASURING) -> Iterator[None]:
    """Hold the lock of a folder; see `lock_folder`. A folder that is empty then is removed."""
    lock_folder(folder, use)
    try:
        yield
    finally:
        unlock_folder(folder)


def lock_folder(folder: str | Path, use: FolderUse = MEASURING) -> None:
    """Take the lock of a folder. Raises ConfigError where another process holds it, or where
    nothing can be written.

    On a file system without locks it says so, and goes on.
    """
    path = Path(folder).resolve()
    if path in _descriptors:
        raise ConfigError(_refusal(path, f"{socket.gethostname()} {os.getpid()}", use))
    descriptor = _opened(path)
    while not _take(path, descriptor, use):
        os.close(descriptor)
        descriptor = _opened(path)
    _descriptors[path] = descriptor
    with suppress(OSError):  # a full disk: the lock holds, a refusal names nobody
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)


def is_measured_into(folder: str | Path) -> bool:
    """Whether a process holds the lock of the folder. Asks without taking it, so that nobody who
    takes it meanwhile is refused."""
    path = Path(folder).resolve()
    if path in _descriptors:
        return True
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    wanted = struct.pack(FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    kind, *_ = struct.unpack(FLOCK, answer)
    return bool(kind != fcntl.F_UNLCK)


def unlock_folder(folder: str | Path) -> None:
    """Release the lock of a folder, if this process holds it, and remove the folder if it is
    empty."""
    path = Path(folder).resolve()
    descriptor = _descriptors.pop(path, None)
    if descriptor is None:
        return
    with suppress(OSError):  # the folder may be gone
        if _is_current(path, descriptor):
            (path / LOCK_FILE).unlink()
    os.close(descriptor)
    with suppress(OSError):
        path.rmdir()


def unlock_all() -> None:
    """Release all locks of this process."""
    for folder in list(_descriptors):
        unlock_folder(folder)


def _opened(folder: Path) -> int:
    try:
        return os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ConfigError(
            f"{folder} can't be written: {error.strerror}; choose another folder"
        ) from error


def _take(folder: Path, descriptor: int, use: FolderUse) -> bool:
    """Lock the file; False where its holder has removed it meanwhile. Raises ConfigError."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD_ELSEWHERE:
            holder = os.pread(descriptor, LONGEST_HOLDER_BYTES, 0).decode(errors="replace")
            os.close(descriptor)
            raise ConfigError(_refusal(folder, holder, use)) from error
        print_error(
            f"{folder} is on a file system without locks ({error.strerror}): make sure that no"
            f" other process is {use.doing} it"
        )
        return True
    return _is_current(folder, descriptor)


def _is_current(folder: Path, descriptor: int) -> bool:
    """Whether the open file is still the one in the folder."""
    try:
        return os.path.samestat((folder / LOCK_FILE).stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _refusal(folder: Path, holder: str, use: FolderUse) -> str:
    host, _, pid = holder.strip().rpartition(" ")
    name = f"process {pid} on {host}" if host else "another process"
    return f"{name} is {use.doing} {folder}; {use.advice}"
