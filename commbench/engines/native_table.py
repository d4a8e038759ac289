"""The table of C calls that the native engine runs: a row is an address and its integer arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_ARGS = 8
REGISTERS = 6  # arguments that travel in registers on x86-64; more need the wider call
ADDRESS, CHECKED, WIDE, ARGS = 0, 1, 2, 3  # columns of a table row; one argument a column from ARGS on
ROW = ARGS + MAX_ARGS


@dataclass(frozen=True)
class NativeCall:
    """One C call. `args` are integers and pointers; a tuple holds one value for each copy of the pool."""

    name: str
    address: int
    args: tuple[int | tuple[int, ...], ...]
    checked: bool = True  # a return value other than 0 is an error


def call_table(calls: Sequence[NativeCall], pool: int) -> NDArray[np.int64]:
    """int64 [pool, calls, ROW]; handles that are negative C ints stay what they are."""
    table = np.zeros((pool, len(calls), ROW), dtype=np.int64)
    for index, call in enumerate(calls):
        table[:, index, ADDRESS] = call.address
        table[:, index, CHECKED] = call.checked
        table[:, index, WIDE] = len(call.args) > REGISTERS
        for column, arg in enumerate(call.args, start=ARGS):
            table[:, index, column] = arg
    return table
