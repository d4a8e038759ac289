"""What NCCL says of itself, in a file of this process: which transport it took for each peer, and why.

NCCL opens the file with its first call and reads its variables once (P7): they must stand before it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

LEVEL, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
OURS = "COMMBENCH_NCCL_LOG"  # nobody else has asked for a log
# COLL, TUNING and CALL write a line for each operation: not while something is measured
SAID_ONCE = "INIT,ENV,GRAPH,P2P,SHM,NET,NVLS"
MOST_BYTES = 1 << 20


def asked(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a log for us; none where the user has something to say about it."""
    if LEVEL in environ or FILE in environ:
        return {}
    return {OURS: "1", LEVEL: "INFO", SUBSYSTEMS: environ.get(SUBSYSTEMS, SAID_ONCE)}


class NcclLog:
    """The log of this process; none where it is the user's. Changes `environ`, so it must be made before NCCL starts.

    The file has no name any more once NCCL has it open: nothing stays behind, however the process ends.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._number: int | None = None
        if OURS not in environ or FILE in environ:
            return
        try:
            self._number, self._path = tempfile.mkstemp(prefix="commbench-nccl-", suffix=".log")
        except OSError:  # without a file it would write to our standard output
            environ.pop(LEVEL, None)
            return
        environ[FILE] = self._path.replace("%", "%%")

    def remove(self) -> None:
        """Take the file's name away, once NCCL has begun to write; what it says can still be read."""
        if self._number is not None:
            with suppress(OSError):
                Path(self._path).unlink()

    def text(self) -> str | None:
        """What is in it now, up to a bound; a communicator that connects later adds to it."""
        if self._number is None:
            return None
        return os.pread(self._number, MOST_BYTES, 0).decode(errors="replace")
