"""MPI datatypes and counts for our buffers, also beyond the int of MPI-3's calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commbench.dtypes import dtype
from commbench.errors import Unsupported

INT_MAX = 2**31 - 1
NAMES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "int64": "INT64_T",
    "int32": "INT32_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
}


@dataclass(frozen=True)
class Typed:
    count: int
    datatype: Any


def typed(mpi: Any, name: str, count: int, reduced: bool, limit: int = INT_MAX) -> Typed:
    """The typed count of `count` elements; a contiguous type where the count exceeds an int and nothing is reduced.

    16-bit floats have no MPI type: they travel as UINT16_T, which is refused for reductions.
    """
    if reduced and name not in NAMES:
        raise Unsupported(f"MPI reduces no {name}")
    datatype = getattr(mpi, NAMES.get(name, "UINT16_T"))
    if count <= limit:
        return Typed(count, datatype)
    if reduced:
        raise Unsupported(f"{count} elements are more than the 2^31-1 of a reduction without large-count calls")
    return Typed(1, _contiguous(mpi, datatype, count, dtype(name).itemsize, limit))


def _contiguous(mpi: Any, datatype: Any, count: int, itemsize: int, limit: int) -> Any:
    """One element of a type made of `count` old ones: whole chunks and a rest, both counts below the limit."""
    chunk = datatype.Create_contiguous(limit)
    chunks, rest = divmod(count, limit)
    body = chunk.Create_contiguous(chunks)
    if not rest:
        return body.Commit()
    return mpi.Datatype.Create_struct([1, rest], [0, chunks * limit * itemsize], [body, datatype]).Commit()
