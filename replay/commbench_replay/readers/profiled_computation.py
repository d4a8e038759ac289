"""When a rank computes, by the events of its torch profile."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from commbench.core.foreign import LARGEST_INTEGER
from commbench_replay.busy_times import MOST_PENDING, BusyTimes, Span, SpanUnion, union_of

EventKind = Literal["computation", "communication", "neither"]
ThreadName = int | str

CPU_OPERATION = "cpu_op"
# an event of the CPU as the profiler writes it, with its keys in this order; times in microseconds
WRITTEN_EVENT = re.compile(
    r'"cpu_op"\s*,\s*"name"\s*:\s*"([^"]*)"\s*,\s*"pid"\s*:[^,{}]*,'
    r'\s*"tid"\s*:\s*("[^"\\]*"|-?\d{1,18})\s*,\s*"ts"\s*:\s*([0-7]?\d{1,15}(?:\.\d{1,9})?)\s*,'
    r'\s*"dur"\s*:\s*(\d{1,15}(?:\.\d{1,9})?)\s*[,}]'
)
COMMUNICATION = re.compile(r"_?c10d|record_param_comms|[a-z]{2,16}:_?[a-zA-Z]")
# an operation by another library: its name has one of these words
COLLECTIVE_WORDS = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.I)
# copies into and out of the buffers of a collective
COLLECTIVE_COPIES = re.compile(r"aten::|fsdp::")
LIBRARY_KERNELS = re.compile(r"[nr]ccl|nvshmem|deep_?ep|mscclpp", re.I)
# other events, of the autograd engine or a module, have such operations in them, and may also wait
COMPUTING_OPERATION = re.compile(r"(?!autograd::engine)\w+::|cpp_fused")
LARGEST_CACHE = 4096


@lru_cache(maxsize=LARGEST_CACHE)
def cpu_kind(name: str) -> EventKind:
    """Of an event of the CPU side, by its name."""
    if COMMUNICATION.match(name):
        return "communication"
    if not COMPUTING_OPERATION.match(name):
        return "neither"
    foreign = COLLECTIVE_WORDS.search(name) and not COLLECTIVE_COPIES.match(name)
    return "communication" if foreign else "computation"


@lru_cache(maxsize=LARGEST_CACHE)
def kernel_computes(name: str) -> bool:
    """Whether a kernel is of no communication library."""
    return not LIBRARY_KERNELS.search(name) and not COLLECTIVE_WORDS.search(name)


@lru_cache(maxsize=LARGEST_CACHE)
def _thread(text: str) -> ThreadName:
    return text[1:-1] if text.startswith('"') else int(text)


class _ThreadOperations:
    """Operations of one thread of the CPU, until it is known whether a call is in them."""

    def __init__(self, most_pending: int) -> None:
        self.starts: array[int] = array("q")
        self.ends: array[int] = array("q")
        self.calls: list[Span] = []
        self.most = most_pending
        self._most_pending = most_pending

    @property
    def is_full(self) -> bool:
        return len(self.starts) >= self.most

    def settled(self, until_ns: int) -> Iterator[Span]:
        """Those that end until then, but for those with a part of a call in them, which may wait,
        and those within a call or another one. Calls that begin before must be known."""
        self.calls = union_of(self.calls)
        call_starts = [start_ns for start_ns, _ in self.calls]
        starts = self.starts
        ends = self.ends
        self.starts = array("q")
        self.ends = array("q")
        outer_start_ns = 0
        outer_end_ns = 0
        for start_ns, end_ns in zip(starts, ends, strict=True):
            if end_ns > until_ns:
                self.starts.append(start_ns)
                self.ends.append(end_ns)
            elif start_ns < outer_start_ns or end_ns > outer_end_ns:
                place = bisect_left(call_starts, end_ns)
                if place == 0 or self.calls[place - 1][1] <= start_ns:
                    yield start_ns, end_ns
                    outer_start_ns = start_ns
                    outer_end_ns = end_ns
        self.most = max(self._most_pending, 2 * len(self.starts))


class Computation:
    """Takes the events as they come. A rank with kernels computes while one of them runs that is
    of no communication library, on any stream; another one while an operation of the CPU runs,
    on any thread, that is no part of a call of a process group and has none in it."""

    def __init__(self, most_pending: int = MOST_PENDING) -> None:
        self._kernels = SpanUnion(most_pending)
        self._has_kernels = False
        self._operations = SpanUnion(most_pending)
        self._threads: dict[ThreadName, _ThreadOperations] = defaultdict(
            lambda: _ThreadOperations(most_pending)
        )

    def add_kernel(self, start_ns: int, duration_ns: int, computes: bool) -> None:
        self._has_kernels = True
        if computes:
            self._kernels.add(start_ns, min(start_ns + duration_ns, LARGEST_INTEGER))

    def add_cpu_event(self, name: str, thread: ThreadName, start_ns: int, duration_ns: int) -> None:
        kind = cpu_kind(name)
        if kind == "neither":
            return
        operations = self._threads[thread]
        end_ns = min(start_ns + duration_ns, LARGEST_INTEGER)
        if kind == "communication":
            operations.calls.append((start_ns, end_ns))
            return
        operations.starts.append(start_ns)
        operations.ends.append(end_ns)
        if operations.is_full:
            self._settle()

    def skim(self, text: str) -> bool:
        """Take the events of the CPU from the text of whole events; False where one of them is not
        written as usual, and nothing was taken."""
        count = text.count(f'"{CPU_OPERATION}"')
        written = WRITTEN_EVENT.findall(text) if count else []
        if count != len(written):
            return False
        # most of the time of reading a profile without kernels is spent here
        for name, thread, start, duration in written:
            kind = cpu_kind(name)
            if kind == "neither":
                continue
            start_ns = round(float(start) * 1000) if "." in start else int(start) * 1000
            length_ns = round(float(duration) * 1000) if "." in duration else int(duration) * 1000
            operations = self._threads[_thread(thread)]
            if kind == "computation":
                operations.starts.append(start_ns)
                operations.ends.append(start_ns + length_ns)
            else:
                operations.calls.append((start_ns, start_ns + length_ns))
        if any(operations.is_full for operations in self._threads.values()):
            self._settle()
        return True

    def _settle(self, is_end: bool = False) -> None:
        """A profile has the events of a thread in the order of their starts, so nothing that begins
        before the last one is to come."""
        spans: list[Span] = []
        for operations in self._threads.values():
            if operations.starts:
                until_ns = LARGEST_INTEGER if is_end else operations.starts[-1]
                spans += operations.settled(until_ns)
        for start_ns, end_ns in sorted(spans):
            self._operations.add(start_ns, end_ns)

    def busy_times(self, base_ns: int, on_gpu: bool) -> BusyTimes | None:
        """On a clock that begins `base_ns` before that of the events; None where the profile has
        neither kernels nor, if the rank does not compute on a GPU, such operations of the CPU."""
        if self._has_kernels:
            return BusyTimes(self._kernels.spans(), base_ns)
        if on_gpu:
            return None
        self._settle(is_end=True)
        busy = BusyTimes(self._operations.spans(), base_ns)
        return busy if busy.total_ns else None
