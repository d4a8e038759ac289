"""The compiled part of the native engine; only engines.native imports it, when it is used, because numba is slow."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import int32, int64, njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from .lowered import ADDRESS, ARGS, CHECKED, WIDE


@intrinsic
def _c_call(typing_context: Any, address: Any, args: Any) -> Any:
    """Call the C function at an address with a tuple of integers; returns its int result.

    Every argument is passed as 64 bits. On x86-64 and AArch64 Linux, a callee reads a C int or a pointer correctly from
    such a register or stack slot, and ignores arguments that it does not declare.
    """

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words = cgutils.unpack_tuple(builder, values[1])
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * len(words))
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), words)

    return int32(int64, types.UniTuple(int64, len(args))), emit  # type: ignore[attr-defined]


@njit(nogil=True, inline="always")
def _read(clock: int, clock_id: int, timespec: Any) -> Any:
    _c_call(clock, (clock_id, timespec.ctypes.data))
    return timespec[0] * 1_000_000_000 + timespec[1]


@njit(nogil=True, inline="always")
def _call(row: Any) -> Any:
    if row[WIDE] == 0:
        return _c_call(
            row[ADDRESS],
            (row[ARGS], row[ARGS + 1], row[ARGS + 2], row[ARGS + 3], row[ARGS + 4], row[ARGS + 5]),
        )
    return _c_call(
        row[ADDRESS],
        (
            row[ARGS], row[ARGS + 1], row[ARGS + 2], row[ARGS + 3],
            row[ARGS + 4], row[ARGS + 5], row[ARGS + 6], row[ARGS + 7],
        ),
    )  # fmt: skip


@njit(
    "void(int64[:,:,::1], int64[:,:,::1], int64, int64, int64[::1], int64[::1], int64[:,::1], int64[::1], int64[::1])",
    nogil=True,
    cache=True,
)
def run(
    before: Any,
    timed: Any,
    clock: int,
    clock_id: int,
    timespec: Any,
    starts: Any,
    stamps: Any,
    progress: Any,
    failed: Any,
) -> None:
    """One repetition per row of `stamps` [n, 2]; stops at the first error with failed = (step, code).

    Unless `starts` is empty, repetition r begins no earlier than starts[r] on the same clock.
    """
    pool = timed.shape[0]
    windowed = starts.shape[0] > 0
    for repetition in range(stamps.shape[0]):
        copy = repetition % pool
        progress[0] = repetition
        progress[1] = -1
        for step in range(before.shape[1]):
            code = _call(before[copy, step])
            if code != 0 and before[copy, step, CHECKED] != 0:
                failed[0], failed[1] = timed.shape[1], code
                return
        if windowed:
            while _read(clock, clock_id, timespec) < starts[repetition]:
                pass
        stamps[repetition, 0] = _read(clock, clock_id, timespec)
        for step in range(timed.shape[1]):
            progress[1] = step
            code = _call(timed[copy, step])
            if code != 0 and timed[copy, step, CHECKED] != 0:
                failed[0], failed[1] = step, code
                return
        stamps[repetition, 1] = _read(clock, clock_id, timespec)
