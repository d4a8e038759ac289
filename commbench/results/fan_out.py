"""All writers of a run as one: each gets everything, whatever happens to the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from commbench.core.errors import Unsaved
from commbench.core.extras import is_installed
from commbench.core.states import status_of_run
from commbench.core.terminal import print_error
from commbench.results.run_folder import RECORD, write_json

from .jsonl import Jsonl, JsonStore, is_json
from .parquet import Parquet
from .writer import Entry, Writer


class FanOut:
    """Passes everything to all writers. If one fails, its own output is lost and the exit status is
    at least 3.

    `begun` are the writers that must be ended. With `names_folder` a line on stderr says where the
    results are.
    """

    def __init__(self, writers: Sequence[Writer], names_folder: bool = False) -> None:
        self._writers = writers
        self._names_folder = names_folder
        self.begun: list[Writer] = []
        self._unsaved: dict[str, None] = {}  # lines, each once

    @classmethod
    def storing(cls, writers: Sequence[Writer]) -> FanOut:
        """Adds parquet and run.json to formats for other programs (osu, jsonl), so that such a run
        can be shown, reported and resumed; with the console alone nothing is stored. Without
        pyarrow all is stored as JSON lines."""
        prints = [getattr(writer, "is_console", False) for writer in writers]
        if all(prints):
            return cls(writers)
        names_folder = not any(prints) and not any(isinstance(each, Parquet) for each in writers)
        others = [writer for writer in writers if not isinstance(writer, Parquet)]
        stored = [Parquet(), *others] if is_installed("pyarrow") else _in_json(writers)
        return cls(stored, names_folder)

    def begin(self, run: Mapping[str, Any]) -> None:
        """Raises WorldBroken or OSError."""
        is_parquet = any(isinstance(writer, Parquet) for writer in self._writers)
        if is_parquet and is_json(Path(run["folder"])):  # an earlier start had no pyarrow
            self._writers = _in_json(self._writers)
        for writer in self._writers:
            writer.begin(run, run["folder"])
            self.begun.append(writer)

    def cases(self, entries: Sequence[Entry]) -> None:
        for writer in self._writers if entries else ():
            self._guarded(partial(writer.cases, entries))

    def end(self, run: dict[str, Any]) -> None:
        """End the writers, and report on stderr what could not be saved."""
        # results first: a launcher that can't print a table kills its ranks. After a signal the
        # table is first: there may be no time to merge the samples
        interrupted = status_of_run(run) == "interrupted"
        for writer in reversed(self.begun) if interrupted else self.begun:
            self._guarded(partial(writer.end, run))
        if self.begun and self._names_folder:
            print(f"results: {run['folder']}", file=sys.stderr, flush=True)
        if not self._unsaved:
            return
        run["exit_status"] = max(run["exit_status"], Unsaved.exit_status)
        record = Path(run["folder"]) / RECORD
        with suppress(OSError):
            if record.exists():  # written before another writer failed
                write_json(record, run)
        for line in self._unsaved:  # after all writers have ended
            print_error(line)
        self._unsaved.clear()

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (Unsaved, OSError) as error:
            self._unsaved[str(error)] = None


def _in_json(writers: Sequence[Writer]) -> list[Writer]:
    """The writers with JsonStore in place of those whose files it writes or replaces."""
    return [JsonStore(), *(each for each in writers if not isinstance(each, Parquet | Jsonl))]
