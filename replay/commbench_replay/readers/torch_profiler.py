"""torch.profiler's JSON (Kineto) from 2022 on: NCCL and other libraries on a GPU, gloo on a CPU.

The events of a file are sorted as they are read (profile_events.py). Those of each call are put
together and give its operation, group and sizes (profiled_call.py). A call gets its time from the
kernels that it launched, or from work on a thread of its library (profiled_work.py).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

from commbench.core.errors import Unreadable
from commbench.core.terminal import one_line
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import NotRecognised
from commbench_replay.busy_times import BusyTimes, Span
from commbench_replay.json_stream import JsonList, document_head, whole
from commbench_replay.operations import (
    NOT_A_TRANSFER,
    POINT_TO_POINT,
    ROOTED,
    RankGroup,
    RankTrace,
    numbered,
    operation_named,
)

from .profile_events import OPERATOR, PARAM_RECORD, ProfileEvent, ProfileEvents, Step, outermost
from .profiled_call import NO_GROUP, NO_RANKS, UNKNOWN_GROUP, ProfiledCall, moved
from .profiled_work import (
    KERNEL_LIBRARY,
    UNLINKED_KERNELS,
    WorkQueues,
    calls_and_work,
    kernel_spans,
)
from .protocol import listed, rank_of, recorded_group

# other events are skipped as text
WANTED = (
    *("c10d::", PARAM_RECORD, "ProfilerStep", "ccl", "Launch", "loo:", '"kernel"', '"Kernel"'),
    *("all_reduce", "allreduce", "AllReduce", "all_gather", "allgather", "AllGather"),
    *("reduce_scatter", "ReduceScatter", "all_to_all", "alltoall", "AllToAll"),
)
# the toolkits of AMD GPUs: what their profile calls a stream may be a queue of several
AMD_KEYS = ("hip_", "roctracer", "rocprof")
# "Rank" of their calls is the peer or the root
OF_OTHER_RANK = (None, *POINT_TO_POINT, *ROOTED)
KERNEL_DETAILS = re.compile(r"^void |\(anonymous namespace\)::|[<(].*")
UNLINKED_WORK = "work of a library whose call is not in the trace"
UNLINKED_CALLS = "calls without a kernel in the trace"
CUT_KERNELS = "kernels that end after the next one of their stream does: cut where that one starts"
NEGATIVE = "events whose duration is negative, so it is not known"
UNTIMED = "events whose times are no numbers, left out"
MOST_NAMED_PROCESSES = 3
# only torch.profiler (Kineto) writes these keys and categories
KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo)"|"cat"\s*:\s*"(?:cpu_op|[kK]ernel'
    rb'|(?:cuda_)?[rR]untime|cuda_driver|user_annotation|python_function|ac2g|async_gpu|Trace)"'
)
OTHER_PROGRAMS = {
    b'"CommHash"': "NCCL's profiler plugin",
    b'"highres-ticks"': "JAX or TensorFlow",
}


class TorchProfiler:
    form = "torch profiler"

    def recognises(self, file: ForeignFile) -> bool:
        head = document_head(file.head)
        if head[:1] == b"[":
            return b'"ph"' in head
        return head[:1] == b"{" and any(
            word in head for word in (b'"schemaVersion"', b'"traceEvents"', b'"deviceProperties"')
        )

    def read(self, file: ForeignFile) -> list[RankTrace]:
        if not KINETO.search(file.head):
            raise NotRecognised(_other_program(file.head))
        events = ProfileEvents()

        def skim(text: str) -> bool:
            return _is_on_gpu(_job_facts(members.outer)) or events.computation.skim(text)

        members = JsonList(file, "traceEvents", WANTED, skim)
        for event in members:
            events.add(event)
        facts = _job_facts(members.outer)
        base_ns = whole(members.outer.get("baseTimeNanoseconds")) or 0
        on_gpu = _is_on_gpu(facts)
        _check_one_process(file, events)
        is_amd = any(key.startswith(AMD_KEYS) for key in members.outer)
        cut = events.settle_kernels(in_order=not is_amd)
        negative = events.negative + (0 if on_gpu else events.negative_operations)
        notes = +Counter({CUT_KERNELS: cut, NEGATIVE: negative, UNTIMED: events.untimed})
        # of a file that is cut, the kernels may be missing, which come last
        computing = None
        if not file.ended_early:
            computing = events.computation.busy_times(base_ns, on_gpu)
        steps = _steps(events)
        calls = _calls(events, steps, _configured_groups(facts.get("pg_config")), notes)
        others = _foreign_calls(events)
        if events.untimed and not (calls or others):
            raise NotRecognised("a profile whose times (ts, dur) are no numbers")
        for call in (*calls, *others):
            _put_on_clock(call, base_ns, computing)
        rank = rank_of(file, _recorded_rank(facts, events))
        return [
            RankTrace(
                file.name,
                self.form,
                rank,
                numbered(calls, rank),
                whole(facts.get("world_size"), 1),
                tuple(end_ns - start_ns for start_ns, end_ns, _ in steps),
                numbered(others, rank),
                _foreign_counts(events),
                notes,
                is_part=bool({UNLINKED_KERNELS, UNLINKED_WORK} & notes.keys()),
                computing=computing,
                window_ns=_steps_window(steps, base_ns),
            )
        ]


def _other_program(head: bytes) -> str:
    programs = (program for word, program in OTHER_PROGRAMS.items() if word in head)
    return f"a Chrome trace of {next(programs, 'another program')}, not of torch.profiler"


# ---------------------------------------------------------------- the job


def _job_facts(outer: Mapping[str, Any]) -> Mapping[str, Any]:
    facts = outer.get("distributedInfo")
    return facts if isinstance(facts, dict) else {}


def _is_on_gpu(facts: Mapping[str, Any]) -> bool:
    """Whether the rank's library starts kernels, so that only kernels are its computation."""
    return KERNEL_LIBRARY.fullmatch(f"{facts.get('backend')}:") is not None


