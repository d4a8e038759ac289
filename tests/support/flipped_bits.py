"""Parquet files with one bit flipped, as a disk or a cable leaves them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from commbench.core.errors import CommbenchError
from commbench.results.table_files import read_table

FLIPS = 300


def flipped(content: bytes, flips: int = FLIPS) -> Iterator[bytes]:
    """The content with another bit flipped each time."""
    positions = random.Random(0)
    for _ in range(flips):
        bit = positions.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def read_as_other(file: Path, table: str) -> int:
    """In how many of them other rows are read without an error."""
    content = file.read_bytes()
    rows = read_table(file, table)
    others = 0
    try:
        for damaged in flipped(content):
            file.write_bytes(damaged)
            with suppress(CommbenchError):
                others += not read_table(file, table).equals(rows)
    finally:
        file.write_bytes(content)
    return others
