"""torch.profiler's JSON (Kineto) from 2022 on: NCCL and other libraries on a GPU, gloo on a CPU."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from commbench.core.errors import Unreadable
from commbench.core.foreign import LARGEST_INTEGER
from commbench.replay.json_stream import (
    JsonList,
    document_head,
    elements,
    nanoseconds,
    whole,
)
from commbench.replay.operations import (
    NOT_A_TRANSFER,
    POINT_TO_POINT,
    ROOTED,
    RankGroup,
    RankTrace,
    element_type,
    numbered,
    operation_named,
)
from commbench.replay.trace_files import TraceFile

from .kernel_streams import COMPUTATION, NO_CORRELATION, PROCESS_GROUP, Kernel, KernelStreams
from .profiled_computation import COLLECTIVE_WORDS, CPU_OPERATION, Computation, kernel_computes
from .protocol import (
    lacks_splits,
    listed,
    moved_fields,
    rank_of,
    recorded_group,
    strided,
)

PARAM_RECORD = "record_param_comms"
CALL = re.compile(r"c10d::_?[a-z]")
ANNOTATION = re.compile(r"[a-z]{2,16}:_?[a-zA-Z]")
LIBRARY_KERNEL = re.compile(r"^(?:void )?[nr]ccl\w*Kernel", re.I)
KERNEL_DETAILS = re.compile(r"^void |\(anonymous namespace\)::|[<(].*")
KERNEL_LIBRARY = re.compile(r"\wccl:")
STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")
# they copy or wait beside a collective, or call one that is recorded
NO_COLLECTIVE = re.compile(r"^(?:aten|fsdp|c10d|_c10d_functional\w*|c10d_functional|record_)\b")
WANTED = (
    *("c10d::", PARAM_RECORD, "ProfilerStep", "ccl", "Launch", "loo:", '"kernel"', '"Kernel"'),
    *("all_reduce", "allreduce", "AllReduce", "all_gather", "allgather", "AllGather"),
    *("reduce_scatter", "ReduceScatter", "all_to_all", "alltoall", "AllToAll"),
)
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime")
ROOT_AT = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}  # in Concrete Inputs
# "Rank" of their calls is the peer or the root
OF_OTHER_RANK = (None, *POINT_TO_POINT, *ROOTED)
COALESCED = "coalesced"
SCATTER_EACH = "reduce_scatter_tensor_coalesced"
UNLINKED_KERNELS = "library kernels whose call is not in the trace"
UNLINKED_WORK = "work of a library whose call is not in the trace"
UNLINKED_CALLS = "calls without a kernel in the trace"
NO_SIZE = "sizes: profile(record_shapes=True), torch 2.4 or later"
NO_GROUP = "groups: torch 2.4 or later records them"
NO_RANKS = "ranks of groups: torch 2.4 or later records them"
NO_TYPE = "types of elements that commbench does not know"
NO_SPLITS = "splits of all_to_all_v: torch 2.4 or later, or profile(record_shapes=True)"
CUT_SPLITS = "splits of all_to_all_v, cut at 30 ranks: torch's ExecutionTraceObserver has all"
CUT_KERNELS = "kernels that end after the next one of their stream does: cut where that one starts"
NEGATIVE = "events whose duration is negative, so it is not known"
UNKNOWN_GROUP = "?"
MOST_NAMED_PROCESSES = 3
# the toolkits of AMD GPUs: what their profile calls a stream may be a queue of several
AMD_KEYS = ("hip_", "roctracer", "rocprof")


@dataclass(slots=True)
class _Event:
    """One event of the CPU side. `inner` has those within it."""

    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any]
    inner: list[_Event] = field(default_factory=list)

    @property
    def is_negative(self) -> bool:
        """Whether its duration is, so that its end is not known."""
        return self.end_ns < self.start_ns


@dataclass
class _Events:
    """What is kept of a file."""

    calls: dict[object, list[_Event]] = field(default_factory=lambda: defaultdict(list))
    library_work: dict[str, list[_Event]] = field(default_factory=lambda: defaultdict(list))
    foreign_calls: dict[object, list[_Event]] = field(default_factory=lambda: defaultdict(list))
    foreign_kernels: list[_Event] = field(default_factory=list)
    streams: KernelStreams = field(default_factory=KernelStreams)
    kernels: list[Kernel] = field(default_factory=list)  # of a library
    processes: dict[str, None] = field(default_factory=dict)
    negative: int = 0
    negative_operations: int = 0  # of the CPU, which only count where they are the computation
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    threads: dict[object, int] = field(default_factory=dict)
    launch_correlations: array[int] = field(default_factory=lambda: array("q"))
    launch_threads: array[int] = field(default_factory=lambda: array("q"))
    launch_times: array[int] = field(default_factory=lambda: array("q"))
    computation: Computation = field(default_factory=Computation)


class TorchProfiler:
    form = "torch profiler"

    def recognises(self, file: TraceFile) -> bool:
        head = document_head(file.head)
        if head[:1] == b"[":
            return b'"ph"' in head
        return head[:1] == b"{" and any(
            word in head for word in (b'"schemaVersion"', b'"traceEvents"', b'"deviceProperties"')
        )

    def read(self, file: TraceFile) -> list[RankTrace]:
        events = _Events()

        def skim(text: str) -> bool:
            return _is_on_gpu(_job_facts(members.outer)) or events.computation.skim(text)

        members = JsonList(file, "traceEvents", WANTED, skim)
        for event in members:
            _sort(events, event)
        outer = members.outer
        facts = _job_facts(outer)
        base_ns = whole(outer.get("baseTimeNanoseconds")) or 0
        _check_one_process(file, events)
        on_gpu = _is_on_gpu(facts)
        in_order = not any(key.startswith(AMD_KEYS) for key in outer)
        for kernel in events.streams.kernels(in_order):
            _settle_kernel(events, kernel)
        negative = events.negative + (0 if on_gpu else events.negative_operations)
        notes = +Counter({CUT_KERNELS: events.streams.cut, NEGATIVE: negative})
        fields = _operations(events, _configured_groups(facts.get("pg_config")), base_ns, notes)
        # of a file that is cut, the kernels may be missing, which come last
        computing = None
        if not file.ended_early:
            computing = events.computation.busy_times(base_ns, on_gpu)
        others = _foreign_calls(events, base_ns)
        for call in (*fields, *others):
            if computing is not None and "start_ns" in call:
                call["beside_ns"] = computing.within(call["start_ns"], call["end_ns"])
        rank = rank_of(file, _recorded_rank(facts, events))
        return [
            RankTrace(
                file.name,
                self.form,
                rank,
                numbered(fields, rank),
                whole(facts.get("world_size"), 1),
                tuple(end - start for start, end, _ in events.steps),
                numbered(others, rank),
                _foreign_counts(events),
                notes,
                computing,
                _steps_window(events, base_ns),
            )
        ]


def _job_facts(outer: Mapping[str, Any]) -> Mapping[str, Any]:
    facts = outer.get("distributedInfo")
    return facts if isinstance(facts, dict) else {}


def _check_one_process(file: TraceFile, events: _Events) -> None:
    """Raises Unreadable for a file that some tool has made of the profiles of several ranks."""
    named = [f"process {process}" for process in events.processes]
    if len(named) == 1:
        # those of containers may have one number
        named = max(_own_ranks(events), key=len, default=[])
    if len(named) > 1:
        raise Unreadable(
            f"{file.name} has the events of {', '.join(named[:MOST_NAMED_PROCESSES]):.100}, and a"
            " profile is of one rank; name the file of each rank"
        )


def _own_ranks(events: _Events) -> Iterable[list[str]]:
    """The ranks that the calls of each group say to be their own."""
    ranks: dict[str, dict[str, None]] = defaultdict(dict)
    for part in chain.from_iterable(events.calls.values()):
        operation = operation_named(part.args.get("Collective name"))
        rank = whole(part.args.get("Rank"))
        if rank is not None and operation not in OF_OTHER_RANK:
            ranks[str(part.args.get("Process Group Name"))][f"rank {rank}"] = None
    return map(list, ranks.values())


def _settle_kernel(events: _Events, kernel: Kernel) -> None:
    """Take a kernel where it belongs, now that its end is known, or never will be."""
    length_ns = max(0, kernel.end_ns - kernel.start_ns)
    events.computation.add_kernel(kernel.start_ns, length_ns, kernel.owner == COMPUTATION)
    if kernel.owner == PROCESS_GROUP:
        events.kernels.append(kernel)
    elif kernel.owner >= 0:
        events.foreign_kernels[kernel.owner].end_ns = kernel.end_ns


def _steps_window(events: _Events, base_ns: int) -> tuple[int, int] | None:
    if not events.steps:
        return None
    first_ns = min(start for start, _, _ in events.steps)
    last_ns = max(end for _, end, _ in events.steps)
    return base_ns + first_ns, base_ns + last_ns


def _is_on_gpu(facts: Mapping[str, Any]) -> bool:
    """Whether the rank's library starts kernels, so that only kernels are its computation."""
    return KERNEL_LIBRARY.fullmatch(f"{facts.get('backend')}:") is not None


