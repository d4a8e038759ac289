"""The Python engine: source generated for one case, with every step unrolled.

A loop over a tuple of bound calls costs 9 % of an 8 B ping-pong, unrolled source 2.6 %.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import CommunicationError, Unsupported

from .lowered import Call, Lowered, Rotating

now_ns = time.perf_counter_ns  # CLOCK_MONOTONIC on Linux: the same clock the native engine reads
LONG_WAIT_NS = 4_000_000  # a wait from here on sleeps
WAKE_EARLY_NS = 2_000_000  # and is awake again so long before its end


class PythonRunner:
    """See Runner; hosts one rank."""

    engine = "python"
    calls: tuple[str, ...] = ()

    def __init__(self, calls: Lowered[Call], pool: int) -> None:
        self.progress = np.array([0, -1], dtype=np.int64)
        self._loop = LoopSource(pool).loop(calls)

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        instants = () if starts is None else (starts.tolist(), sleep_until)  # numpy's integers would slow the wait
        with measured_calls():
            self._loop(n, stamps[0], self.progress, now_ns, *instants)
        return stamps


@contextmanager
def measured_calls() -> Iterator[None]:
    """Without garbage collection, as timeit does: it is not communication. Errors become a CommunicationError."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    except Unsupported:
        raise
    except Exception as error:
        raise CommunicationError(f"{type(error).__name__}: {error}") from error
    finally:
        if enabled:
            gc.enable()


def sleep_until(instant_ns: int) -> None:
    """Sleep through all but the end of a long wait for an instant of `now_ns`; the caller spins for the rest.

    The library's own threads may need the core, and a process that spins for long loses it.
    """
    left_ns = instant_ns - now_ns()
    if left_ns > LONG_WAIT_NS:
        time.sleep((left_ns - WAKE_EARLY_NS) * 1e-9)


class LoopSource:
    """Writes the source of a function and keeps the objects that it names."""

    def __init__(self, pool: int) -> None:
        self._pool = pool
        self._names: dict[str, Any] = {}
        self._rotating: list[str] = []

    def loop(self, calls: Lowered[Call]) -> Callable[..., None]:
        """A function of (n, stamps [n, 2], progress, clock), and of (starts, sleep_until) where `calls` is windowed."""
        enter = [self._line(call) for call in calls.enter]
        before = [self._line(call) for call in calls.before]
        timed = [self._line(call) for call in calls.steps]
        rotate = [f"{name} = {name}_all[k]" for name in self._rotating]
        advance = ["k += 1", f"if k == {self._pool}: k = 0"] if rotate else []
        # the stamp after the wait decides: a rank that lost its core during the wait began late, too
        wait = ["s = starts[r]", "sleep_until(s)", "while clock() < s: pass"] if calls.windowed else []
        body = [
            "progress[0] = r", *rotate, *before, *wait,
            "t0 = clock()", *timed, "t1 = clock()",
            "row = stamps[r]; row[0] = t0; row[1] = t1", *advance,
        ]  # fmt: skip
        parameters = ", starts, sleep_until" if calls.windowed else ""
        head = [f"def loop(n, stamps, progress, clock{parameters}):", *enter, "k = 0", "for r in range(n):"]
        return self._compile("\n        ".join(["\n    ".join(head), *body]))

    def routine(self, calls: Sequence[Call]) -> Callable[[int], None]:
        """The calls as a function of the copy that they use."""
        lines = [self._line(call) for call in calls]
        rotate = [f"{name} = {name}_all[k]" for name in self._rotating]
        return self._compile("\n    ".join(["def loop(k):", *rotate, *lines, "pass"]))

    def _compile(self, text: str) -> Callable[..., None]:
        """`text` defines `loop`; its names become local to a function around it, which is faster than globals."""
        source = f"def make({', '.join(self._names)}):\n  {text.replace(chr(10), chr(10) + '  ')}\n  return loop"
        namespace: dict[str, Any] = {}
        exec(compile(source, "<commbench program>", "exec"), namespace)
        function: Callable[..., None] = namespace["make"](**self._names)
        return function

    def _line(self, call: Call) -> str:
        args = [self._name(arg) for arg in call.args]
        if call.requests is not None:
            args.append(f"[{', '.join(f'q{index}' for index in call.requests)}]")
        text = f"{self._name(call.function)}({', '.join(args)})"
        return text if call.into is None else f"q{call.into} = {text}"

    def _name(self, value: Any) -> str:
        """The name of this object in the source, by identity: 1, True and 1.0 are equal but not the same."""
        for name, named in self._names.items():
            if named is value:
                return name
        if isinstance(value, Rotating) and self._pool > 1:
            name = f"x{len(self._names)}"
            self._names[f"{name}_all"] = value.values
            self._rotating.append(name)
            return name
        name = f"v{len(self._names)}"
        self._names[name] = value.values[0] if isinstance(value, Rotating) else value
        return name
