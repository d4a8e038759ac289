"""Copies between and within a rank's host and device memory (as nvbandwidth's copy engine
tests)."""

from __future__ import annotations

from typing import ClassVar

from commbench.core.case import Shape
from commbench.core.payload import message
from commbench.core.program import (
    DEVICE,
    HOST,
    PINNED,
    BufferSpec,
    Copy,
    MemoryKind,
    Pattern,
    Program,
    Start,
    View,
    WaitAll,
)
from commbench.core.variables import Case

from .collective import Collective


class MemoryCopy(Collective):
    """All ranks of the layout copy at once, each from its buffers send... to its buffers recv...

    Host memory is page-locked with staging=pinned, else pageable, which the driver copies through
    pages of its own.
    """

    axes = ("staging",)
    cache = "rotate"
    memory: ClassVar[
        tuple[MemoryKind, MemoryKind]
    ]  # the kinds of memory that are copied from and to

    def program(self, case: Case, rank: int, size: int) -> Program:
        source, target = self.memory
        buffers = (_buffer("send", source, case), _buffer("recv", target, case))
        return Program(buffers, (Copy(View("send"), View("recv")),))

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks", "copy")

    def bus_factor(self, case: Case, size: int) -> float | None:
        """1: every byte crosses the link of its GPU once."""
        return 1.0

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return _content(case, rank, name, salt) if name.startswith("send") else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return (
            _content(case, rank, name.replace("recv", "send"), salt)
            if name.startswith("recv")
            else None
        )


class CopyH2D(MemoryCopy):
    """Copies from host to device memory."""

    name = "copy_h2d"
    memory = (HOST, DEVICE)


class CopyD2H(MemoryCopy):
    """Copies from device to host memory."""

    name = "copy_d2h"
    memory = (DEVICE, HOST)


class CopyD2D(MemoryCopy):
    """Copies within the memory of one device.

    `busbw` counts each byte once, although memory is read and written (nvbandwidth's local copy
    counts it twice).
    """

    name = "copy_d2d"
    memory = (DEVICE, DEVICE)


class CopyH2DD2H(MemoryCopy):
    """Copies from host to device and from device to host memory at the same time."""

    name = "copy_h2d_d2h"

    def program(self, case: Case, rank: int, size: int) -> Program:
        to_device = (_buffer("send_h2d", HOST, case), _buffer("recv_h2d", DEVICE, case))
        to_host = (_buffer("send_d2h", DEVICE, case), _buffer("recv_d2h", HOST, case))
        copies = (
            Start(Copy(View("send_h2d"), View("recv_h2d")), 0),
            Start(Copy(View("send_d2h"), View("recv_d2h")), 1),
        )
        return Program((*to_device, *to_host), (*copies, WaitAll((0, 1))))

    def shape(self, case: Case, size: int) -> Shape:
        """A sample is both copies."""
        return Shape(2, 2 * case.message_bytes, "max_over_ranks", "copy")

    def bus_factor(self, case: Case, size: int) -> float | None:
        """1/2: algbw is the sum of both directions, and a link's limit holds for each."""
        return 0.5


def _buffer(name: str, memory: MemoryKind, case: Case) -> BufferSpec:
    pinned = memory == HOST and case.staging == "pinned"
    return BufferSpec(name, case.elements, case.dtype, memory=PINNED if pinned else memory)


def _content(case: Case, rank: int, sender: str, salt: int) -> Pattern:
    """The content of a sending buffer; the two directions of one rank differ."""
    return message(2 * rank + sender.endswith("d2h"), salt, case.elements)
