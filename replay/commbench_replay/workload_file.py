"""job.json: what a job communicates, in a compact and anonymous form (docs/workloads.md)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from commbench.core.errors import Unreadable
from commbench.core.terminal import one_line

from .operations import ITEM_BYTES
from .schedule import WaitsForever, schedule
from .workload import (
    SEND_RECV,
    UNKNOWNS,
    WORKLOAD_OPERATIONS,
    RankOrder,
    Workload,
    WorkloadCall,
    WorkloadOperation,
)

FORMAT = "commbench workload"
FORMAT_VERSION = 1
MOST_WORLD_RANKS = 2**20
MOST_CALLS = 10**7
MOST_BYTES = 2**50
LONGEST_GAP_S = 86_400.0


def workload_text(workload: Workload) -> str:
    """The content of a workload file: one line an operation and an order."""
    operations = [_operation_fields(operation) for operation in workload.operations]
    orders = [
        {
            "ranks": order.ranks,
            "calls": [_call_parts(call) for call in order.calls],
        }
        for order in workload.orders
    ]
    lines = [
        f'"format": {json.dumps(FORMAT)}, "version": {FORMAT_VERSION}',
        f'"ranks": {workload.ranks}, "steps": {workload.steps},'
        f' "step_s": {json.dumps(workload.step_s)}, "unknown": {json.dumps(workload.unknown)}',
        f'"groups": {_lines(workload.groups)}',
        f'"operations": {_lines(operations)}',
        f'"orders": {_lines(orders)}',
    ]
    return "{" + ",\n".join(lines) + "}\n"


def _call_parts(call: WorkloadCall) -> list[float | None]:
    """The last part is left out where it is not known, as older files do."""
    parts = [call.operation, call.gap_s, call.concurrent]
    return parts if call.beside_s is None else [*parts, call.beside_s]


def _lines(values: Sequence[object]) -> str:
    return "[\n" + ",\n".join(json.dumps(value, separators=(",", ":")) for value in values) + "]"


def _operation_fields(operation: WorkloadOperation) -> dict[str, object]:
    """Those that say something."""
    values = {field.name: getattr(operation, field.name) for field in fields(operation)}
    needed = ("group", "operation", "dtype", "input_bytes", "output_bytes")
    return {name: value for name, value in values.items() if name in needed or value}


def parse_workload(text: str | bytes, name: str) -> Workload:
    """The workload in a file; raises Unreadable for anything that is not exactly of the format, or
    that ranks could not run together."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(name, f"it is not JSON ({one_line(str(error))})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _wrong(name, f'it does not begin with "format": "{FORMAT}"')
    if document.get("version") != FORMAT_VERSION:
        raise _wrong(
            name,
            f"its version is {document.get('version')!r:.40}, and this commbench reads"
            f" {FORMAT_VERSION}",
        )
    try:
        workload = _workload(_Fields(document, "the file"))
        _check_order(workload)
        schedule(workload, {})
    except (_WrongWorkload, WaitsForever) as error:
        raise _wrong(name, str(error)) from error
    return workload


class _WrongWorkload(Exception):
    """Says what is wrong, without the file's name."""


def _wrong(name: str, cause: str) -> Unreadable:
    return Unreadable(
        f"{name} is not a workload file: {cause}; write it with commbench replay --export"
    )


class _Fields:
    """The keys of an object in a file, each taken once and checked."""

    def __init__(self, values: object, place: str) -> None:
        if not isinstance(values, dict):
            raise _WrongWorkload(f"{place} is not an object")
        self.values = dict(values)
        self.place = place

    def take(self, key: str, default: object = ...) -> Any:
        if key not in self.values and default is ...:
            raise _WrongWorkload(f"{self.place} lacks {key!r}")
        return self.values.pop(key, default)

    def whole(self, key: str, least: int, most: int, default: object = ...) -> int:
        return _in_range(self.take(key, default), least, most, f"{key} of {self.place}")

    def seconds(self, key: str) -> float | None:
        return _seconds(self.take(key, None), f"{key} of {self.place}")

    def list(self, key: str, most: int) -> list[Any]:
        return _bounded_list(self.take(key), most, f"{key} of {self.place}")

    def numbers(self, key: str, least: int, most: int, longest: int) -> tuple[int, ...]:
        place = f"{key} of {self.place}"
        return tuple(_in_range(value, least, most, place) for value in self.list(key, longest))

    def end(self) -> None:
        if self.values:
            raise _WrongWorkload(f"{self.place} has an unknown key {next(iter(self.values))!r:.60}")


