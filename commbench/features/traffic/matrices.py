"""Traffic of all_to_all_v: how much each rank sends to each, by the name of a pattern, from a model
of experts, or from a file.

A matrix has a row per sender and a column per receiver. Every rank computes the same one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.benchmarks.all_to_all_v import TrafficMatrix
from commbench.core.errors import ConfigError, Unreadable, Unsupported
from commbench.core.foreign import whole_file
from commbench.core.payload import mixed

from .experts import USUAL, ExpertTraffic

MAX_RANKS = 16384  # of a file
MAX_CELL_BYTES = 2**53
SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}  # as kvbench and UCC read them
CELL = re.compile(r"(\d{1,16})([KMG]?)B?", re.IGNORECASE)
DIGEST = re.compile(r"(?P<path>.+)@(?P<digest>[0-9a-f]{12})", re.DOTALL)


class Traffic(Protocol):
    """`text` is its name in results. `has_bytes`: it says how many bytes each rank sends; else the
    rank that sends most sends as many as the case says."""

    has_bytes: ClassVar[bool]

    @property
    def text(self) -> str: ...

    def matrix(self, ranks: int, elements: int) -> TrafficMatrix:
        """Bytes if `has_bytes`, else elements, of which the rank that sends most sends `elements`.
        Raises Unsupported for a number of ranks that the traffic is not for."""


# ---------------------------------------------------------------- patterns


@dataclass(frozen=True)
class PatternTraffic:
    """Traffic of any number of ranks and any size."""

    has_bytes: ClassVar[bool] = False
    text: str

    def matrix(self, ranks: int, elements: int) -> TrafficMatrix:
        return PATTERNS[self.text](ranks, elements)


def _uniform(ranks: int, elements: int) -> TrafficMatrix:
    """Each rank sends the same to all, itself included, as in all_to_all."""
    order = np.arange(ranks)
    distance = (order - order[:, None] - 1) % ranks  # 0 for the next rank, so its own is the last
    return np.take(_shares(elements, ranks), distance)


def _incast(ranks: int, elements: int) -> TrafficMatrix:
    """All others send to rank 0."""
    matrix = _silence(ranks)
    matrix[1:, 0] = elements
    return matrix


def _outcast(ranks: int, elements: int) -> TrafficMatrix:
    """Rank 0 sends to all others."""
    matrix = _silence(ranks)
    matrix[0, 1:] = _shares(elements, ranks - 1)
    return matrix


def _ring(ranks: int, elements: int) -> TrafficMatrix:
    """Each rank sends to the next one."""
    return _cycle(np.arange(ranks), elements)


def _permutation(ranks: int, elements: int) -> TrafficMatrix:
    """Each rank sends to another one, in a shuffled ring."""
    hashes = mixed(np.arange(1, ranks + 1, dtype=np.uint64))
    return _cycle(np.argsort(hashes), elements)


def _cycle(order: NDArray[Any], elements: int) -> TrafficMatrix:
    """Each rank of the order sends to its successor."""
    matrix = _silence(len(order))
    matrix[order, np.roll(order, -1)] = elements
    return matrix


def _silence(ranks: int) -> TrafficMatrix:
    return np.zeros((ranks, ranks), dtype=np.int64)


def _shares(elements: int, receivers: int) -> TrafficMatrix:
    """Parts that differ by one element at most, the larger ones first."""
    share, rest = divmod(elements, receivers)
    return share + (np.arange(receivers) < rest)


PATTERNS: Mapping[str, Callable[[int, int], TrafficMatrix]] = {
    "uniform": _uniform,
    "incast": _incast,
    "outcast": _outcast,
    "ring": _ring,
    "permutation": _permutation,
}


# ---------------------------------------------------------------- files


@dataclass(frozen=True)
class FileTraffic:
    """A matrix of bytes. The digest in its text is of its numbers, not of how they are written."""

    has_bytes: ClassVar[bool] = True
    text: str
    values: TrafficMatrix = field(repr=False, compare=False)

    def matrix(self, ranks: int, elements: int) -> TrafficMatrix:
        if ranks != len(self.values):
            raise Unsupported(
                f"traffic={self.text} is for {len(self.values)} ranks, the layout has {ranks}"
            )
        return self.values


def _read_file(path: str) -> FileTraffic:
    """Raises ConfigError for a file that is no square matrix of bytes."""
    if "\0" in path or not Path(path).is_file():
        raise ConfigError(
            f"traffic={path!r} is neither a known name nor a file; allowed:"
            f" {', '.join((*PATTERNS, *USUAL))}, or the path of a matrix"
        )
    try:
        lines = whole_file(path).decode("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(
            f"traffic={path} can't be read: {error.strerror}; choose another file"
        ) from error
    except Unreadable as error:
        raise ConfigError(f"traffic={error}") from error
    rows = {number: line.split() for number, line in enumerate(lines, 1) if line.strip()}
    if not 2 <= len(rows) <= MAX_RANKS:
        raise ConfigError(
            f"traffic={path} has {len(rows)} lines; allowed: 2 to {MAX_RANKS}, one per sending rank"
        )
    for number, cells in rows.items():
        if len(cells) != len(rows):
            raise ConfigError(
                f"traffic={path}: line {number} has {len(cells)} numbers of the {len(rows)} lines'"
                " receiving ranks; the matrix must be square"
            )
    parsed = [[_cell_bytes(path, number, cell) for cell in row] for number, row in rows.items()]
    matrix = np.array(parsed, dtype=np.int64)
    if not matrix.any():
        raise ConfigError(f"traffic={path} moves nothing: all its numbers are 0")
    digest = hashlib.sha256(matrix.tobytes()).hexdigest()[:12]
    return FileTraffic(f"{path}@{digest}", matrix)


def _cell_bytes(path: str, line: int, text: str) -> int:
    match = CELL.fullmatch(text)
    cell_bytes = -1 if match is None else int(match[1]) * SUFFIXES[match[2].upper()]
    if not 0 <= cell_bytes <= MAX_CELL_BYTES:
        raise ConfigError(
            f"traffic={path}: line {line} has {text!r}, which is no whole number of bytes up to"
            " 2^53; write e.g. 0, 4096, 4K, 2M or 1G (binary)"
        )
    return cell_bytes


# ---------------------------------------------------------------- by text


def parse_traffic(text: str) -> Traffic:
    """The traffic that a key names; raises ConfigError."""
    head = text.split()[0] if text.strip() else ""
    if text in PATTERNS:
        return PatternTraffic(text)
    if head in USUAL:
        return ExpertTraffic.parse(text)
    return _read_file(text)


@lru_cache(maxsize=64)
def recorded_traffic(text: str) -> Traffic:
    """The traffic of a case, whose text has the digest of a file; raises ConfigError if the file
    has changed since."""
    recorded = DIGEST.fullmatch(text)
    traffic = parse_traffic(text if recorded is None else recorded["path"])
    if traffic.text != text:
        raise ConfigError(f"traffic={text} is now {traffic.text}: the file changed; start again")
    return traffic


def traffic_elements(text: str, ranks: int, elements: int, itemsize: int) -> TrafficMatrix:
    """Elements from each rank to each; raises Unsupported where the traffic does not fit ranks or
    element type."""
    if recorded_traffic(text).has_bytes:
        return _own_elements(text, ranks, itemsize)
    return _divided_elements(text, ranks, elements)


@lru_cache(maxsize=8)  # of thousands of ranks each takes 100 MB
def _divided_elements(text: str, ranks: int, elements: int) -> TrafficMatrix:
    matrix = recorded_traffic(text).matrix(ranks, elements)
    matrix.flags.writeable = False
    return matrix


@lru_cache(maxsize=32)  # a plan asks for each of them with every size
def _own_elements(text: str, ranks: int, itemsize: int) -> TrafficMatrix:
    matrix = recorded_traffic(text).matrix(ranks, 0)
    broken = np.argwhere(matrix % itemsize)
    if len(broken):
        sender, receiver = broken[0]
        raise Unsupported(
            f"traffic={text}: {matrix[sender, receiver]} B from rank {sender} to {receiver} are"
            f" no whole number of elements of {itemsize} B; take dtype=uint8"
        )
    matrix = matrix // itemsize
    matrix.flags.writeable = False
    return matrix
