"""Slow pairs, asymmetric pairs and slow ranks of stored runs."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.core.slow_pairs import Finding, findings

from .load import load

if TYPE_CHECKING:
    import pandas as pd


def slow_pairs(*paths: str | Path) -> pd.DataFrame:
    """One row a finding, each run by itself: kind (rank, slow, asymmetric), run_id, benchmark, message_bytes, pair,
    rank, ratio, text. The rule is in commbench/core/slow_pairs.py. Raises CommbenchError like load."""
    import pandas as pd

    rows = [{str(name): value for name, value in row.items()} for row in load(*paths).to_dict("records")]
    frame = pd.DataFrame([asdict(one) for one in findings(rows)], columns=[field.name for field in fields(Finding)])
    return frame.astype({"rank": "Int64", "message_bytes": "int64", "ratio": "float64"})
