"""The native engine: a compiled loop over a table of C calls, with the stamps of every repetition.

Imported only when it is used: numba takes 0.3 s to import.

A row is an address and its integer arguments, so the engine fits any C library. Addresses are
passed at run time and not compiled in, so that numba can cache the compiled loop on disk for the
next launch.
"""

from __future__ import annotations

import ctypes
import inspect
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, config, float32, int32, int64, njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from commbench.core.errors import CommunicationError
from commbench.core.program import Compute, Matmul, MatmulFor, MemoryStream, Sleep
from commbench.core.terminal import first_line

from .compute import STREAM_BYTES, square_matrices
from .lowered import Lowered, NativeCall

MAX_ARGS = 10
REGISTERS = 6  # integer arguments that x86-64 passes in registers; more need the wider call
ADDRESS = 0
CHECKED = 1
WIDE = 2
ARGS = 3  # columns of a row of the call table; arguments follow from ARGS on
ROW = ARGS + MAX_ARGS
SIGNATURE = (
    "void(int64[:,:,::1], int64[:,:,::1], int64[:,:,::1], int64, int64, int64[::1],"
    " int64[:,::1], int64[::1], int64[::1])"
)
MONOTONIC = time.CLOCK_MONOTONIC
if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set")


class NativeRunner:
    """See Runner; hosts one rank. `keep` holds the memory that the arguments point to."""

    def __init__(self, calls: Lowered[NativeCall], pool: int, keep: object) -> None:
        self.progress = np.zeros(2, dtype=np.int64)
        self._keep = keep
        self.calls = tuple(call.name for call in (*calls.steps, *calls.after))
        self._enter = call_table(calls.enter, 1)
        self._before = call_table(calls.before, pool)
        self._timed = call_table(calls.steps, pool)
        self._after = call_table(calls.after, pool)
        self._clock = _clock_address()

    def __call__(self, n: int) -> NDArray[np.int64]:
        stamps = np.zeros((1, n, 2), dtype=np.int64)
        failed = np.full(2, -1, dtype=np.int64)  # step, code
        timespec = np.zeros(2, dtype=np.int64)
        clock = (self._clock, time.CLOCK_MONOTONIC, timespec)
        unused_stamps = np.zeros((1, 2), dtype=np.int64)
        nothing = call_table((), 1)
        run_table(self._enter, nothing, nothing, *clock, unused_stamps, self.progress, failed)
        entered = failed[0] < 0
        if entered:
            tables = (self._before, self._timed, self._after)
            run_table(*tables, *clock, stamps[0], self.progress, failed)
        if failed[0] >= 0:
            step = (
                self.calls[failed[0]]
                if entered and failed[0] < len(self.calls)
                else "synchronisation"
            )
            raise CommunicationError(
                f"{step} returned {failed[1]} in repetition {self.progress[0]}"
            )
        return stamps


def call_table(calls: Sequence[NativeCall], pool: int) -> NDArray[np.int64]:
    """The table that the engine runs, int64 [pool, calls, ROW]; negative C ints (handles) keep
    their value."""
    table = np.zeros((pool, len(calls), ROW), dtype=np.int64)
    for index, call in enumerate(calls):
        table[:, index, ADDRESS] = call.address
        table[:, index, CHECKED] = call.checked
        table[:, index, WIDE] = len(call.args) > REGISTERS
        for column, arg in enumerate(call.args, start=ARGS):
            table[:, index, column] = arg
    return table


@intrinsic
def _address_as_void_pointer(typing_context: Any, address: Any) -> Any:
    """The pointer that carray takes."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


@intrinsic
def _c_call(typing_context: Any, address: Any, args: Any) -> Any:
    """Call the C function at an address with a tuple of integers; returns its int result.

    Every argument is passed as 64 bits. On x86-64 and AArch64 Linux, a callee reads a C int or a
    pointer correctly from such a register or stack slot, and ignores arguments that it does not
    declare.
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
            row[ARGS + 4], row[ARGS + 5], row[ARGS + 6], row[ARGS + 7], row[ARGS + 8],
            row[ARGS + 9],
        ),
    )  # fmt: skip


def _run_table(
    before: Any,
    timed: Any,
    after: Any,
    clock: int,
    clock_id: int,
    timespec: Any,
    stamps: Any,
    progress: Any,
    failed: Any,
) -> None:
    """One repetition per row of `stamps` [n, 2]; stops at the first error with failed = (step,
    code)."""
    pool = timed.shape[0]
    for repetition in range(stamps.shape[0]):
        copy = repetition % pool
        progress[0] = repetition
        progress[1] = -1
        for step in range(before.shape[1]):
            code = _call(before[copy, step])
            if code != 0 and before[copy, step, CHECKED] != 0:
                failed[0] = timed.shape[1] + after.shape[1]
                failed[1] = code
                return
        stamps[repetition, 0] = _read(clock, clock_id, timespec)
        for step in range(timed.shape[1]):
            progress[1] = step
            code = _call(timed[copy, step])
            if code != 0 and timed[copy, step, CHECKED] != 0:
                failed[0] = step
                failed[1] = code
                return
        stamps[repetition, 1] = _read(clock, clock_id, timespec)
        for step in range(after.shape[1]):
            progress[1] = timed.shape[1] + step
            code = _call(after[copy, step])
            if code != 0 and after[copy, step, CHECKED] != 0:
                failed[0] = timed.shape[1] + step
                failed[1] = code
                return