def _sort(events: _Events, event: Mapping[str, Any]) -> None:
    """Keep an event where it belongs."""
    name = event.get("name")
    category = str(event.get("cat", "")).lower()
    start_ns = nanoseconds(event.get("ts"))
    end_ns = _end_of(event, start_ns)
    if not isinstance(name, str) or start_ns is None or end_ns is None:
        return
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    thread = event.get("tid")
    if category in LAUNCH_CATEGORIES and "Launch" in name:
        correlation = whole(args.get("correlation"))
        if correlation is not None and isinstance(thread, int | str):
            events.launch_correlations.append(correlation)
            events.launch_threads.append(_thread_number(events, thread))
            events.launch_times.append(start_ns)
    elif category == "kernel":
        kernel = _Event(name, start_ns, end_ns, args)
        _sort_kernel(events, kernel, (str(event.get("pid")), str(thread)))
    elif category in (CPU_OPERATION, "user_annotation") and isinstance(thread, int | str):
        kept = _Event(name, start_ns, end_ns, args)
        _sort_cpu_event(events, kept, category == CPU_OPERATION, thread, str(event.get("pid")))


def _end_of(event: Mapping[str, Any], start_ns: int | None) -> int | None:
    """Before its start where the duration is negative."""
    duration = event.get("dur")
    if isinstance(duration, int | float) and -LARGEST_INTEGER < duration < 0:
        return None if start_ns is None else start_ns - 1
    duration_ns = nanoseconds(duration)
    return None if start_ns is None or duration_ns is None else start_ns + duration_ns