def _bounded_list(value: object, most: int, place: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise _WrongWorkload(f"{place} is not a list of at most {most}")
    return value


def _in_range(value: object, least: int, most: int, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _WrongWorkload(
            f"{place} is {value!r:.40}; allowed are whole numbers from {least} to {most}"
        )
    return value


def _seconds(value: object, place: str) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isinstance(value, int | float) or not 0 <= value <= LONGEST_GAP_S:
        raise _WrongWorkload(
            f"{place} is {value!r:.40}; allowed are seconds from 0 to {LONGEST_GAP_S:g}, and null"
        )
    return float(value)


def _workload(document: _Fields) -> Workload:
    document.take("format")
    document.take("version")
    ranks = document.whole("ranks", 1, MOST_WORLD_RANKS)
    groups = tuple(
        _group_ranks(value, ranks, index)
        for index, value in enumerate(document.list("groups", MOST_WORLD_RANKS))
    )
    operations = tuple(
        _file_operation(_Fields(value, f"operation {index}"), groups)
        for index, value in enumerate(document.list("operations", MOST_CALLS))
    )
    orders = tuple(
        _file_order(_Fields(value, f"order {index}"), ranks, len(operations))
        for index, value in enumerate(document.list("orders", MOST_WORLD_RANKS))
    )
    unknown = document.list("unknown", len(UNKNOWNS))
    if not all(word in UNKNOWNS for word in unknown):
        raise _WrongWorkload(f"unknown is {unknown!r:.80}; allowed are {', '.join(UNKNOWNS)}")
    workload = Workload(
        ranks,
        groups,
        operations,
        orders,
        document.whole("steps", 1, MOST_CALLS),
        document.seconds("step_s"),
        tuple(unknown),
    )
    document.end()
    return workload


def _group_ranks(value: object, world: int, index: int) -> tuple[int, ...]:
    place = f"group {index}"
    ranks = tuple(
        _in_range(rank, 0, world - 1, f"a rank of {place}")
        for rank in _bounded_list(value, world, place)
    )
    if not ranks or len(set(ranks)) < len(ranks):
        raise _WrongWorkload(f"{place} has no rank, or one twice")
    return ranks


def _file_operation(values: _Fields, groups: Sequence[tuple[int, ...]]) -> WorkloadOperation:
    group = values.whole("group", 0, len(groups) - 1)
    size = len(groups[group])
    name = values.take("operation")
    if name not in WORKLOAD_OPERATIONS:
        raise _WrongWorkload(
            f"{values.place} is {name!r:.40}; allowed are {', '.join(WORKLOAD_OPERATIONS)}"
        )
    dtype = values.take("dtype")
    if not (dtype is None and name == "barrier") and dtype not in ITEM_BYTES:
        raise _WrongWorkload(
            f"dtype of {values.place} is {dtype!r:.40}; allowed are {', '.join(ITEM_BYTES)}"
        )
    root = values.take("root", None)
    peers = values.take("peers", None)
    counts = values.take("counts", None)
    job_s = values.seconds("job_s")
    is_bound = values.take("is_bound", False)
    operation = WorkloadOperation(
        group,
        name,
        dtype,
        values.numbers("input_bytes", 0, MOST_BYTES, size),
        values.numbers("output_bytes", 0, MOST_BYTES, size),
        None if counts is None else _matrix(counts, size, values.place),
        None if root is None else _in_range(root, 0, size - 1, f"root of {values.place}"),
        None if peers is None else _pair(peers, size, values.place),
        job_s,
        is_bound is True,
    )
    values.end()
    _check_bytes(operation, size, values.place)
    return operation


def _matrix(value: object, size: int, place: str) -> tuple[tuple[int, ...], ...]:
    rows = [
        _bounded_list(row, size, f"a row of counts of {place}")
        for row in _bounded_list(value, size, place)
    ]
    if len(rows) != size or any(len(row) != size for row in rows):
        raise _WrongWorkload(f"counts of {place} are not {size} x {size}")
    return tuple(
        tuple(_in_range(cell, 0, MOST_BYTES, f"a count of {place}") for cell in row) for row in rows
    )


def _pair(value: object, size: int, place: str) -> tuple[int, int]:
    numbers = [
        _in_range(rank, 0, size - 1, f"a peer of {place}")
        for rank in _bounded_list(value, 2, place)
    ]
    if len(set(numbers)) != 2:
        raise _WrongWorkload(f"peers of {place} are not two ranks of its group")
    return numbers[0], numbers[1]


def _check_bytes(operation: WorkloadOperation, size: int, place: str) -> None:
    if (operation.peers is None) == (operation.operation == SEND_RECV):
        raise _WrongWorkload(f"{place} needs peers if it is a {SEND_RECV}, and only then")
    item_bytes = ITEM_BYTES[operation.dtype] if operation.dtype is not None else 1
    for side in (operation.input_bytes, operation.output_bytes):
        if len(side) not in (1, size):
            raise _WrongWorkload(f"{place} has bytes of {len(side)} ranks in a group of {size}")
        if any(number % item_bytes for number in side):
            raise _WrongWorkload(f"bytes of {place} are no multiple of its {item_bytes} B elements")
    if operation.counts is None:
        return
    sent = [sum(row) * item_bytes for row in operation.counts]
    received = [sum(column) * item_bytes for column in zip(*operation.counts, strict=True)]
    for total, side in ((sent, operation.input_bytes), (received, operation.output_bytes)):
        if total != list(side * (size if len(side) == 1 else 1)):
            raise _WrongWorkload(f"counts of {place} do not add up to its bytes")


def _file_order(values: _Fields, world: int, operations: int) -> RankOrder:
    ranks = values.numbers("ranks", 0, world - 1, world)
    calls = []
    for value in values.list("calls", MOST_CALLS):
        parts = _bounded_list(value, 4, f"a call of {values.place}")
        if len(parts) < 3:
            raise _WrongWorkload(f"a call of {values.place} has not three or four parts")
        calls.append(
            WorkloadCall(
                _in_range(parts[0], 0, operations - 1, f"an operation of {values.place}"),
                _seconds(parts[1], f"a gap of {values.place}"),
                _in_range(parts[2], 0, MOST_CALLS, f"concurrent of {values.place}"),
                _seconds(parts[3], f"beside of {values.place}") if len(parts) == 4 else None,
            )
        )
    values.end()
    return RankOrder(ranks, tuple(calls))


def _check_order(workload: Workload) -> None:
    """All ranks of a group must call its collectives in one order, and each send must have its
    receive, or ranks would wait forever."""
    of_ranks: dict[int, RankOrder] = {}
    for order in workload.orders:
        for rank in order.ranks:
            if rank in of_ranks:
                raise _WrongWorkload(f"rank {rank} has two orders")
            of_ranks[rank] = order
    sequences: dict[int, dict[int, list[int]]] = defaultdict(dict)
    pairs: Counter[tuple[int, int]] = Counter()
    for rank, order in of_ranks.items():
        for call in order.calls:
            operation = workload.operations[call.operation]
            ranks = workload.groups[operation.group]
            if rank not in ranks:
                raise _WrongWorkload(
                    f"rank {rank} calls operation {call.operation} of a group that it is not in"
                )
            if operation.peers is None:
                in_group = sequences[operation.group].setdefault(rank, [])
                in_group.append(call.operation)
            elif ranks.index(rank) in operation.peers:
                sign = 1 if ranks.index(rank) == operation.peers[0] else -1
                pairs[operation.group, call.operation] += sign
            else:
                raise _WrongWorkload(f"rank {rank} is no peer of operation {call.operation}")
    for group, by_rank in sequences.items():
        orders = {tuple(by_rank.get(rank, ())) for rank in workload.groups[group]}
        if len(orders) > 1:
            raise _WrongWorkload(f"the ranks of group {group} disagree on the order")
    if any(pairs.values()):
        raise _WrongWorkload("a send has no receive, or a receive no send")
