"""The traffic of a run: the check of its key."""

from __future__ import annotations

from commbench.measure.measuring import Measuring

from .matrices import parse_traffic


def recorded_text(text: str) -> str:
    """With the digest of a file; raises ConfigError."""
    return parse_traffic(text).text


MEASURING = Measuring(values={"traffic": recorded_text})