def _sort_kernel(events: _Events, event: _Event, stream: tuple[str, str]) -> None:
    correlation = whole(event.args.get("correlation"))
    number = NO_CORRELATION if correlation is None else correlation
    if kernel_computes(event.name):
        owner = COMPUTATION
    elif LIBRARY_KERNEL.search(event.name):
        owner = PROCESS_GROUP
    else:
        owner = len(events.foreign_kernels)
        events.foreign_kernels.append(event)
    kernel = Kernel(event.start_ns, event.end_ns, number, owner)
    if event.is_negative:
        events.negative += 1
        _settle_kernel(events, kernel)
    else:
        events.streams.add(stream, kernel)


def _sort_cpu_event(
    events: _Events, event: _Event, is_operation: bool, thread: int | str, process: str
) -> None:
    step = STEP.fullmatch(event.name)
    is_call = _is_call(event.name)
    is_foreign = is_operation and _is_foreign(event.name)
    if event.is_negative and (is_call or is_foreign or step is not None):
        events.negative += 1
    elif event.is_negative and is_operation:
        events.negative_operations += 1
    if is_call or step is not None:
        events.processes[process] = None
    if event.is_negative and (is_operation or step is not None):
        return  # what lies in it is not known
    if is_operation or is_call:
        length_ns = max(0, event.end_ns - event.start_ns)
        events.computation.add_cpu_event(event.name, thread, event.start_ns, length_ns)
    if step is not None:
        events.steps.append((event.start_ns, event.end_ns, int(step[1])))
    elif is_call:
        events.calls[thread].append(event)
    elif is_foreign:
        events.foreign_calls[thread].append(event)


