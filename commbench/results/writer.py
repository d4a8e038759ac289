"""What a writer of results is, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from .row import Row

Arrays = Mapping[str, NDArray[Any]]  # the columns of samples or of counters


class Entry(NamedTuple):
    """A row, with what was measured since its last one."""

    row: Row
    samples: Arrays = MappingProxyType({})
    counters: Arrays = MappingProxyType({})


class Writer(Protocol):
    """One output format. Only rank 0 has writers. One that prints for people has `is_console`."""

    def begin(self, run: Mapping[str, Any], folder: str) -> None: ...

    def cases(self, entries: Sequence[Entry]) -> None:
        """Rows, such as those of a round of pairs; a later row of a case replaces an earlier
        one."""

    def end(self, run: Mapping[str, Any]) -> None:
        """The end of a world; further worlds of the run follow if its status is `running`."""
