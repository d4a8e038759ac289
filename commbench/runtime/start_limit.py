"""Limits for what a rank waits for before its first heartbeat, also inside a library's call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from commbench.core.case import RankIdentity
from commbench.core.errors import Unconnected
from commbench.hardware.network import network_advice

from .exit_protocol import end_with_error, process_text
from .processes import mapped_shared_memory, remove_shared_memory

MARGIN_S = 10.0  # beyond the limits of the calls inside, which name who is missing
MEETINGS_AT_MOST = 3  # of the deadline, for meetings one after another
NO_ANSWER = "the store on rank 0 gives no answer"


@contextmanager
def ends_within(
    limit_s: float, what: str, advice: Callable[[], str], identity: RankIdentity
) -> Iterator[None]:
    """End this process with one line if the block takes longer: its call may never return.

    `what` is named in the line, `advice` says what to do. The other ranks wait as well, and leave
    the line to rank 0.
    """

    def end() -> None:
        # of other ranks the command line adds it
        name = f"{process_text(0)}: " if identity.rank == 0 else ""
        error = Unconnected(f"{name}no end of {what} after {limit_s:g} s: {advice()}")
        try:
            remove_shared_memory(mapped_shared_memory([os.getpid()]))  # the library can't any more
            end_with_error(error, identity)
        finally:
            os._exit(error.exit_status)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def meetings_end(
    deadline_s: float, what: str, identity: RankIdentity | None
) -> AbstractContextManager[None]:
    """The limit of meetings that no heartbeat watches yet: their own deadlines count only while the
    store answers. None where one process hosts all ranks."""
    if identity is None:
        return nullcontext()
    limit_s = MEETINGS_AT_MOST * deadline_s + MARGIN_S
    return ends_within(limit_s, what, partial(network_advice, NO_ANSWER), identity)