def _is_call(name: str) -> bool:
    """Whether an event is part of a call of a process group."""
    if name == PARAM_RECORD:
        return True
    named = CALL.match(name) or ANNOTATION.match(name)
    return bool(named) and operation_named(name.split(" ")[0]) is not None


def _is_foreign(name: str) -> bool:
    return bool(COLLECTIVE_WORDS.search(name)) and not NO_COLLECTIVE.match(name)


def _thread_number(events: _Events, thread: object) -> int:
    return events.threads.setdefault(thread, len(events.threads))


def _outermost(events: Iterable[_Event]) -> list[_Event]:
    """The events that are in no other one, each with those within it."""
    result: list[_Event] = []
    for event in sorted(events, key=lambda event: (event.start_ns, -event.end_ns)):
        if result and event.start_ns < result[-1].end_ns:
            result[-1].inner.append(event)
        else:
            result.append(event)
    return result


def _operations(
    events: _Events, groups: Mapping[str, RankGroup], base_ns: int, notes: Counter[str]
) -> list[dict[str, Any]]:
    calls: list[tuple[_Event, object]] = []
    workers: list[_Event] = []
    for thread, listed_events in events.calls.items():
        for event in _outermost(listed_events):
            alone = ANNOTATION.match(event.name) and not event.inner
            if alone and not KERNEL_LIBRARY.match(event.name):
                workers.append(event)
            elif event.inner or event.name != PARAM_RECORD or event.args.get("Collective name"):
                calls.append((event, thread))
    calls.sort(key=lambda call: call[0].start_ns)
    workers.sort(key=lambda event: event.start_ns)
    kernels = _linked(events, calls, notes)
    queues = _Workers(workers)
    steps = sorted(events.steps)
    starts = [start for start, _, _ in steps]
    fields: list[dict[str, Any]] = []
    batch = 0
    for event, _ in calls:
        parts = [event, *event.inner]
        call = _described(parts, groups, notes, queues, start_ns=event.start_ns)
        if call is None:
            batch += 1
            continue
        times = call.pop("times")
        times = kernels.get(id(event), times)
        if events.kernels and times is None and call["operation"] in POINT_TO_POINT:
            call["batch"] = batch  # the kernel of a batch is launched behind its last call
        else:
            batch += 1
        if times is not None and times[1] >= times[0]:
            call["start_ns"] = base_ns + times[0]
            call["end_ns"] = base_ns + times[1]
        elif times is None and (call["input_bytes"] or call["output_bytes"]):
            notes[UNLINKED_CALLS] += 1  # one without bytes starts no kernel
        place = bisect_right(starts, event.start_ns) - 1
        if place >= 0 and event.start_ns < steps[place][1]:
            call["step"] = steps[place][2]
        fields.append(call)
    if queues.unused:
        notes[UNLINKED_WORK] += queues.unused
    return fields


class _Workers:
    """Work that runs on threads of its own: annotations, each of a call before it.

    A queue serves calls of one name in their order.
    """

    def __init__(self, events: Sequence[_Event]) -> None:
        self._queues: dict[str, list[_Event]] = defaultdict(list)
        for event in reversed(events):
            self._queues[operation_named(event.name) or ""].append(event)
        self.unused = len(events)

    def next(self, operation: str, start_ns: int) -> _Event | None:
        # gloo makes a reduce_scatter from an all_reduce, and calls it so
        for name in (operation, "all_reduce" if operation == "reduce_scatter" else operation):
            queue = self._queues.get(name, [])
            while queue and queue[-1].end_ns < start_ns:
                queue.pop()
            if queue:
                self.unused -= 1
                return queue.pop()
        return None


