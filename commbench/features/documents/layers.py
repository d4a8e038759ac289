"""What each layer of a stack adds to the time of a message: gloo to TCP, Python to MPI, torch to
NCCL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from commbench.analysis.case_names import OF_BACKEND, differing
from commbench.analysis.families import key
from commbench.core.texts import size_text
from commbench.core.units import value_text
from commbench.core.variables import SHOWN, brought_along
from commbench.results.columns import grouped
from commbench.results.row import Measured, Row

STACKS = (  # backend and engine, each on top of the one before it
    {("mpi", "native"): "MPI from C (native)", ("mpi", "python"): "MPI from Python (mpi4py)"},
    {("tcp", "python"): "plain TCP sockets", ("gloo", "python"): "torch gloo"},
    {("cupy_nccl", "python"): "raw NCCL", ("nccl", "python"): "torch NCCL"},
)
STACK_OF = {layer: number for number, stack in enumerate(STACKS) for layer in stack}
# what differs between the layers of a stack, and what a title names anyway
OF_LAYERS = ("backend", *(name for name in brought_along("backend") if name in SHOWN))
IN_TITLE = ("benchmark", "layout", "pair", "timer", *OF_LAYERS)


class Layers(NamedTuple):
    """The times in seconds of the layers of a stack, the lowest first."""

    title: str
    times: Sequence[tuple[str, float]]


def layers_of(rows: Iterable[Measured]) -> list[Layers]:
    """Of the smallest and the largest message that several layers of a stack moved alike."""
    layers = [
        row for row in rows if row.streams in (None, 1) and (row.backend, row.engine) in STACK_OF
    ]
    shown: list[tuple[Measured, list[tuple[str, float]]]] = []
    for (number, *_), alike in grouped(layers, _stack_key).items():
        # sizes of several layers, the lowest layer first
        shared: dict[int, list[tuple[str, Measured]]] = {}
        for size, of_size in grouped(alike, lambda row: row.message_bytes).items():
            by_layer = grouped(of_size, lambda row: (row.backend, row.engine))
            # of two libraries of a layer it is not known which one lies below
            single = {
                layer: layer_rows[0]
                for layer, layer_rows in by_layer.items()
                if len(layer_rows) == 1
            }
            if len(single) > 1:
                shared[size] = [
                    (name, single[layer])
                    for layer, name in STACKS[number].items()
                    if layer in single
                ]
        for size in sorted({min(shared), max(shared)}) if shared else []:
            times = [(name, row.median_s) for name, row in shared[size]]
            # else nothing was added that could be shown
            if times == sorted(times, key=lambda layer: layer[1]):
                shown.append((shared[size][0][1], times))
    by_benchmark = grouped((row for row, _ in shown), lambda row: row.benchmark)
    more = {benchmark: differing(rows) for benchmark, rows in by_benchmark.items()}
    return [Layers(_title(row, more[row.benchmark]), times) for row, times in shown]


def _stack_key(row: Row) -> tuple[Any, ...]:
    """The index in STACKS, then what its layers share; a stack of several backends has a library
    for each."""
    number = STACK_OF[row.backend, row.engine]
    own = OF_BACKEND if len({backend for backend, _ in STACKS[number]}) > 1 else ()
    return (number, *key(row, (*OF_LAYERS, *own)))


def _title(row: Row, more: Iterable[str]) -> str:
    """The variables that the layers share; `more`: those in which the figures differ."""
    mode = "" if row.timer in (None, "host") else str(row.timer)
    pair = f"ranks {row.pair}" if row.pair else ""
    values = ((name, getattr(row, name)) for name in more if name not in IN_TITLE)
    others = (f"{name} {value_text(value)}" for name, value in values if value)
    parts = row.benchmark, size_text(row.message_bytes), row.layout, pair, mode, *others
    return ", ".join(filter(None, parts))
