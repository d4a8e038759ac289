"""What MPI accepts: datatypes and counts for buffers, also beyond the int of MPI-3's calls, and reductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commbench.backends.support import UnsupportedForms, in_place
from commbench.core.dtypes import dtype
from commbench.core.errors import Unsupported
from commbench.core.program import Step

INT_MAX = 2**31 - 1
MPI_NAMES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "int64": "INT64_T",
    "int32": "INT32_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
}
REDUCTIONS = ("sum", "prod", "min", "max")
UNSUPPORTED_FORMS: UnsupportedForms = {
    ("reduce_scatter", True): "MPI leaves an in-place result at the front of the buffer, not in the rank's own block",
}


@dataclass(frozen=True)
class TypedCount:
    count: int
    datatype: Any


def typed(mpi: Any, dtype_name: str, count: int, reduction: str | None, limit: int = INT_MAX) -> TypedCount:
    """`count` elements as a count and an MPI datatype; a contiguous type where the count exceeds `limit`.

    16-bit floats have no MPI type and travel as UINT16_T. Raises Unsupported for what MPI can't reduce.
    """
    problem = None if reduction is None else reduction_problem(dtype_name, reduction, count, limit)
    if problem is not None:
        raise Unsupported(problem)
    datatype = getattr(mpi, MPI_NAMES.get(dtype_name, "UINT16_T"))
    if count <= limit:
        return TypedCount(count, datatype)
    return TypedCount(1, _contiguous(mpi, datatype, count, dtype(dtype_name).itemsize, limit))


def reduction_problem(dtype_name: str, reduction: str, count: int, limit: int = INT_MAX) -> str | None:
    """Why MPI can't reduce that; None if it can."""
    if dtype_name not in MPI_NAMES:
        return f"MPI cannot reduce {dtype_name}"
    if reduction not in REDUCTIONS:
        return f"MPI has no reduction {reduction}"
    if count > limit:
        return f"{count} elements are more than the 2^31-1 of a reduction without large-count calls"
    return None


def operation(mpi: Any, reduction: str) -> Any:
    """MPI.SUM for "sum"; `typed` has refused what is not in REDUCTIONS."""
    return getattr(mpi, reduction.upper())


def passes_in_place(step: Step, rank: int) -> bool:
    """Whether this rank passes MPI_IN_PLACE: in an operation with a root, only the root does."""
    return in_place(step) and getattr(step, "root", rank) == rank


def _contiguous(mpi: Any, datatype: Any, count: int, itemsize: int, limit: int) -> Any:
    """A type that holds `count` old ones: whole chunks and a rest, with both counts at or below the limit."""
    chunk = datatype.Create_contiguous(limit)
    chunks, rest = divmod(count, limit)
    body = chunk.Create_contiguous(chunks)
    if not rest:
        return body.Commit()
    return mpi.Datatype.Create_struct([1, rest], [0, chunks * limit * itemsize], [body, datatype]).Commit()