def _configured_groups(configured: object) -> dict[str, RankGroup]:
    """The groups that a file lists, by name."""
    result = {}
    for entry in configured if isinstance(configured, list) else []:
        if isinstance(entry, dict):
            name = str(entry.get("pg_name"))
            ranks = listed(entry.get("ranks"))
            result[name] = recorded_group(name, ranks, whole(entry.get("pg_size"), 1), None)
    return result


def _check_one_process(file: ForeignFile, events: ProfileEvents) -> None:
    """Raises Unreadable for a file that some tool has made of the profiles of several ranks."""
    named = [f"process {one_line(str(process))}" for process in events.processes]
    if len(named) == 1:
        # those of containers may have one number
        most = max(_own_ranks(events).values(), key=len, default={})
        named = [f"rank {rank}" for rank in most]
    if len(named) > 1:
        raise Unreadable(
            f"{file.name} has the events of {', '.join(named[:MOST_NAMED_PROCESSES]):.100}, and a"
            " profile is of one rank; name the file of each rank"
        )


def _recorded_rank(facts: Mapping[str, Any], events: ProfileEvents) -> int | None:
    if "rank" in facts:
        return whole(facts["rank"])
    ranks = set(chain.from_iterable(_own_ranks(events).values()))
    return ranks.pop() if len(ranks) == 1 else None


def _own_ranks(events: ProfileEvents) -> dict[str, dict[int, None]]:
    """The ranks that the calls of each group say to be their own."""
    ranks: dict[str, dict[int, None]] = defaultdict(dict)
    for part in chain.from_iterable(events.calls.values()):
        operation = operation_named(part.args.get("Collective name"))
        rank = whole(part.args.get("Rank"))
        if rank is not None and operation not in OF_OTHER_RANK:
            ranks[str(part.args.get("Process Group Name"))][rank] = None
    return ranks


def _steps(events: ProfileEvents) -> list[Step]:
    """In their order. A step that is marked twice, as by two profilers, counts once."""
    steps: list[Step] = []
    for start_ns, end_ns, number in sorted(events.steps, key=itemgetter(2, 0)):
        if steps and steps[-1][2] == number and start_ns < steps[-1][1]:
            start_ns, other_end_ns, _ = steps.pop()
            end_ns = max(end_ns, other_end_ns)
        steps.append((start_ns, end_ns, number))
    return sorted(steps)


def _steps_window(steps: Sequence[Step], base_ns: int) -> Span | None:
    if not steps:
        return None
    last_ns = max(end_ns for _, end_ns, _ in steps)
    return base_ns + steps[0][0], base_ns + last_ns


# ---------------------------------------------------------------- its calls


