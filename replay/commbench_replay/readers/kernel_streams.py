"""The kernels of a profile by stream, where some say that they last longer than they can."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

NO_CORRELATION = -1
COMPUTATION = -2
PROCESS_GROUP = -1
ROUNDING_NS = 1000  # times until 2024 are whole microseconds


@dataclass
class _Stream:
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    # of the launch: kernels of one launch are those of a graph
    correlations: array[int] = field(default_factory=lambda: array("q"))
    owners: array[int] = field(default_factory=lambda: array("l"))


class Kernel(NamedTuple):
    """`owner`: COMPUTATION, PROCESS_GROUP, or a number that the caller gives to one of another
    library that communicates."""

    start_ns: int
    end_ns: int
    correlation: int
    owner: int


class KernelStreams:
    """A stream ends its kernels in the order of their starts. The next one may begin earlier
    (programmatic dependent launch), but a kernel that ends after the next one did is cut at the
    start of that one. `cut` counts them."""

    def __init__(self) -> None:
        self.cut = 0
        self._streams: dict[object, _Stream] = defaultdict(_Stream)

    def add(self, name: object, kernel: Kernel) -> None:
        stream = self._streams[name]
        stream.starts.append(kernel.start_ns)
        stream.ends.append(kernel.end_ns)
        stream.correlations.append(kernel.correlation)
        stream.owners.append(kernel.owner)

    def kernels(self, in_order: bool) -> Iterator[Kernel]:
        """All of them, once. `in_order`: what the profile calls a stream is one."""
        for stream in self._streams.values():
            spans = list(zip(stream.starts, stream.ends, strict=True))
            order = sorted(range(len(spans)), key=spans.__getitem__)
            if in_order:
                self._cut(stream, order)
            for place in order:
                yield Kernel(
                    stream.starts[place],
                    stream.ends[place],
                    stream.correlations[place],
                    stream.owners[place],
                )

    def _cut(self, stream: _Stream, order: list[int]) -> None:
        """Kernels of one graph may run side by side, so they are held against those behind it."""
        following: int | None = None
        behind: int | None = None
        for place in reversed(order):
            if following is not None and not _of_one_graph(stream, place, following):
                behind = following
            if behind is not None and stream.ends[place] > stream.ends[behind] + ROUNDING_NS:
                stream.ends[place] = stream.starts[behind]
                self.cut += 1
            following = place


def _of_one_graph(stream: _Stream, first: int, second: int) -> bool:
    correlation = stream.correlations[first]
    return correlation != NO_CORRELATION and correlation == stream.correlations[second]
