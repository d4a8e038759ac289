"""What every reader has."""

from __future__ import annotations

from typing import ClassVar, Protocol

from commbench.core.payload import DTYPES, OTHER_NAMES
from commbench.features.other_tools.experiment import Experiment as Experiment
from commbench.features.other_tools.experiment import FileContent, Problems
from commbench.features.other_tools.foreign_readers import Reader
from commbench.features.other_tools.text_lines import Line

ImportReader = Reader[FileContent]
ITEM_BYTES = {
    **{name: kind.itemsize for name, kind in DTYPES.items()},
    "uint32": 4,
    "uint64": 8,
}
TYPES = {  # of NCCL's and MPI's programs -> commbench's
    **OTHER_NAMES,
    "char": "int8",
    "int": "int32",
    "mpi_char": "int8",
    "mpi_int": "int32",
    "mpi_float": "float32",
    "mpi_double": "float64",
}


def dtype_of(name: str | None) -> str | None:
    """commbench's name of an element type; one that it does not know stays."""
    return None if name is None else TYPES.get(name.lower(), name.lower())


class LogParser(Protocol):
    """One format of text, which may stand in a log beside others. `form` is its name in texts."""

    form: ClassVar[str]

    def __init__(self, name: str, problems: Problems) -> None:
        """`name`: of the file."""

    def add(self, line: Line) -> None:
        """The next line, which may be of any program."""

    def end(self) -> list[Experiment]:
        """What was measured, in the order of the log."""
