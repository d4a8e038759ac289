"""The traffic of a run: the check of its key, and its columns."""

from __future__ import annotations

from commbench.measure.measuring import Measuring

from .columns import traffic_columns
from .matrices import parse_traffic


def recorded_text(text: str) -> str:
    """With the digest of a file; raises ConfigError."""
    return parse_traffic(text).text


MEASURING = Measuring(values={"traffic": recorded_text}, of_case=traffic_columns)
