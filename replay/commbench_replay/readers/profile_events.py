"""The events of a torch profile, each kept where it belongs as it is read."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from commbench.core.foreign import LARGEST_INTEGER
from commbench_replay.json_stream import nanoseconds, whole
from commbench_replay.operations import operation_named

from .kernel_streams import COMPUTATION, NO_CORRELATION, PROCESS_GROUP, Kernel, KernelStreams
from .profiled_computation import (
    COLLECTIVE_WORDS,
    CPU_OPERATION,
    Computation,
    ThreadName,
    kernel_computes,
)

Step = tuple[int, int, int]  # start, end, number

PARAM_RECORD = "record_param_comms"
OPERATOR = re.compile(r"c10d::_?[a-z]")
ANNOTATION = re.compile(r"[a-z]{2,16}:_?[a-zA-Z]")
STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")
CPU_CATEGORIES = (CPU_OPERATION, "user_annotation")
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime")
LIBRARY_KERNEL = re.compile(r"^(?:void )?[nr]ccl\w*Kernel", re.I)
# they copy or wait beside a collective, or call one that is recorded
NO_COLLECTIVE = re.compile(r"^(?:aten|fsdp|c10d|_c10d_functional\w*|c10d_functional|record_)\b")


@dataclass(slots=True)
class ProfileEvent:
    """`inner` has the events within it. Its end lies before its start where its duration is
    negative, so that its end is not known."""

    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any]
    inner: list[ProfileEvent] = field(default_factory=list)

    @property
    def is_negative(self) -> bool:
        return self.end_ns < self.start_ns


class Launches:
    """The launch of each kernel, by its correlation."""

    def __init__(self) -> None:
        self._correlations: array[int] = array("q")
        self._threads: array[int] = array("q")
        self._times: array[int] = array("q")
        self._numbers: dict[ThreadName, int] = {}

    def add(self, correlation: int, thread: ThreadName, time_ns: int) -> None:
        self._correlations.append(correlation)
        self._threads.append(self._numbers.setdefault(thread, len(self._numbers)))
        self._times.append(time_ns)

    def of(self, correlations: set[int]) -> dict[int, tuple[ThreadName, int]]:
        """Thread and time of these launches, of those that the profile has."""
        names = list(self._numbers)
        launches = zip(self._correlations, self._threads, self._times, strict=True)
        return {
            correlation: (names[thread], time_ns)
            for correlation, thread, time_ns in launches
            if correlation in correlations
        }


class ProfileEvents:
    """`calls`: parts of calls of process groups, by thread; `foreign_calls`: likewise of other
    libraries. `kernels` (of process groups) and `foreign_kernels` are complete after
    settle_kernels. `processes`: the numbers of those that call or mark steps."""

    def __init__(self) -> None:
        self.calls: dict[ThreadName, list[ProfileEvent]] = defaultdict(list)
        self.foreign_calls: dict[ThreadName, list[ProfileEvent]] = defaultdict(list)
        self.kernels: list[Kernel] = []
        self.foreign_kernels: list[ProfileEvent] = []
        self.launches = Launches()
        self.steps: list[Step] = []
        self.computation = Computation()
        self.processes: dict[str, None] = {}
        self.untimed = 0
        self.negative = 0
        self.negative_operations = 0  # of the CPU, which only count where they are the computation
        self._streams = KernelStreams()

    def add(self, event: Mapping[str, Any]) -> None:
        name = event.get("name")
        span = _span(event)
        category = str(event.get("cat", "")).lower()
        if not isinstance(name, str):
            return
        if span is None:
            is_call = category in CPU_CATEGORIES and (_is_call(name) or STEP.fullmatch(name))
            self.untimed += category == "kernel" or bool(is_call)
            return
        args = event.get("args")
        kept = ProfileEvent(name, *span, args if isinstance(args, dict) else {})
        process = str(event.get("pid"))
        thread = event.get("tid")
        if category == "kernel":
            self._add_kernel(kept, (process, str(thread)))
        elif not isinstance(thread, int | str):
            return
        elif category in LAUNCH_CATEGORIES:
            self._add_launch(kept, thread)
        elif category in CPU_CATEGORIES:
            self._add_cpu_event(kept, thread, process, category == CPU_OPERATION)

    def _add_launch(self, event: ProfileEvent, thread: ThreadName) -> None:
        correlation = whole(event.args.get("correlation"))
        if correlation is not None and "Launch" in event.name:
            self.launches.add(correlation, thread, event.start_ns)

    def _add_kernel(self, event: ProfileEvent, stream: tuple[str, str]) -> None:
        if kernel_computes(event.name):
            owner = COMPUTATION
        elif LIBRARY_KERNEL.search(event.name):
            owner = PROCESS_GROUP
        else:
            owner = len(self.foreign_kernels)
            self.foreign_kernels.append(event)
        correlation = whole(event.args.get("correlation"))
        number = NO_CORRELATION if correlation is None else correlation
        kernel = Kernel(event.start_ns, event.end_ns, number, owner)
        if event.is_negative:
            self.negative += 1
            self._settle(kernel)
        else:
            self._streams.add(stream, kernel)

    def settle_kernels(self, in_order: bool) -> int:
        """Give each kernel an end that its stream allows; returns how many were cut for that.
        `in_order`: what the profile calls a stream is one."""
        for kernel in self._streams.kernels(in_order):
            self._settle(kernel)
        return self._streams.cut

    def _settle(self, kernel: Kernel) -> None:
        """Take a kernel where it belongs, now that its end is known, or never will be."""
        length_ns = max(0, kernel.end_ns - kernel.start_ns)
        self.computation.add_kernel(kernel.start_ns, length_ns, kernel.owner == COMPUTATION)
        if kernel.owner == PROCESS_GROUP:
            self.kernels.append(kernel)
        elif kernel.owner >= 0:
            self.foreign_kernels[kernel.owner].end_ns = kernel.end_ns

    def _add_cpu_event(
        self, event: ProfileEvent, thread: ThreadName, process: str, is_operation: bool
    ) -> None:
        step = STEP.fullmatch(event.name)
        is_call = _is_call(event.name)
        is_foreign = is_operation and _is_foreign(event.name)
        if is_call or step is not None:
            self.processes[process] = None
        if event.is_negative:
            if is_call or is_foreign or step is not None:
                self.negative += 1
            elif is_operation:
                self.negative_operations += 1
            if is_operation or step is not None:
                return  # what lies in it is not known
        if is_operation or is_call:
            length_ns = max(0, event.end_ns - event.start_ns)
            self.computation.add_cpu_event(event.name, thread, event.start_ns, length_ns)
        if step is not None:
            self.steps.append((event.start_ns, event.end_ns, int(step[1])))
        elif is_call:
            self.calls[thread].append(event)
        elif is_foreign:
            self.foreign_calls[thread].append(event)


def outermost(events: Iterable[ProfileEvent]) -> list[ProfileEvent]:
    """The events of a thread that are in no other one, each with those within it."""
    result: list[ProfileEvent] = []
    for event in sorted(events, key=lambda event: (event.start_ns, -event.end_ns)):
        if result and event.start_ns < result[-1].end_ns:
            result[-1].inner.append(event)
        else:
            result.append(event)
    return result


def _span(event: Mapping[str, Any]) -> tuple[int, int] | None:
    """Start and end, as in ProfileEvent; None where an event has no times."""
    start_ns = nanoseconds(event.get("ts"))
    duration_us = event.get("dur")
    if start_ns is None:
        return None
    if isinstance(duration_us, int | float) and -LARGEST_INTEGER < duration_us < 0:
        return start_ns, start_ns - 1
    duration_ns = nanoseconds(duration_us)
    return None if duration_ns is None else (start_ns, start_ns + duration_ns)


def _is_call(name: str) -> bool:
    """Whether an event is part of a call of a process group."""
    if name == PARAM_RECORD:
        return True
    named = OPERATOR.match(name) or ANNOTATION.match(name)
    return bool(named) and operation_named(name.split(" ")[0]) is not None


def _is_foreign(name: str) -> bool:
    return bool(COLLECTIVE_WORDS.search(name)) and not NO_COLLECTIVE.match(name)
