"""All writers of a run, and what happens where one of them can't write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from commbench.core.errors import Unsaved
from commbench.core.protocols import Writer
from commbench.core.run_folder import write_json

from .console import Console
from .durable_files import warn
from .parquet import Parquet


class FanOut:
    """A writer that fails costs its own output and the exit status; the run continues.

    `begun` are the writers that have to be ended; `names_folder`: a line on stderr says where the results are.
    """

    def __init__(self, writers: Sequence[Writer], names_folder: bool = False) -> None:
        self._writers, self._names_folder = writers, names_folder
        self.begun: list[Writer] = []
        self._unsaved: dict[str, None] = {}  # lines, each once

    @classmethod
    def storing(cls, writers: Sequence[Writer]) -> FanOut:
        """With parquet and run.json beside formats for other programs (osu, jsonl), so that every such run can be
        reported and resumed; the console alone stores nothing."""
        stores = any(isinstance(writer, (Parquet, Console)) for writer in writers)
        return cls(writers) if stores else cls([Parquet(), *writers], names_folder=True)

    def begin(self, run: Mapping[str, Any]) -> None:
        """Raises WorldBroken or OSError: nothing is measured that can't be written."""
        for writer in self._writers:
            writer.begin(run, run["folder"])
            self.begun.append(writer)

    def case(
        self, row: Mapping[str, Any], samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        for writer in self._writers:
            self._guarded(partial(writer.case, row, samples, counters))

    def end(self, run: dict[str, Any]) -> None:
        """Report on stderr what could not be saved; then `exit_status` of the run is at least 3."""
        for writer in self.begun:
            self._guarded(partial(writer.end, run))
        if self.begun and self._names_folder:
            print(f"results: {run['folder']}", file=sys.stderr, flush=True)
        if not self._unsaved:
            return
        run["exit_status"] = max(run["exit_status"], Unsaved.exit_status)
        record = Path(run["folder"]) / "run.json"
        with suppress(OSError):
            if record.exists():  # written before another writer failed
                write_json(record, run)
        for line in self._unsaved:  # after all writers have ended
            warn(line)
        self._unsaved.clear()

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (Unsaved, OSError) as error:
            self._unsaved[str(error)] = None
