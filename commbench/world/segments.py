"""Shared memory that an MPI library leaves in /dev/shm when its ranks are killed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

OF_LIBRARIES = re.compile(r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.|ucx_shm_posix_)\S+")


def mapped(pids: Iterable[int]) -> set[Path]:
    """The libraries' segments that these processes have mapped, and that have a name still."""
    found: set[Path] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended, or is somebody else's
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            texts = (OF_LIBRARIES.search(line) for line in lines if not line.endswith("(deleted)"))
            found |= {Path(text[0]) for text in texts if text is not None}
    return found


def sweep(segments: Iterable[Path]) -> None:
    """Once the world that had them is gone."""
    for segment in segments:
        with suppress(OSError):
            segment.unlink()
