"""What a turn of `watch --quiet` prints: nothing, unless something has changed or went wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass

from commbench.cluster.watch.changes import JudgedCase
from commbench.core.errors import ConfigError
from commbench.stats.thresholds import DECIDING_LAUNCHES


@dataclass
class HeldText:
    """What is printed in the meantime; `is_told`: whether it is at the end."""

    is_told: bool = True


@contextmanager
def held_text(is_held: bool) -> Iterator[HeldText]:
    """Hold back what is printed. An error tells it."""
    held = HeldText()
    if not is_held:
        yield held
        return
    text = io.StringIO()
    try:
        with redirect_stdout(text), redirect_stderr(text):
            yield held
    finally:
        if held.is_told:
            sys.stdout.write(text.getvalue())
            sys.stdout.flush()


def has_news(judged: Iterable[JudgedCase], status: int) -> bool:
    """Whether a change has begun or ended, a case was not measured though enough is known of it, or
    launches went wrong. `status`: the worst of the launches."""
    return status >= ConfigError.exit_status or any(
        each.outcome.kind in ("begun", "ended")
        or (each.verdict == "UNDECIDED" and len(each.history.healthy) >= DECIDING_LAUNCHES)
        for each in judged
    )
