"""One JSON object per row in cases.jsonl, for programs that read line by line, also while the run
goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import Unsaved
from commbench.core.states import status_of_run
from commbench.core.variables import MAPS
from commbench.results.columns import SCHEMA_VERSION

from .durable_files import DurableFiles, opening, retry_s

CASES_JSONL = "cases.jsonl"


@dataclass
class Jsonl:
    """A Writer of JSON lines. A later row of a case follows the earlier one: the last line of a
    case_id counts.

    Each line has the columns of cases.parquet and the run's schema_version. pandas.read_json(FILE,
    lines=True, dtype=False) reads it, with times as text; without dtype=False a label of digits
    becomes a number.
    """

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        path = Path(folder) / CASES_JSONL
        with opening(path), path.open("a+b") as file:
            # a full disk or a power failure may have cut off the last line of an earlier start
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        self._files = DurableFiles(Path(folder))

    def case(
        self,
        row: Mapping[str, Any],
        samples: Mapping[str, NDArray[Any]],
        counters: Mapping[str, NDArray[Any]],
    ) -> None:
        maps = {name: dict(row.get(name) or {}) for name in MAPS}
        self._files.append(
            CASES_JSONL, line({"schema_version": SCHEMA_VERSION, **row, **maps}).encode()
        )

    def end(self, run: Mapping[str, Any]) -> None:
        """Raises Unsaved where lines are missing from the file."""
        files = self._files
        if files.retry(retry_s(status_of_run(run))) and not files.dropped and not files.gone():
            return
        count = (
            bytes(files.waiting[CASES_JSONL].content).count(b"\n")
            if CASES_JSONL in files.waiting
            else 0
        )
        refuge = files.rescue({}) if count else None
        rest = f"; {count} lines of it are in {refuge / CASES_JSONL}" if refuge is not None else ""
        why = files.error or "it was there, and has been removed"
        raise Unsaved(f"{files.folder / CASES_JSONL} is not complete ({why}){rest}")


def line(values: Mapping[str, Any]) -> str:
    """One object with its newline; NaN and infinities become null."""
    return json.dumps(_json_value(values), allow_nan=False) + "\n"


def _json_value(value: Any) -> Any:
    """The value in types of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.isoformat() if isinstance(value, datetime) else value
