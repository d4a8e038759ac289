"""When the work of each call in a torch profile ran.

NCCL's work is kernels. A kernel has the number of its launch, which lies within the call, on the
same thread. Gloo's work is an annotation on a thread of the library, after the call.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from commbench_replay.busy_times import Span
from commbench_replay.operations import operation_named

from .kernel_streams import Kernel
from .profile_events import (
    ANNOTATION,
    PARAM_RECORD,
    Launches,
    ProfileEvent,
    ProfileEvents,
    outermost,
)
from .profiled_call import ProfiledCall, tensor_lists
from .profiled_computation import ThreadName

KERNEL_LIBRARY = re.compile(r"\wccl:")
SCATTER_EACH = "reduce_scatter_tensor_coalesced"
UNLINKED_KERNELS = "library kernels whose call is not in the trace"


def calls_and_work(events: ProfileEvents) -> tuple[list[ProfiledCall], list[ProfileEvent]]:
    """The calls, and the work on threads of a library, in the order of their starts."""
    calls = []
    work = []
    for thread, parts in events.calls.items():
        for event in outermost(parts):
            is_alone = ANNOTATION.match(event.name) and not event.inner
            if is_alone and not KERNEL_LIBRARY.match(event.name):
                work.append(event)
            elif event.inner or event.name != PARAM_RECORD or event.args.get("Collective name"):
                calls.append(ProfiledCall(event, thread))
    calls.sort(key=lambda call: call.event.start_ns)
    work.sort(key=lambda event: event.start_ns)
    return calls, work


def kernel_spans(
    calls: Sequence[ProfiledCall],
    kernels: Sequence[Kernel],
    launches: Launches,
    notes: Counter[str],
) -> dict[ProfiledCall, Span]:
    """From the start of its first kernel to the end of its last. A span whose end is not known ends
    before it starts."""
    launched = launches.of({kernel.correlation for kernel in kernels})
    by_thread: dict[ThreadName, list[ProfiledCall]] = defaultdict(list)
    for call in calls:
        by_thread[call.thread].append(call)
    spans: dict[ProfiledCall, Span] = {}
    for kernel in kernels:
        thread, launched_ns = launched.get(kernel.correlation, ("", 0))
        launcher = _call_at(by_thread.get(thread, []), launched_ns)
        if launcher is None:
            notes[UNLINKED_KERNELS] += 1
        else:
            spans[launcher] = _joined(spans.get(launcher), kernel)
    return spans


def _call_at(calls: Sequence[ProfiledCall], time_ns: int) -> ProfiledCall | None:
    """The one of a thread's calls that ran then."""
    begun = bisect_right(calls, time_ns, key=lambda call: call.event.start_ns)
    if not begun or time_ns > calls[begun - 1].event.end_ns:
        return None
    return calls[begun - 1]


def _joined(span: Span | None, kernel: Kernel) -> Span:
    first_ns, last_ns = span or (kernel.start_ns, kernel.end_ns)
    if last_ns < first_ns or kernel.end_ns < kernel.start_ns:
        return first_ns, first_ns - 1
    return min(first_ns, kernel.start_ns), max(last_ns, kernel.end_ns)


class WorkQueues:
    """The work on threads of a library. Work of one name serves calls in their order."""

    def __init__(self, work: Sequence[ProfileEvent]) -> None:
        self._queues: dict[str | None, deque[ProfileEvent]] = defaultdict(deque)
        for event in work:
            self._queues[operation_named(event.name)].append(event)
        self.unused = len(work)

    def work_of(self, call: ProfiledCall, operation: str) -> ProfileEvent | None:
        """The annotation of the work of a call, in the call or on a thread of the library."""
        if call.record is not None or call.annotation is not None:
            return call.annotation
        first = self._next(operation, call.event.start_ns)
        if first is None or call.operator is None or SCATTER_EACH not in call.operator.name:
            return first
        # gloo reduces one tensor after another
        outputs = next(iter(tensor_lists(call.operator)), [])
        others = [self._next(operation, call.event.start_ns) for _ in outputs[1:]]
        last = next((work for work in reversed(others) if work is not None), first)
        return replace(first, end_ns=last.end_ns)

    def _next(self, operation: str, start_ns: int) -> ProfileEvent | None:
        # gloo makes a reduce_scatter from an all_reduce, and calls it so
        other_names = ["all_reduce"] if operation == "reduce_scatter" else []
        for name in (operation, *other_names):
            queue = self._queues[name]
            while queue and queue[0].end_ns < start_ns:
                queue.popleft()
            if queue:
                self.unused -= 1
                return queue.popleft()
        return None