def compiled(loop: Callable[..., None]) -> tuple[Any, str | None]:
    """The loop as machine code, and one line if numba's cache on disk could not be used.

    Its folder may not be writable, its disk may be full, and a file in it may be cut.
    """
    try:
        return njit(SIGNATURE, nogil=True, cache=True)(loop), None
    except Exception as error:  # unpickling a damaged file may raise anything
        problem = (
            "numba's cache can't be used, so engine=native is compiled at each start, about 1 s"
            f" ({first_line(f'{type(error).__name__}: {error}')}); set NUMBA_CACHE_DIR to an empty"
            " folder that can be written to"
        )
    return njit(SIGNATURE, nogil=True)(loop), problem


run_table, cache_problem = compiled(_run_table)


@njit(nogil=True)
def _multiply_once(first: int, second: int, product: int, size: int) -> None:
    """A loop of numba's, because a library's gemm takes more arguments than a row has."""
    shape = (size, size)
    a = carray(_address_as_void_pointer(first), shape, float32)
    b = carray(_address_as_void_pointer(second), shape, float32)
    c = carray(_address_as_void_pointer(product), shape, float32)
    for row in range(size):
        c[row, :] = 0
        for inner in range(size):
            for column in range(size):
                c[row, column] += a[row, inner] * b[inner, column]


def _native_multiply(first: int, second: int, product: int, size: int, repetitions: int) -> int:
    for _ in range(repetitions):
        _multiply_once(first, second, product, size)
    return 0


def _native_multiply_for(
    first: int, second: int, product: int, size: int, duration_ns: int, clock: int, words: int
) -> int:
    """`words`: the address of a timespec that the clock writes."""
    timespec = carray(_address_as_void_pointer(words), (2,), int64)
    end_ns = _read(clock, MONOTONIC, timespec) + duration_ns
    while _read(clock, MONOTONIC, timespec) < end_ns:
        _multiply_once(first, second, product, size)
    return 0


def _native_stream(
    target: int, source: int, position: int, size_bytes: int, stream_bytes: int, memcpy: int
) -> int:
    """`position`: the address of the number at which the stream goes on."""
    begin = carray(_address_as_void_pointer(position), (1,), int64)
    left = size_bytes
    while left > 0:
        part = min(left, stream_bytes - begin[0])
        _c_call(memcpy, (target + begin[0], source + begin[0], part))
        left -= part
        begin[0] = (begin[0] + part) % stream_bytes
    return 0


def _native_call_with_handle(function: int, where: int) -> int:
    """A C function of one handle, which an earlier call has written to that address: a callee that
    takes a C int reads its first half, on a machine that stores the low bytes first."""
    code: int = _c_call(function, (carray(_address_as_void_pointer(where), (1,), int64)[0],))
    return code


@lru_cache
def _compiled_address(function: Callable[..., int]) -> int:
    """Of a function of integers as machine code. Compiled when it is first used: most programs
    compute nothing."""
    count = len(inspect.signature(function).parameters)
    signature = int32(*[int64] * count)
    return int(cfunc(signature, cache=cache_problem is None)(function).address)


def call_with_handle(name: str, function: int, where: int) -> NativeCall:
    """A call of that C function with the handle that is at an address by then."""
    return NativeCall(name, _compiled_address(_native_call_with_handle), (function, where))


def native_compute(step: Compute) -> tuple[NativeCall, Any]:
    """The computation as a C call (nanosleep) or a loop of numba's (copies, products of matrices),
    and the memory that it works on, which must live as long."""
    match step:
        case Sleep(duration_ns):
            timespec = np.array(divmod(duration_ns, 1_000_000_000), dtype=np.int64)
            return _c_library_call("nanosleep", (timespec.ctypes.data, 0)), timespec
        case MemoryStream(size_bytes):
            target = np.ones(STREAM_BYTES, np.uint8)
            source = np.ones(STREAM_BYTES, np.uint8)
            position = np.zeros(1, dtype=np.int64)
            copy_address = _c_library_call("memcpy", ()).address
            addresses = (int(each.ctypes.data) for each in (target, source, position))
            numbers = (*addresses, size_bytes, STREAM_BYTES, copy_address)
            call = NativeCall("stream", _compiled_address(_native_stream), numbers)
            return call, (target, source, position)
        case Matmul(size, repetitions):
            memory = square_matrices(size)
            addresses = (int(matrix.ctypes.data) for matrix in memory)
            numbers = (*addresses, size, repetitions)
            return NativeCall("matmul", _compiled_address(_native_multiply), numbers), memory
        case MatmulFor(size, duration_ns):
            timespec = np.zeros(2, dtype=np.int64)
            factors = square_matrices(size)
            addresses = (int(matrix.ctypes.data) for matrix in factors)
            words = (*addresses, size, duration_ns, _clock_address(), timespec.ctypes.data)
            call = NativeCall("matmul", _compiled_address(_native_multiply_for), words)
            return call, (timespec, factors)


def _clock_address() -> int:
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


def _c_library_call(name: str, args: tuple[int, ...]) -> NativeCall:
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    return NativeCall(name, address, args, checked=False)
