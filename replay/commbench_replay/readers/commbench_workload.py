"""commbench's own workload file, as a trace without times."""

from __future__ import annotations

from typing import Any

from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.operations import RankGroup, RankTrace, RecordedCall, numbered
from commbench_replay.workload import RankOrder, Workload, WorkloadOperation
from commbench_replay.workload_file import FORMAT, parse_workload


class CommbenchWorkload:
    form = "commbench workload"

    def recognises(self, file: ForeignFile) -> bool:
        return file.head.lstrip()[:1] == b"{" and f'"{FORMAT}"'.encode() in file.head[:200]

    def workload(self, file: ForeignFile) -> Workload:
        """What the file holds, with the gaps that a trace of it lacks."""
        return parse_workload(file.content(), file.name)

    def read(self, file: ForeignFile) -> list[RankTrace]:
        workload = self.workload(file)
        groups = [
            RankGroup(str(index), ranks, len(ranks)) for index, ranks in enumerate(workload.groups)
        ]
        orders = {rank: order for order in workload.orders for rank in order.ranks}
        return [
            RankTrace(
                file.name,
                self.form,
                rank,
                _rank_calls(workload, orders.get(rank), groups, rank),
                workload.ranks,
            )
            for rank in range(workload.ranks)
        ]


def _rank_calls(
    workload: Workload, order: RankOrder | None, groups: list[RankGroup], rank: int
) -> tuple[RecordedCall, ...]:
    calls = order.calls if order is not None else ()
    return numbered(
        [_workload_fields(workload.operations[call.operation], groups, rank) for call in calls],
        rank,
    )


def _workload_fields(
    operation: WorkloadOperation, groups: list[RankGroup], rank: int
) -> dict[str, Any]:
    group = groups[operation.group]
    place = (group.ranks or ()).index(rank)
    counts = operation.counts
    fields: dict[str, Any] = {
        "group": group,
        "operation": operation.operation,
        "dtype": operation.dtype,
        "input_bytes": _of_rank(operation.input_bytes, place),
        "output_bytes": _of_rank(operation.output_bytes, place),
        "send_counts": counts[place] if counts else None,
        "receive_counts": tuple(row[place] for row in counts) if counts else None,
        "root": operation.root,
    }
    if operation.peers is not None:
        sends = operation.peers[0] == place
        fields["operation"] = "send" if sends else "recv"
        fields["peer"] = operation.peers[1 if sends else 0]
    return fields


def _of_rank(numbers: tuple[int, ...], place: int) -> int:
    return numbers[0] if len(numbers) == 1 else numbers[place]
