"""Where a rank is, in words that another thread may read at any time."""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import dataclass
from traceback import extract_stack

from commbench.core.protocols import Runner

MOST_FRAMES = 4
ROOTS = re.compile(r".*/(site-packages|commbench|lib/python[0-9.]+)/")


@dataclass
class Progress:
    """Written by the main thread as it goes."""

    phase: str = "starting"
    runner: Runner | None = None
    begun: float = 0.0
    limit_s: float | None = None  # of this phase; None where a meeting has a deadline of its own

    def enter(self, phase: str, runner: Runner | None = None, limit_s: float | None = None) -> None:
        self.runner, self.limit_s = None, None  # a reader between these lines must not join old and new
        self.phase, self.begun = phase, time.monotonic()
        self.runner, self.limit_s = runner, limit_s

    def late_s(self) -> float | None:
        """Seconds since this phase began, once they are more than it may take."""
        limit_s, spent_s = self.limit_s, time.monotonic() - self.begun
        return spent_s if limit_s is not None and spent_s > limit_s else None

    def text(self) -> str:
        """The phase, and inside a runner's call the repetition and, where the engine tells it, the call."""
        runner, phase = self.runner, self.phase
        if runner is None:
            return phase
        repetition, step = (int(word) for word in runner.progress[:2])
        call = (
            f", call {step + 1} of {len(runner.calls)} ({runner.calls[step]})" if 0 <= step < len(runner.calls) else ""
        )
        return f"repetition {repetition + 1}{call} of {phase}"


def main_stack() -> list[str]:
    """Where this process's main thread is, innermost call last: "file:line function"."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(-1 if main is None else main)
    if frame is None:
        return []
    found = extract_stack(frame)[-MOST_FRAMES:]
    return [f"{ROOTS.sub('', one.filename)}:{one.lineno} {one.name}" for one in found]
