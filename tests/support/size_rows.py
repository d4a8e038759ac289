"""Rows of cases.parquet over message size, as crossovers and the best of each size read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sample_cases import case_row

from commbench.core.variables import MAPS
from commbench.results.load import row_dicts
from commbench.results.row import Row, plain_values

OCTAVES = (2 ** np.arange(3, 25)).tolist()


def size_rows(
    times: dict[str, list[float]], sizes: list[int] = OCTAVES, half: float = 0.02, **more: Any
) -> pd.DataFrame:
    """Rows of backends of one run with their seconds for each size, and intervals of -+ half over
    visits."""
    fixed = {"benchmark": "all_reduce", "layout": "1x2", "run_id": "r", "status": "ok"}
    rows = [
        case_row(
            backend=name,
            message_bytes=size,
            median_s=time,
            ci_low_s=time * (1 - half),
            ci_high_s=time * (1 + half),
            case_id=f"{name} {size}",
            **fixed | {"interval_of": "visits"} | more,
        )
        for name, values in times.items()
        for size, time in zip(sizes, values, strict=True)
    ]
    return frame_of_rows(rows)


def frame_of_rows(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows as commbench.load returns them."""
    frame = pd.DataFrame(map(plain_values, rows))
    return frame.assign(**{name: frame[name].map(json.dumps) for name in MAPS})


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame that may lack columns."""
    return [case_row(**{"status": "ok"} | _known(row)) for row in row_dicts(frame)]


def _known(row: dict[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in row.items() if value is not None}
    texts = {name: values[name] for name in MAPS if isinstance(values.get(name), str)}
    return values | {name: json.loads(text) for name, text in texts.items()}
