"""Ranks as threads of one process, for what needs real connections but no processes of its own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SOON_S = 20.0  # nobody should be that late


def together(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """work(item) in a thread each; what they returned or raised. Fails if one hangs."""
    ends: list[Any] = [None] * len(items)

    def run(index: int) -> None:
        try:
            ends[index] = work(items[index])
        except BaseException as error:
            ends[index] = error

    threads = [
        threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(items))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SOON_S)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return ends


def no_error(ends: list[Any]) -> list[Any]:
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return ends


def delays(rank: int, longest_s: float) -> Iterator[None]:
    """Sleep a little, or not, at each next()."""
    rng = random.Random(rank)
    while True:
        if rng.random() < 0.5:
            time.sleep(rng.random() * longest_s)
        yield
