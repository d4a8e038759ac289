"""The compiled loop calls real C: libc, and C entry points that lead back into Python and keep a
record."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import caching
from small_disk import small_disk

from commbench.core.errors import CommunicationError
from commbench.engines.lowered import Lowered, NativeCall, now_ns
from commbench.engines.native import (
    ADDRESS,
    ARGS,
    CHECKED,
    MAX_ARGS,
    REGISTERS,
    ROW,
    WIDE,
    NativeRunner,
    call_table,
    compiled,
)

LIBC = ctypes.CDLL(None)


def address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def libc(name: str, *args: int | tuple[int, ...], checked: bool = False) -> NativeCall:
    return NativeCall(name, address_of(getattr(LIBC, name)), args, checked)


class Spy:
    """A C function of eight 64-bit integers that keeps what it was called with; `code` says what it
    returns."""

    def __init__(self, code: Callable[[int], int] = lambda word: 0) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.times: list[int] = []

        def called(*args: int) -> int:
            self.seen.append(args)
            self.times.append(now_ns())
            return code(args[0])

        self._function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * MAX_ARGS)(called)
        self.address = address_of(self._function)

    def call(self, *args: int | tuple[int, ...], checked: bool = True) -> NativeCall:
        return NativeCall("spy", self.address, args, checked)

    @property
    def words(self) -> list[int]:
        return [args[0] for args in self.seen]


def run(calls: Lowered[NativeCall], n: int, pool: int = 1, keep: object = None) -> Any:
    return NativeRunner(calls, pool, keep)(n)


def pages(count: int, size: int = 64) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    memory = np.zeros((count, size), dtype=np.uint8)
    return memory, tuple(int(row.ctypes.data) for row in memory)


def test_what_comes_after_the_steps_is_behind_the_stamps() -> None:
    step = Spy()
    after = Spy()
    calls = Lowered((step.call((1, 2)),), after=(after.call((3, 4)),))
    stamps = run(calls, 4, pool=2)
    assert (step.words, after.words) == ([1, 2, 1, 2], [3, 4, 3, 4])
    begin, end = stamps[0].T
    assert (begin <= np.array(step.times)).all() and (np.array(step.times) <= end).all()
    assert (end <= np.array(after.times)).all()


def test_an_error_after_the_steps_is_named() -> None:
    failing = Spy(lambda word: 5)
    calls = Lowered((libc("getpid"),), after=(failing.call(0),))
    with pytest.raises(CommunicationError, match="spy returned 5 in repetition 0"):
        run(calls, 2)


def test_memcpy_copies() -> None:
    source = np.arange(4096, dtype=np.uint8)
    target = np.zeros(4096, dtype=np.uint8)
    run(
        Lowered((libc("memcpy", target.ctypes.data, source.ctypes.data, 4096),)),
        3,
        keep=(source, target),
    )
    assert (source == target).all()


def test_a_function_without_arguments_ignores_the_registers() -> None:
    with pytest.raises(CommunicationError, match=f"getpid returned {os.getpid()} in repetition 0"):
        run(Lowered((libc("getpid", checked=True),)), 1)


def test_enter_before_and_steps_run_in_this_order() -> None:
    spy = Spy()
    runner = NativeRunner(
        Lowered((spy.call(2), spy.call(3)), (spy.call(1),), (spy.call(0),)), 1, spy
    )
    runner(2)
    runner(1)
    assert spy.words == [0, 1, 2, 3, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 6, 7, 8])
def test_all_arguments_arrive_where_they_belong(count: int) -> None:
    spy = Spy()
    args = (-1, 2**40, -(2**33), 4, 5, 6, -7, 2**62)[:count]
    run(Lowered((spy.call(*args),)), 1)
    assert spy.seen[0][:count] == args


def test_c_functions_of_seven_arguments_get_the_seventh() -> None:
    """getnameinfo's last argument, flags, says that names are to stay numbers."""
    # 127.0.0.1:80
    address = ctypes.create_string_buffer(b"\x02\x00\x00\x50\x7f\x00\x00\x01" + bytes(8), 16)
    host = ctypes.create_string_buffer(64)
    port = ctypes.create_string_buffer(64)
    numeric = 1 | 2  # NI_NUMERICHOST | NI_NUMERICSERV
    pointers = [ctypes.addressof(buffer) for buffer in (address, host, port)]
    call = libc(
        "getnameinfo", pointers[0], 16, pointers[1], 64, pointers[2], 64, numeric, checked=True
    )
    run(Lowered((call,)), 1, keep=(address, host, port))
    assert (host.value, port.value) == (b"127.0.0.1", b"80")