def _described(
    parts: Sequence[_Event],
    groups: Mapping[str, RankGroup],
    notes: Counter[str],
    queues: _Workers,
    start_ns: int,
) -> dict[str, Any] | None:
    """The fields of an operation from its nested events; None for what transfers nothing."""
    record = next((part for part in parts if part.args.get("Collective name")), None)
    call = next((part for part in parts if CALL.match(part.name)), None)
    annotation = next((part for part in parts if ANNOTATION.match(part.name)), None)
    work = None
    if record is not None:
        name = str(record.args["Collective name"])
        if name == NOT_A_TRANSFER:
            return None
        operation = operation_named(name)
    else:
        named = call or annotation
        operation = operation_named(named.name.split(" ")[0]) if named is not None else None
    if operation is None:
        if record is not None:
            notes[f"operations of unknown name {record.args['Collective name']!s:.40}"] += 1
        return None
    if record is None and annotation is None:
        work = queues.next(operation, start_ns)
        if work is not None and call is not None and SCATTER_EACH in call.name:
            # gloo reduces one tensor after another
            for _ in range(len(_lists_of(call)[0]) - 1):
                work = _until_end_of(work, queues.next(operation, start_ns))
    timed = work or (annotation if record is None and not _is_launcher(parts) else None)
    group = _group(record, groups)
    moved, missing = _moved(operation, record, call, annotation or work, group)
    fields: dict[str, Any] = {
        "group": group,
        **moved,
        "times": (timed.start_ns, timed.end_ns) if timed is not None else None,
    }
    inputs = call.args.get("Concrete Inputs") if call is not None else None
    if isinstance(inputs, list):
        fields["root"] = _concrete(inputs, ROOT_AT.get(operation))
        fields["peer"] = _concrete(inputs, 2 if operation in POINT_TO_POINT else None)
    if record is not None and operation in POINT_TO_POINT:
        fields["peer"] = _recorded_peer(record, group)
    if record is not None and operation in ROOTED and "Rank" in record.args:
        fields["root"] = whole(record.args["Rank"])
    notes.update([*missing, *_missing_of(group)])
    return fields


def _recorded_peer(record: _Event, group: RankGroup) -> int | None:
    """The rank in the group of the other side: newer traces have its rank in the world."""
    in_world = whole(record.args.get("Dst Rank", record.args.get("Src Rank")))
    if in_world is not None and group.ranks is not None and in_world in group.ranks:
        return group.ranks.index(in_world)
    return whole(record.args.get("Rank"))


def _is_launcher(parts: Sequence[_Event]) -> bool:
    """Whether a call only starts kernels, so that its own time is not the operation's."""
    return any(KERNEL_LIBRARY.match(part.name) for part in parts)


def _missing_of(group: RankGroup) -> list[str]:
    if group.name == UNKNOWN_GROUP:
        return [NO_GROUP]
    return [NO_RANKS] if group.ranks is None else []


def _concrete(inputs: Sequence[object], index: int | None) -> int | None:
    if index is None or index >= len(inputs) or not re.fullmatch(r"\d{1,9}", str(inputs[index])):
        return None
    return int(str(inputs[index]))


def _group(record: _Event | None, groups: Mapping[str, RankGroup]) -> RankGroup:
    """The group of a call; where no call says its group, but all groups of several ranks have the
    same ranks, those ranks."""
    if record is None:
        ranks = {group.ranks for group in groups.values() if group.size != 1}
        if len(ranks) == 1:
            (same,) = ranks
            return RankGroup("", same, len(same) if same else None)
        return RankGroup(UNKNOWN_GROUP)
    args = record.args
    size = whole(args.get("Group size"), 1)
    name = args.get("Process Group Name", args.get("Process Group ID"))
    ranks_listed = listed(args.get("Process Group Ranks")) or strided(
        args.get("Global rank start"), args.get("Global rank stride"), size
    )
    if name is None and not ranks_listed:
        return RankGroup(UNKNOWN_GROUP, None, size)
    return recorded_group(str(name), ranks_listed, size, groups.get(str(name)))


def _configured_groups(configured: object) -> dict[str, RankGroup]:
    """The groups that a file lists, by name."""
    result = {}
    for entry in configured if isinstance(configured, list) else []:
        if isinstance(entry, dict):
            name = str(entry.get("pg_name"))
            ranks = listed(entry.get("ranks"))
            result[name] = recorded_group(name, ranks, whole(entry.get("pg_size"), 1), None)
    return result


