"""The Python engine: source generated for one case, with every step unrolled.

A loop over a tuple of bound calls costs 9 % of an 8 B ping-pong, unrolled source 2.6 %.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.clock import now_ns
from commbench.core.errors import CommunicationError

from .doze import doze
from .lowered import Lowered


@dataclass(frozen=True)
class Rotating:
    """An argument with one value for each copy of a rotation pool."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """One library call. `into` keeps the result as a request, `requests` passes such results as a list."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    into: int | None = None
    requests: tuple[int, ...] | None = None


class PythonRunner:
    """See Runner; hosts one rank."""

    engine = "python"
    calls: tuple[str, ...] = ()

    def __init__(self, calls: Lowered[Call], pool: int) -> None:
        self.progress = np.array([0, -1], dtype=np.int64)
        self._loop = Source(pool).build(calls)

    def __call__(self, n: int, starts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        instants = () if starts is None else (starts.tolist(), doze)  # numpy's integers would slow the wait
        enabled = gc.isenabled()
        gc.disable()  # as timeit does: a collection is not communication
        try:
            self._loop(n, stamps[0], self.progress, now_ns, *instants)
        except Exception as error:
            raise CommunicationError(f"{type(error).__name__}: {error}") from error
        finally:
            if enabled:
                gc.enable()
        return stamps


class Source:
    """Writes the loop's text and keeps the objects that it names."""

    def __init__(self, pool: int) -> None:
        self._pool = pool
        self._names: dict[str, Any] = {}
        self._rotating: list[str] = []

    def build(self, calls: Lowered[Call]) -> Callable[..., None]:
        enter = [self._line(call) for call in calls.enter]
        before = [self._line(call) for call in calls.before]
        timed = [self._line(call) for call in calls.steps]
        rotate = [f"{name} = {name}_all[k]" for name in self._rotating]
        advance = ["k += 1", f"if k == {self._pool}: k = 0"] if rotate else []
        # what decides is the stamp behind the wait: a rank that lost its core in it has begun late, too
        wait = ["s = starts[r]", "doze(s - clock())", "while clock() < s: pass"] if calls.windowed else []
        body = [
            "progress[0] = r", *rotate, *before, *wait,
            "t0 = clock()", *timed, "t1 = clock()",
            "row = stamps[r]; row[0] = t0; row[1] = t1", *advance,
        ]  # fmt: skip
        given = ", starts, doze" if calls.windowed else ""
        head = "\n    ".join([f"def loop(n, stamps, progress, clock{given}):", *enter, "k = 0", "for r in range(n):"])
        return self._made("\n        ".join([head, *body]))

    def routine(self, calls: Sequence[Call]) -> Callable[[int], None]:
        """The calls as a function of the copy that they use."""
        lines = [self._line(call) for call in calls]
        chosen = [f"{name} = {name}_all[k]" for name in self._rotating]
        return self._made("\n    ".join(["def loop(k):", *chosen, *lines, "pass"]))

    def _made(self, text: str) -> Callable[..., None]:
        source = f"def make({', '.join(self._names)}):\n  {text.replace(chr(10), chr(10) + '  ')}\n  return loop"
        space: dict[str, Any] = {}
        exec(compile(source, "<commbench program>", "exec"), space)
        made: Callable[..., None] = space["make"](**self._names)
        return made

    def _line(self, call: Call) -> str:
        args = [self._name(arg) for arg in call.args]
        if call.requests is not None:
            args.append(f"[{', '.join(f'q{index}' for index in call.requests)}]")
        text = f"{self._name(call.function)}({', '.join(args)})"
        return text if call.into is None else f"q{call.into} = {text}"

    def _name(self, value: Any) -> str:
        for name, known in self._names.items():
            if known is value:
                return name
        if isinstance(value, Rotating) and self._pool > 1:
            return self._rotate(value)
        if isinstance(value, Rotating):
            value = value.values[0]
        name = f"v{len(self._names)}"
        self._names[name] = value
        return name

    def _rotate(self, value: Rotating) -> str:
        name = f"x{len(self._names)}"
        self._names[f"{name}_all"] = value.values
        self._rotating.append(name)
        return name
