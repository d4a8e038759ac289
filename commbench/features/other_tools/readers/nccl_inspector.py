"""NCCL Inspector's JSON lines: the collectives of a job, of each communicator the last one in each
interval in which it writes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from statistics import fmean, median
from typing import Any, NamedTuple

from commbench.core.foreign import check_size
from commbench.core.layout import Layout
from commbench.core.units import plural
from commbench.core.variables import TimerName
from commbench.features.other_tools.experiment import (
    Experiment,
    FileContent,
    Problems,
    RankPlace,
    layout_of,
    measured,
)
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.json_documents import part, text_of, whole
from commbench.features.other_tools.printed import Printed, contradiction, plain_number
from commbench.results.row import Row

COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}
OF_ONE_RANK = ("all_gather", "reduce_scatter")  # whose sizes are those of one rank
WHOLE_US = 0.5  # times are whole microseconds
LATEST_US = 2**53


class Operation(NamedTuple):
    """What calls have in common: the collective, its size in all, the clock."""

    benchmark: str
    message_bytes: int
    timer: TimerName | None


@dataclass
class Communicator:
    """The calls of one communicator in any number of files: times by operation, number of the call
    and rank."""

    identity: str
    ranks: int
    nodes: int | None
    calls: dict[Operation, dict[int, dict[int, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    hosts: dict[int, str | None] = field(default_factory=dict)
    first_us: int = LATEST_US

    def add(self, other: Communicator) -> None:
        for operation, calls in other.calls.items():
            for number, times in calls.items():
                self.calls[operation][number].update(times)
        self.hosts |= other.hosts
        self.first_us = min(self.first_us, other.first_us)


@dataclass(frozen=True, kw_only=True)
class JobPart(Experiment):
    """What one file has of a communicator; those of all files become one experiment."""

    communicator: Communicator


class NcclInspector:
    form = "the JSON lines of NCCL Inspector"

    def recognises(self, file: ForeignFile) -> bool:
        head = file.head.lstrip()
        return head.startswith(b"{") and (b'"coll_perf"' in head or b'"p2p_perf"' in head)

    def read(self, file: ForeignFile) -> FileContent:
        problems = Problems()
        communicators: dict[str, Communicator] = {}
        versions: Counter[str] = Counter()
        others = 0
        for number, line in enumerate(file.lines(), 1):
            check_size(file.name, file.read_bytes)
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if part(record, "coll_perf").get("coll") in COLLECTIVES:
                    _add(record, communicators)
                    version = part(record, "metadata").get("inspector_output_format_version")
                    versions[text_of(version) or ""] += 1
                else:
                    others += 1
            except (ValueError, RecursionError) as error:
                problems.add(f"not a record of NCCL Inspector: {error!s:.80}", number)
        version = max(versions, key=versions.__getitem__, default="") or None
        if others:
            problems.add(f"{plural(others, 'record', 'records')} of other operations are left out")
        return FileContent([_part(each, version) for each in communicators.values()], problems)


def _add(record: dict[str, Any], communicators: dict[str, Communicator]) -> None:
    """Raises ValueError."""
    header, metadata = part(record, "header"), part(record, "metadata")
    call = part(record, "coll_perf")
    ranks = whole(header.get("n_ranks"), 1)
    rank, number = whole(header.get("rank")), whole(call.get("coll_sn"))
    benchmark = COLLECTIVES[call["coll"]]
    blocks = ranks if benchmark in OF_ONE_RANK else 1
    size = whole(call.get("coll_msg_size_bytes")) * blocks
    time_s = plain_number(call.get("coll_exec_time_us"), WHOLE_US).times(1e-6)
    if not time_s.value:
        raise ValueError("a time of 0")
    if "coll_algobw_gbs" in call:
        rate = plain_number(call["coll_algobw_gbs"], WHOLE_US * 1e-6).times(1e9)
        text = contradiction(size, time_s, rate, "its rate")
        if text is not None:
            raise ValueError(text)
    identity = text_of(header.get("id")) or "unknown"
    nodes = header.get("nnodes")
    own = communicators.setdefault(
        identity,
        Communicator(identity, ranks, nodes if isinstance(nodes, int) and nodes > 0 else None),
    )
    operation = Operation(benchmark, size, _timer(call.get("coll_timing_source")))
    own.calls[operation][number][rank] = time_s.value
    own.hosts[rank] = text_of(metadata.get("hostname"))
    stamp = metadata.get("dump_timestamp_us")
    if isinstance(stamp, int) and 0 < stamp < LATEST_US:
        own.first_us = min(own.first_us, stamp)


def _timer(source: object) -> TimerName | None:
    if not isinstance(source, str):
        return None
    return "device_event" if "gpu" in source else "host"


def _part(communicator: Communicator, version: str | None) -> JobPart:
    return JobPart(
        tool="NCCL Inspector",
        version=version,
        backend="nccl",
        rows=[],
        ranks=communicator.ranks,
        settings={"communicator": communicator.identity},
        communicator=communicator,
    )


def joined(
    experiments: Sequence[Experiment],
) -> list[tuple[Experiment, list[Experiment]]]:
    """The experiments with one for each communicator, whose ranks write a file each; and of which
    ones each was made."""
    own: dict[str, list[JobPart]] = {}
    every: list[list[Experiment]] = []
    for experiment in experiments:
        if isinstance(experiment, JobPart):
            identity = experiment.communicator.identity
            if identity in own:
                own[identity][0].communicator.add(experiment.communicator)
                own[identity].append(experiment)
                continue
            own[identity] = [experiment]
        every.append([experiment])
    results: list[tuple[Experiment, list[Experiment]]] = []
    for (first,) in every:
        if isinstance(first, JobPart):
            results.append((_whole(first), [*own[first.communicator.identity]]))
        else:
            results.append((first, [first]))
    return results


def _whole(experiment: JobPart) -> Experiment:
    own = experiment.communicator
    places = [RankPlace(rank, own.hosts.get(rank)) for rank in range(own.ranks)]
    started = datetime.fromtimestamp(own.first_us / 1e6, timezone.utc)
    return replace(
        experiment,
        rows=[_row(operation, calls, own.ranks) for operation, calls in own.calls.items()],
        layout=_layout(own, places),
        places=[place for place in places if place.host],
        started_at=started if own.first_us < LATEST_US else None,
        notes=[*_gaps(own), *_missing_ranks(own)],
    )


def _layout(own: Communicator, places: Sequence[RankPlace]) -> Layout | None:
    """Of one node, or of one rank on each, its ranks are known; else by the hosts of all ranks."""
    if own.nodes == 1:
        return Layout(1, own.ranks)
    return Layout(own.ranks, 1) if own.nodes == own.ranks else layout_of(places)


def _row(operation: Operation, calls: dict[int, dict[int, float]], ranks: int) -> Row:
    """The median of its calls, each as long as the slowest of the ranks that are there."""
    times = [max(by_rank.values()) for by_rank in calls.values()]
    are_all = all(len(by_rank) == ranks for by_rank in calls.values())
    row = measured(
        operation.benchmark,
        operation.message_bytes,
        Printed(median(times)),
        ranks=ranks,
        device="cuda",
        timer=operation.timer,
        headline="max_over_ranks" if are_all else None,
        median_of="call in a job",
        operations_per_sample=1,
        min_s=min(times),
        max_s=max(times),
    )
    return replace(row, mean_s=fmean(times), repetitions=len(times))


def _gaps(own: Communicator) -> list[str]:
    numbers = {number for calls in own.calls.values() for number in calls}
    first, last = min(numbers), max(numbers)
    missing = last - first + 1 - len(numbers)
    if not missing:
        return []
    return [
        f"communicator {own.identity}: {missing} of the {last - first + 1} collectives {first} to"
        f" {last} (coll_sn) are missing: NCCL Inspector writes the last one of each interval"
    ]


def _missing_ranks(own: Communicator) -> list[str]:
    seen = len(own.hosts)
    if seen == own.ranks:
        return []
    return [
        f"communicator {own.identity}: {seen} of its {own.ranks} ranks are in these files; a time"
        " is that of the slowest of them"
    ]