def _moved(
    operation: str,
    record: _Event | None,
    call: _Event | None,
    annotation: _Event | None,
    group: RankGroup,
) -> tuple[dict[str, Any], list[str]]:
    """What a call moves, and what is not known of it."""
    if operation == "barrier":
        return moved_fields(operation, None, 0, 0), []
    dtype: object = None
    sent: int | None = None
    received: int | None = None
    cut = False
    if record is not None and "In msg nelems" in record.args:
        dtype = record.args.get("dtype")
        sent = whole(record.args.get("In msg nelems"))
        received = whole(record.args.get("Out msg nelems"))
        splits = (
            listed(record.args.get("In split size")),
            listed(record.args.get("Out split size")),
        )
        cut = "..." in str(record.args.get("In split size"))
    else:
        shapes = _shapes(call)
        if len(shapes) >= 2 and _base(call):
            (received, dtype), (sent, _) = shapes[:2]
        elif call is not None and COALESCED in call.name:
            sent, received, dtype = _coalesced(operation, call, annotation, group.size)
        elif operation == "scatter" and call is not None:
            received, dtype = _scattered(call, annotation)
            sent = received * group.size if received is not None and group.size else None
        else:
            work = _shapes(annotation) or shapes
            sent, dtype = work[0] if work else (None, None)
            received = _output_elements(operation, sent, group.size)
        splits = _concrete_splits(call, sent, received)
    kind = element_type(dtype)
    missing = []
    if sent is None or received is None:
        missing.append(NO_SIZE)
    elif kind is None and operation != "scatter":
        missing.append(NO_TYPE)  # of a scatter, the root's trace has it
    fields = moved_fields(operation, kind, sent, received, *splits)
    if lacks_splits(fields):
        missing.append(CUT_SPLITS if cut else NO_SPLITS)
    return fields, missing


def _scattered(call: _Event, work: _Event | None) -> tuple[int | None, object]:
    """Elements that a rank gets from a scatter, by its call, and their type, by the work of the
    root: other ranks have none."""
    dimensions = call.args.get("Input Dims")
    outputs = dimensions[0] if isinstance(dimensions, list) and dimensions else None
    received = elements(outputs[0]) if isinstance(outputs, list) and outputs else None
    shapes = _shapes(work)
    return received, shapes[0][1] if shapes else None


def _coalesced(
    operation: str, call: _Event, work: _Event | None, ranks: int | None
) -> tuple[int | None, int | None, object]:
    """Elements in and out of a call on lists of tensors, and their type, which its work says if
    they have only one."""
    totals = [_added(map(elements, shapes)) for shapes in _lists_of(call)]
    kinds = {kind for _, kind in _shapes(work)}
    dtype = kinds.pop() if len(kinds) == 1 else None
    if not totals:
        return None, None, dtype
    if len(totals) > 1:  # outputs, then inputs
        return totals[1], totals[0], dtype
    return totals[0], _output_elements(operation, totals[0], ranks), dtype


def _lists_of(call: _Event) -> list[list[object]]:
    """The shapes of each argument that is a list of tensors; of lists of lists torch records
    nothing."""
    dimensions = call.args.get("Input Dims")
    return [
        argument
        for argument in (dimensions if isinstance(dimensions, list) else [])
        if isinstance(argument, list) and argument and isinstance(argument[0], list)
    ]


def _added(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)


def _until_end_of(first: _Event, last: _Event | None) -> _Event:
    """Until the end of the last one."""
    return first if last is None else replace(first, end_ns=last.end_ns)


def _base(call: _Event | None) -> bool:
    """Whether the shapes of a call begin with its output, then its input."""
    return call is not None and "base" in call.name


def _output_elements(operation: str, sent: int | None, ranks: int | None) -> int | None:
    """How much a rank gets for what it gives."""
    if operation in ("all_gather", "gather"):
        return sent * ranks if sent is not None and ranks else None
    if operation in ("reduce_scatter", "scatter"):
        return sent // ranks if sent is not None and ranks else None
    return None if operation.startswith("all_to_all") else sent


def _shapes(event: _Event | None) -> list[tuple[int | None, object]]:
    """Elements and type of each tensor argument of an event, those of a list added up."""
    args = event.args if event is not None else {}
    shapes = args.get("Input Dims")
    types = args.get("Input type")
    result: list[tuple[int | None, object]] = []
    if isinstance(shapes, list) and isinstance(types, list):
        for shape, kind in zip(shapes, types, strict=False):
            if element_type(kind) is not None:
                result.append((elements(shape), kind))
    return result


