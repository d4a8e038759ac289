"""Buffers on the host or a device: page-aligned, touched, guarded, filled with patterns and checked
against them."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.payload import DType, dtype
from commbench.core.program import PERIOD, BufferSpec, Pattern, Program, Segment, View
from commbench.core.protocols import Buffer, Communicator, Runner
from commbench.core.units import about_bytes
from commbench.core.variables import Mode
from commbench.hardware.sources import read_text

PAGE_BYTES = mmap.PAGESIZE
LINE_BYTES = 64
GUARD_BYTES = 8
SENTINEL = 0xA5  # as an element of any type far from the small positive integers of patterns
CHUNK_BYTES = 1 << 20  # patterns are written and compared in pieces of this size
PART_BYTES = 8 * CHUNK_BYTES  # of device memory that the host fills or checks at once
ZEROS = np.zeros(PERIOD, dtype=np.int64)


def resident_bytes(peak: bool = False) -> int | None:
    """Resident memory of this process, now or at its peak; None if unknown. Not ru_maxrss, which
    survives an exec."""
    name = "VmHWM" if peak else "VmRSS"
    text = read_text(Path("/proc/self/status"))
    size = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(size[1]) * 1024 if size else None


def slot_bytes(spec: BufferSpec) -> int:
    """Distance between two slots: payload and guard, rounded up to cache lines, or to pages from a
    page on."""
    payload = spec.count * dtype(spec.dtype).itemsize
    unit = PAGE_BYTES if payload >= PAGE_BYTES else LINE_BYTES
    return -(-(payload + GUARD_BYTES) // unit) * unit


def buffer_bytes(spec: BufferSpec, pool: int) -> int:
    """The memory of a buffer with `pool` copies of its slots."""
    return slot_bytes(spec) * spec.slots * pool


def host_bytes(spec: BufferSpec, pool: int) -> int:
    """The host memory of a device buffer while it is written or checked."""
    return 2 * min(PART_BYTES, buffer_bytes(spec, pool))


def largest_bytes(cases: Iterable[Planned], rank: int) -> int:
    """The bytes of all buffers that a rank of the world has in its largest case."""
    own = (planned for planned in cases if not planned.skip and rank in planned.members)
    buffers = ((planned.buffers(planned.members.index(rank)), planned.pool) for planned in own)
    return max(
        (sum(buffer_bytes(spec, pool) for spec in specs) for specs, pool in buffers), default=0
    )


def rotation_pool(buffers: Mapping[str, Any]) -> int:
    """How many copies a program rotates through: those of its buffers, 1 without any."""
    return max((buffer.pool for buffer in buffers.values()), default=1)


class AddressedBuffer:
    """The addresses of a buffer's elements: copies and their slots have the same layout on a host
    and on a device."""

    first_address: int  # of the memory; subclasses set it

    def __init__(self, spec: BufferSpec, pool: int) -> None:
        self.spec = spec
        self.pool = pool
        self.dtype: DType = dtype(spec.dtype)
        self.payload_bytes = spec.count * self.dtype.itemsize  # of a slot
        self.copy_bytes = buffer_bytes(spec, pool=1)

    def offset(self, slot: int = 0, copy: int = 0) -> int:
        """Bytes from the start of the memory to that slot."""
        return copy * self.copy_bytes + slot * slot_bytes(self.spec)

    def address(self, slot: int = 0, copy: int = 0) -> int:
        return self.first_address + self.offset(slot, copy)

    def addresses(self, view: View) -> tuple[int, ...]:
        """The address at which the view begins in each copy of the pool."""
        begin = view.offset * self.dtype.itemsize
        return tuple(self.address(view.slot, copy) + begin for copy in range(self.pool))

    def size_bytes(self, view: View) -> int:
        return view.count_in(self.spec) * self.dtype.itemsize


class HostBuffer(AddressedBuffer):
    """See Buffer. Raises MemoryError where the system refuses the pages."""

    def __init__(self, spec: BufferSpec, pool: int = 1) -> None:
        super().__init__(spec, pool)
        try:
            # private: shared anonymous memory is shmem, which has other rules for huge pages
            pages = mmap.mmap(
                -1, self.copy_bytes * pool, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryError(
                f"{about_bytes(self.copy_bytes * pool)} for buffer {spec.name!r}: {error}"
            ) from error
        self.raw = np.frombuffer(pages, dtype=np.uint8)  # copy after copy
        self._bytes = self.raw.reshape(pool, spec.slots, slot_bytes(spec))
        self._bytes.fill(SENTINEL)  # touches every page from the thread that will use it
        self.first_address = int(self._bytes.ctypes.data)

    def words(self, slot: int | slice = 0, copy: int | slice = 0) -> NDArray[Any]:
        """The elements of one slot as the dtype's machine words; slices of slots or copies add
        leading dimensions."""
        return self._bytes[copy, slot, : self.payload_bytes].view(self.dtype.word)

    def write(self, pattern: Pattern | None) -> None:
        if pattern is None:
            self._bytes.fill(SENTINEL)
            return
        self._bytes[0, :, self.payload_bytes :] = SENTINEL
        for slot, elements, words, _ in pattern_pieces(self.spec, pattern):
            self.words(slot)[elements] = words
        self._bytes[1:] = self._bytes[0]

    def count_wrong(self, pattern: Pattern, copies: int = 1) -> int:
        copies = min(copies, self.pool)
        guards = self._bytes[:copies, :, self.payload_bytes : self.payload_bytes + GUARD_BYTES]
        wrong = int(np.count_nonzero((guards != SENTINEL).any(axis=2)))
        for slot, elements, expected, tolerance in pattern_pieces(self.spec, pattern):
            group = max(1, CHUNK_BYTES // expected.nbytes)
            for first in range(0, copies, group):
                actual = self.words(slot, slice(first, min(first + group, copies)))[:, elements]
                wrong += (
                    count_different(actual, expected, self.dtype, pattern.ulp)
                    if tolerance is None
                    else count_beyond(actual, expected, self.dtype, tolerance)
                )
        return wrong

    def read(self, view: View, copy: int) -> NDArray[Any]:
        return self.words(view.slot, copy)[view.elements].copy()


class Piece(NamedTuple):
    """A range of the elements of a slot and their words, or with a tolerance their values."""

    slot: int
    elements: slice
    expected: NDArray[Any]
    tolerance: NDArray[np.float64] | None


def pattern_pieces(spec: BufferSpec, pattern: Pattern) -> Iterator[Piece]:
    """The pattern of a buffer in pieces of about CHUNK_BYTES at most."""
    begin = 0
    period = None
    tile = np.zeros(0)
    for segment in pattern.segments:
        if segment.period is not period:
            period = segment.period
            tile = _tile(dtype(spec.dtype), segment, pattern)
        done = 0
        while done < segment.count:
            slot, element = divmod(begin + done, spec.count)
            phase = (segment.shift + done) % PERIOD
            length = min(segment.count - done, spec.count - element, len(tile) - phase)
            tolerance = segment.tolerance
            if tolerance is not None:
                tolerance = np.resize(np.roll(tolerance, -phase), length)
            elements = slice(element, element + length)
            yield Piece(slot, elements, tile[phase : phase + length], tolerance)
            done += length
        begin += done


def _tile(kind: DType, segment: Segment, pattern: Pattern) -> NDArray[Any]:
    """The words of a period, repeated for a pattern that is longer, up to CHUNK_BYTES; of a short
    pattern only those up to its end."""
    period = segment.period
    end = segment.shift + segment.count
    if len(pattern.segments) == 1 and end <= PERIOD:
        period = period[:end]
    words = kind.encode(period) if segment.tolerance is None else period
    if pattern.divisor != 1:
        words = kind.encode(kind.decode(words) / pattern.divisor)
    if pattern.count < PERIOD:
        return words
    longest = min(pattern.count * words.itemsize, CHUNK_BYTES)
    return np.tile(words, 2 + longest // words.nbytes)


def count_different(actual: NDArray[Any], expected: NDArray[Any], kind: DType, ulp: int) -> int:
    """Elements that differ by more than `ulp` units in the last place; NaN always does."""
    if not ulp:
        return int(np.count_nonzero(actual != expected))
    values, exact = (kind.decode(np.ascontiguousarray(words)) for words in (actual, expected))
    spacing = (
        np.spacing(np.abs(exact).astype(kind.word))
        if kind.name != "bfloat16"
        else np.abs(exact) / 128
    )
    return int(np.count_nonzero(~(np.abs(values - exact) <= ulp * spacing)))


def count_beyond(
    actual: NDArray[Any],
    exact: NDArray[np.float64],
    kind: DType,
    tolerance: NDArray[np.float64],
) -> int:
    """Elements whose values are further away; NaN always is."""
    values = kind.decode(np.ascontiguousarray(actual))
    return int(np.count_nonzero(~(np.abs(values - exact) <= tolerance)))


class Allocation(Protocol):
    """Bytes on a device. Copies are complete when they return."""

    address: int

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None: ...

    def download(self, offset: int, size: int) -> NDArray[np.uint8]: ...


class Part(NamedTuple):
    """Some whole copies of a device buffer, or elements of one slot: where it begins, its bytes,
    the host buffer that can hold it, and its first element in a copy."""

    offset: int
    size: int
    spec: BufferSpec
    copies: int
    begin: int

    def of(self, pattern: Pattern) -> Pattern:
        return pattern.part(self.begin, self.spec.count * self.spec.slots)


class DeviceBuffer(AddressedBuffer):
    """See Buffer. To write or check it, the host holds a part of PART_BYTES, twice at most."""

    def __init__(self, spec: BufferSpec, pool: int, allocate: Callable[[int], Allocation]) -> None:
        """`allocate` takes the number of bytes; it raises MemoryError."""
        super().__init__(spec, pool)
        self.allocation = allocate(self.copy_bytes * pool)
        self.first_address = self.allocation.address
        self.write(None)

    def write(self, pattern: Pattern | None) -> None:
        for part, host in self._parts_on_host(self.pool):
            host.write(None)
            if pattern is not None:
                host.write(part.of(pattern))
            self.allocation.upload(part.offset, host.raw[: part.size])

    def count_wrong(self, pattern: Pattern, copies: int = 1) -> int:
        wrong = 0
        for part, host in self._parts_on_host(min(copies, self.pool)):
            host.raw[: part.size] = self.allocation.download(part.offset, part.size)
            host.raw[part.size :] = SENTINEL
            wrong += host.count_wrong(part.of(pattern), part.copies)
        return wrong

    def read(self, view: View, copy: int) -> NDArray[Any]:
        begin = self.addresses(view)[copy] - self.first_address
        return self.allocation.download(begin, self.size_bytes(view)).view(self.dtype.word)

    def _parts_on_host(self, copies: int) -> Iterator[tuple[Part, HostBuffer]]:
        """The parts of the first copies, with host memory that may hold another part's bytes."""
        host: HostBuffer | None = None
        for part in self._parts(copies):
            if host is None or (host.spec, host.pool) != (part.spec, part.copies):
                host = HostBuffer(part.spec, part.copies)
            yield part, host

    def _parts(self, copies: int) -> Iterator[Part]:
        if self.copy_bytes <= PART_BYTES:
            most = PART_BYTES // self.copy_bytes
            for copy in range(0, copies, most):
                own = min(most, copies - copy)
                yield Part(self.offset(copy=copy), own * self.copy_bytes, self.spec, own, 0)
            return
        spec = self.spec
        most = PART_BYTES // self.dtype.itemsize
        for copy, slot, first in product(
            range(copies), range(spec.slots), range(0, spec.count, most)
        ):
            count = min(most, spec.count - first)
            guard_bytes = GUARD_BYTES if first + count == spec.count else 0
            yield Part(
                self.offset(slot, copy) + first * self.dtype.itemsize,
                count * self.dtype.itemsize + guard_bytes,
                replace(spec, count=count, slots=1),
                1,
                slot * spec.count + first,
            )


