"""What MPI takes: datatypes and counts for our buffers, also beyond the int of MPI-3's calls, and its reductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commbench.backends.support import Lacking, in_place
from commbench.core.dtypes import dtype
from commbench.core.errors import Unsupported
from commbench.core.program import Step, View
from commbench.core.protocols import Buffer

INT_MAX = 2**31 - 1
NAMES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "int64": "INT64_T",
    "int32": "INT32_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
}
REDUCTIONS = ("sum", "prod", "min", "max")
LACKING: Lacking = {
    ("reduce_scatter", True): "MPI leaves an in-place result at the front of the buffer, not in the rank's own block",
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


def view_count(buffer: Buffer, view: View) -> int:
    """Elements of a view."""
    return buffer.spec.count - view.offset if view.count is None else view.count


def passes_in_place(step: Step, rank: int) -> bool:
    """Whether this rank passes MPI_IN_PLACE: where the operation has a root, only the root does."""
    return in_place(step) and getattr(step, "root", rank) == rank


def operation(mpi: Any, reduction: str) -> Any:
    """MPI.SUM for "sum"; raises Unsupported for a reduction that MPI does not name."""
    if reduction not in REDUCTIONS:
        raise Unsupported(f"MPI has no reduction {reduction}")
    return getattr(mpi, reduction.upper())


def _contiguous(mpi: Any, datatype: Any, count: int, itemsize: int, limit: int) -> Any:
    """One element of a type made of `count` old ones: whole chunks and a rest, both counts below the limit."""
    chunk = datatype.Create_contiguous(limit)
    chunks, rest = divmod(count, limit)
    body = chunk.Create_contiguous(chunks)
    if not rest:
        return body.Commit()
    return mpi.Datatype.Create_struct([1, rest], [0, chunks * limit * itemsize], [body, datatype]).Commit()