def _concrete_splits(
    call: _Event | None, sent: int | None, received: int | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Elements of the splits of an all_to_all from its arguments, which count rows, where they are
    all there and add up."""
    inputs = call.args.get("Concrete Inputs") if call is not None and _base(call) else None
    if not isinstance(inputs, list) or len(inputs) < 5:
        return None, None
    receive_counts = listed(inputs[3])
    send_counts = listed(inputs[4])
    if not receive_counts or not send_counts:
        return None, None
    if sent is None or received is None:
        return None, None
    rows = sum(send_counts) + sum(receive_counts)
    row_elements = (sent + received) // rows if rows else 0
    scaled = [
        tuple(count * row_elements for count in counts) for counts in (send_counts, receive_counts)
    ]
    return (scaled[0], scaled[1]) if list(map(sum, scaled)) == [sent, received] else (None, None)


def _linked(
    events: _Events, calls: Sequence[tuple[_Event, object]], notes: Counter[str]
) -> dict[int, tuple[int, int]]:
    """The time of the kernels of each call, by the call's id: a kernel has the number of its
    launch, which lies within the call on the same thread. A time that is not known ends before it
    starts."""
    wanted = {kernel.correlation for kernel in events.kernels}
    launches = {
        correlation: (events.launch_threads[index], events.launch_times[index])
        for index, correlation in enumerate(events.launch_correlations)
        if correlation in wanted
    }
    by_thread: dict[int, list[_Event]] = defaultdict(list)
    for event, thread in calls:
        by_thread[_thread_number(events, thread)].append(event)
    starts = {
        thread: [event.start_ns for event in in_thread] for thread, in_thread in by_thread.items()
    }
    times: dict[int, tuple[int, int]] = {}
    for kernel in events.kernels:
        thread, launched_ns = launches.get(kernel.correlation, (-1, 0))
        place = bisect_right(starts.get(thread, []), launched_ns) - 1
        if place < 0 or launched_ns > by_thread[thread][place].end_ns:
            notes[UNLINKED_KERNELS] += 1
            continue
        key = id(by_thread[thread][place])
        known = (kernel.start_ns, kernel.end_ns)
        first_ns, last_ns = times.get(key, known)
        if last_ns < first_ns or kernel.end_ns < kernel.start_ns:
            times[key] = (first_ns, first_ns - 1)
        else:
            times[key] = (min(first_ns, kernel.start_ns), max(last_ns, kernel.end_ns))
    return times


def _recorded_rank(facts: Mapping[str, Any], events: _Events) -> int | None:
    if "rank" in facts:
        return whole(facts["rank"])
    ranks = {
        whole(part.args.get("Rank"))
        for thread in events.calls.values()
        for part in thread
        if operation_named(part.args.get("Collective name")) not in OF_OTHER_RANK
    } - {None}
    return ranks.pop() if len(ranks) == 1 else None


def _foreign_calls(events: _Events, base_ns: int) -> list[dict[str, Any]]:
    """The fields of collectives of other libraries: the kernels of known length."""
    return [
        {
            "group": RankGroup(UNKNOWN_GROUP),
            "operation": KERNEL_DETAILS.sub("", kernel.name),
            "start_ns": base_ns + kernel.start_ns,
            "end_ns": base_ns + kernel.end_ns,
        }
        for kernel in events.foreign_kernels
        if not kernel.is_negative
    ]


def _foreign_counts(events: _Events) -> dict[str, int]:
    """Collectives of other libraries that have no kernel, by name: the innermost calls."""
    timed = {whole(kernel.args.get("External id")) for kernel in events.foreign_kernels} - {None}
    counts: Counter[str] = Counter()
    for thread, foreign in events.foreign_calls.items():
        for event in _outermost([*foreign, *events.calls.get(thread, [])]):
            parts = [event, *event.inner]
            if any(CALL.match(part.name) or part.name == PARAM_RECORD for part in parts):
                continue
            if timed & {whole(part.args.get("External id")) for part in parts}:
                continue
            last = parts[-1]
            counts.update(
                part.name
                for part in parts
                if part is last or not any(_holds(part, other) for other in parts)
            )
    return dict(counts)


def _holds(outer: _Event, inner: _Event) -> bool:
    return outer is not inner and outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns
