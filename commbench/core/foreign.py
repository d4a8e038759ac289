"""What reading a file of a stranger may take: memory, the bytes and values in it, their depth.

What is beyond is refused by name. A reader has no bounds of its own.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import Unreadable

MOST_MEMORY_BYTES = 2**30
LARGEST_WHOLE_BYTES = 256 * 2**20  # of a file that is not read in parts
MOST_VALUES = 2**22
DEEPEST = 100  # values within values
LARGEST_INTEGER = 2**63 - 1
_READING = threading.RLock()  # the limit is that of the process


def plain_file(path: str | Path) -> BinaryIO:
    """A plain file, open; anything else, such as a FIFO, could wait forever. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def whole_file(path: str | Path, most_bytes: int = LARGEST_WHOLE_BYTES) -> bytes:
    """The content of a plain file that must be small. Raises OSError, and Unreadable."""
    with plain_file(path) as file:
        content = file.read(most_bytes + 1)
    check_size(str(path), len(content), most_bytes)
    return content


def check_size(name: str, size_bytes: int, most_bytes: int = LARGEST_WHOLE_BYTES) -> None:
    if size_bytes > most_bytes:
        raise Unreadable(
            f"{name} has more than {most_bytes >> 20} MiB, the most that a file of this form may"
            " have; leave it out"
        )


@contextmanager
def bounded_reading(name: str) -> Iterator[None]:
    """Within it, this process gets MOST_MEMORY_BYTES more; raises Unreadable, also for values
    nested too deeply for Python's stack."""
    with _READING:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = _data_bytes() + MOST_MEMORY_BYTES
        given = [known for known in (soft, hard) if known != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limit, *given, sys.maxsize), hard))
        try:
            yield
        except MemoryError as error:
            raise Unreadable(
                f"{name} takes more than {MOST_MEMORY_BYTES >> 30} GiB of memory to read; record"
                " less of the job, or leave the file out"
            ) from error
        except RecursionError as error:
            raise Unreadable(
                f"{name} has values nested without end; record it again, or leave it out"
            ) from error
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """What RLIMIT_DATA counts of this process: the sixth number of statm, in pages."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def check_values(document: object) -> None:
    """Raises ValueError where plain values are too many or too deep, or hold themselves.

    A value that several others share counts for each of them, as it will be read for each.
    """
    # of a list or mapping that was counted, by its id: the values in it, and how deep they are
    counted = dict[int, tuple[int, int]]()
    open_ids: set[int] = set()
    pending = [(document, False)]
    while pending:
        value, is_done = pending.pop()
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ValueError("it has a number of more than 64 bits")
        if not isinstance(value, dict | list | tuple | set | frozenset) or id(value) in counted:
            continue
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        if is_done:
            open_ids.remove(id(value))
            known = [counted.get(id(part), (1, 0)) for part in parts]
            counted[id(value)] = (
                1 + sum(count for count, _ in known),
                1 + max((depth for _, depth in known), default=0),
            )
            _check_count(*counted[id(value)])
        elif id(value) in open_ids:
            raise ValueError("a value holds itself")
        else:
            open_ids.add(id(value))
            pending.append((value, True))
            pending += [(part, False) for part in parts]


def _check_count(values: int, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"its values are nested more than {DEEPEST} deep")
    if values > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values")