def test_the_stamps_are_the_clock_of_the_house_around_the_steps() -> None:
    spy = Spy()
    begin = now_ns()
    stamps = run(Lowered((spy.call(1),), (spy.call(0),)), 20)
    end = now_ns()
    before = np.array(spy.times[0::2])
    step = np.array(spy.times[1::2])
    assert stamps.shape == (1, 20, 2) and stamps.dtype == np.int64
    assert begin <= stamps.min() and stamps.max() <= end
    assert (np.diff(stamps.reshape(-1)) >= 0).all()
    assert (
        (before <= stamps[0, :, 0]).all()
        and (stamps[0, :, 0] <= step).all()
        and (step <= stamps[0, :, 1]).all()
    )


def test_a_sleep_is_seen() -> None:
    stamps = run(Lowered((libc("usleep", 2000),)), 3)
    assert (stamps[0, :, 1] - stamps[0, :, 0] >= 2_000_000).all()


def test_a_pool_is_walked_through_and_starts_again_with_each_block() -> None:
    memory, places = pages(3)
    spy = Spy()
    steps = (libc("memset", places, (1, 2, 3), 64), spy.call((10, 20, 30)))
    runner = NativeRunner(Lowered(steps, (spy.call((11, 21, 31)),)), 3, memory)
    runner(2)
    assert memory[:, 0].tolist() == memory[:, 63].tolist() == [1, 2, 0]
    runner(4)
    assert memory[:, 0].tolist() == [1, 2, 3]
    assert spy.words == [11, 10, 21, 20, 11, 10, 21, 20, 31, 30, 11, 10]


@pytest.mark.parametrize("code", [5, -1, 2**31 - 1])
def test_a_return_code_stops_the_loop_with_its_step_and_repetition(code: int) -> None:
    codes = iter([0, 0, 0, code, 0])
    spy = Spy(lambda word: next(codes))
    runner = NativeRunner(Lowered((spy.call(1), NativeCall("MPI_Recv", spy.address, (2,)))), 1, spy)
    with pytest.raises(CommunicationError, match=f"MPI_Recv returned {code} in repetition 1"):
        runner(10)
    assert spy.words == [1, 2, 1, 2]
    assert runner.progress.tolist() == [1, 1]


def test_an_error_of_one_copy_shows_in_its_repetition() -> None:
    with pytest.raises(CommunicationError, match="abs returned 7 in repetition 2"):
        run(Lowered((libc("abs", (0, 0, -7), checked=True),)), 5, pool=3)


@pytest.mark.parametrize("where", ["before", "enter"])
def test_an_error_outside_the_steps_is_not_blamed_on_one(where: str) -> None:
    spy = Spy(lambda word: 9 if word == 1 else 0)
    with pytest.raises(CommunicationError, match="synchronisation returned 9 in repetition 0"):
        run(Lowered((spy.call(2),), **{where: (spy.call(1),)}), 3)
    assert spy.words == [1]


def test_results_that_are_no_error_codes_can_be_left_unchecked() -> None:
    spy = Spy(lambda word: 3)
    assert run(Lowered((spy.call(1, checked=False),), (spy.call(0, checked=False),)), 2).all()