def _calls(
    events: ProfileEvents,
    steps: Sequence[Step],
    groups: Mapping[str, RankGroup],
    notes: Counter[str],
) -> list[dict[str, Any]]:
    """The fields of a RecordedCall of each transfer, with times on the clock of the events."""
    calls, work = calls_and_work(events)
    spans = kernel_spans(calls, events.kernels, events.launches, notes)
    queues = WorkQueues(work)
    result = []
    batch = 0
    for call in calls:
        operation = _operation(call, notes)
        if operation is None:
            batch += 1
            continue
        own_work = queues.work_of(call, operation)
        fields = _transfer(call, operation, own_work, groups, notes)
        span = spans.get(call) or _work_span(call, own_work)
        if span is None and events.kernels and operation in POINT_TO_POINT:
            fields["batch"] = batch  # the kernel of a batch is launched behind its last call
        else:
            batch += 1
        if span is None and (fields["input_bytes"] or fields["output_bytes"]):
            notes[UNLINKED_CALLS] += 1  # one without bytes starts no kernel
        if span is not None and span[0] <= span[1]:
            fields["start_ns"], fields["end_ns"] = span
        fields["step"] = _step_at(steps, call.event.start_ns)
        result.append(fields)
    if queues.unused:
        notes[UNLINKED_WORK] += queues.unused
    return result


def _operation(call: ProfiledCall, notes: Counter[str]) -> str | None:
    operation = operation_named(call.spelling)
    if operation is None and call.record is not None and call.spelling != NOT_A_TRANSFER:
        notes[f"operations of unknown name {call.spelling:.40}"] += 1
    return operation


def _transfer(
    call: ProfiledCall,
    operation: str,
    work: ProfileEvent | None,
    groups: Mapping[str, RankGroup],
    notes: Counter[str],
) -> dict[str, Any]:
    """The fields of a RecordedCall but for its times."""
    group = call.group(groups)
    fields, missing = moved(call, operation, work, group.size)
    notes.update(missing)
    if group.name == UNKNOWN_GROUP:
        notes[NO_GROUP] += 1
    elif group.ranks is None:
        notes[NO_RANKS] += 1
    fields["group"] = group
    if operation in ROOTED:
        fields["root"] = call.other_rank(operation, group)
    elif operation in POINT_TO_POINT:
        fields["peer"] = call.other_rank(operation, group)
    return fields


def _work_span(call: ProfiledCall, work: ProfileEvent | None) -> Span | None:
    """None for work that only starts kernels."""
    if work is None or call.record is not None or KERNEL_LIBRARY.match(work.name):
        return None
    return work.start_ns, work.end_ns


def _step_at(steps: Sequence[Step], time_ns: int) -> int | None:
    begun = bisect_right(steps, time_ns, key=itemgetter(0))
    return steps[begun - 1][2] if begun and time_ns < steps[begun - 1][1] else None


def _put_on_clock(call: dict[str, Any], base_ns: int, computing: BusyTimes | None) -> None:
    """Give a call the times of the rank's clock, and in how much of them the rank computed."""
    if "start_ns" not in call:
        return
    call["start_ns"] += base_ns
    call["end_ns"] += base_ns
    if computing is not None:
        call["beside_ns"] = computing.within(call["start_ns"], call["end_ns"])


# ---------------------------------------------------------------- other libraries


def _foreign_calls(events: ProfileEvents) -> list[dict[str, Any]]:
    """The fields of collectives of other libraries: the kernels of known length."""
    return [
        {
            "group": RankGroup(UNKNOWN_GROUP),
            "operation": KERNEL_DETAILS.sub("", kernel.name),
            "start_ns": kernel.start_ns,
            "end_ns": kernel.end_ns,
        }
        for kernel in events.foreign_kernels
        if not kernel.is_negative
    ]


def _foreign_counts(events: ProfileEvents) -> dict[str, int]:
    """Collectives of other libraries that have no kernel, by name: the innermost calls."""
    timed = {whole(kernel.args.get("External id")) for kernel in events.foreign_kernels} - {None}
    counts: Counter[str] = Counter()
    for thread, foreign in events.foreign_calls.items():
        for event in outermost([*foreign, *events.calls.get(thread, [])]):
            parts = [event, *event.inner]
            if any(OPERATOR.match(part.name) or part.name == PARAM_RECORD for part in parts):
                continue
            if timed & {whole(part.args.get("External id")) for part in parts}:
                continue
            counts[parts[-1].name] += 1
            for part, following in pairwise(parts):
                counts[part.name] += following.end_ns > part.end_ns
    return +counts