class CheckedBuffers:
    """The buffers of the ranks in this process, and what they hold before a block and must hold
    after it.

    `salt` changes the values that are sent. With `zero` they are zeros, which any number of
    reductions leaves zero.
    """

    def __init__(self, planned: Planned, communicator: Communicator, salt: int) -> None:
        self.planned = planned
        self.salt = salt
        self.zero = False
        self._communicator = communicator
        self.buffers: dict[int, dict[str, Buffer]] = {}  # by rank and name

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those whose programs are needed."""
        return self._communicator.hosted

    def allocate(self, programs: Mapping[int, Program]) -> None:
        """Raises MemoryError."""
        registration = self.planned.case.registration
        plain = registration == "none"
        memory = nullcontext() if plain else self._communicator.registered_memory(registration)
        with memory:
            for rank, program in programs.items():
                self.buffers[rank] = {
                    spec.name: self._communicator.allocate(spec, self.planned.pool)
                    for spec in program.buffers
                }

    def prepare(self, programs: Mapping[int, Program], mode: Mode) -> Runner:
        """Lower the programs for these buffers; all ranks must call it. Raises Unsupported."""
        return self._communicator.prepare(programs, self.buffers, mode)

    def fill(self) -> None:
        """Write the values to send, and the sentinel into buffers that only receive. With `zero`
        these get zeros: a reset reaches one copy, and several samples between two stamps reduce
        the next ones in place, too."""
        for rank, name, buffer in self._all_buffers():
            pattern = self.pattern("fill", rank, name)
            if pattern is None and self.zero:
                pattern = self.pattern("expected", rank, name)
            buffer.write(pattern)

    def refill(self) -> None:
        """Fill with new values, so that data of earlier repetitions can't pass a check."""
        self.salt += 1
        self.fill()

    def count_wrong(self, copies: int) -> int:
        """The number of wrong elements in the first `copies` copies."""
        expected = (
            (buffer, self.pattern("expected", rank, name))
            for rank, name, buffer in self._all_buffers()
        )
        return sum(
            buffer.count_wrong(pattern, copies)
            for buffer, pattern in expected
            if pattern is not None
        )

    def clear(self) -> None:
        """Let go of the memory."""
        self.buffers.clear()
        if self.planned.case.registration != "none":
            self._communicator.release_memory()

    def pattern(self, rule: str, rank: int, name: str) -> Pattern | None:
        """What `rule` of the benchmark, fill or expected, says of a buffer of a rank."""
        planned = self.planned
        pattern: Pattern | None = getattr(planned.benchmark, rule)(
            planned.case, rank, planned.size, name, self.salt
        )
        if pattern is None or not self.zero:
            return pattern
        return Pattern(
            tuple(replace(segment, period=ZEROS, tolerance=None) for segment in pattern.segments)
        )

    def _all_buffers(self) -> Iterator[tuple[int, str, Buffer]]:
        return (
            (rank, name, buffer)
            for rank, buffers in self.buffers.items()
            for name, buffer in buffers.items()
        )