def test_progress_ends_at_the_last_step() -> None:
    runner = NativeRunner(Lowered((libc("abs", 0), libc("abs", 0), libc("abs", 0))), 1, None)
    runner(7)
    assert runner.progress.tolist() == [6, 2]


def test_another_thread_sees_the_progress_while_c_runs() -> None:
    runner = NativeRunner(Lowered((libc("abs", 0), libc("usleep", 20_000))), 1, None)
    worker = threading.Thread(target=runner, args=(30,))
    worker.start()
    seen = set()
    while worker.is_alive():
        seen.add(tuple(runner.progress.tolist()))
        time.sleep(0.005)
    worker.join()
    assert len({repetition for repetition, step in seen if step == 1}) >= 2


@pytest.mark.parametrize("count", [0, 1, REGISTERS, REGISTERS + 1, MAX_ARGS])
def test_a_row_of_the_table_holds_a_call_for_each_copy(count: int) -> None:
    calls = [
        NativeCall(
            "f",
            7,
            tuple((-1 - column, 2**62 + column) for column in range(count)),
            checked=count % 2 == 0,
        )
    ]
    table = call_table(calls, 2)
    assert table.shape == (2, 1, ROW) and (table[:, 0, ADDRESS] == 7).all()
    assert (table[:, 0, CHECKED] == (count % 2 == 0)).all() and (
        table[:, 0, WIDE] == (count > REGISTERS)
    ).all()
    assert table[:, 0, ARGS : ARGS + count].tolist() == [
        [-1 - column for column in range(count)], [2**62 + column for column in range(count)]
    ]  # fmt: skip


# ---------------------------------------------------------------- numba's cache on disk


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no other where that one can't be used."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [caching.UserProvidedCacheLocator])
    return tmp_path / "cache"


def call_nothing() -> None:
    """Compiled in a moment, and cached like the loop itself."""


@pytest.fixture
def compiled_to_cache(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str | None]:
    """Compile that function: why the cache could not be used, once it is seen to run."""
    monkeypatch.setattr("commbench.engines.native.SIGNATURE", "void()")

    def compile_it() -> str | None:
        function, problem = compiled(call_nothing)
        function()
        return problem

    return compile_it


def test_the_loop_comes_from_the_cache(
    cache: Path, compiled_to_cache: Callable[[], str | None]
) -> None:
    assert compiled_to_cache() is None
    files = sorted(cache.rglob("*.nb*"))
    assert [file.suffix for file in files] == [".nbc", ".nbi"]
    before = [file.stat().st_mtime_ns for file in files]
    assert compiled_to_cache() is None
    assert [file.stat().st_mtime_ns for file in files] == before


@pytest.mark.parametrize("suffix", ["nbc", "nbi"])
@pytest.mark.parametrize("kept_bytes", [0, 100])
def test_a_cut_file_in_the_cache_is_one_line_and_the_loop_is_compiled(
    suffix: str, kept_bytes: int, cache: Path, compiled_to_cache: Callable[[], str | None]
) -> None:
    assert compiled_to_cache() is None
    (file,) = cache.rglob(f"*.{suffix}")
    os.truncate(file, kept_bytes)
    problem = compiled_to_cache()
    assert problem is not None and len(problem.splitlines()) == 1
    assert "can't be used" in problem and "set NUMBA_CACHE_DIR to an empty folder" in problem


def test_a_cache_that_can_not_be_written_is_one_line_and_the_loop_is_compiled(
    cache: Path, compiled_to_cache: Callable[[], str | None]
) -> None:
    cache.write_text("a file where the folder would be")
    problem = compiled_to_cache()
    assert problem is not None and "no locator available" in problem


def test_a_full_disk_below_the_cache_is_one_line_and_the_loop_is_compiled(
    cache: Path, compiled_to_cache: Callable[[], str | None]
) -> None:
    with small_disk(cache) as disk:
        disk.fill()
        problem = compiled_to_cache()
    assert problem is not None and "No space left on device" in problem
