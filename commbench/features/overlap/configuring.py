"""The key `compute`."""

from __future__ import annotations

from commbench.config.settings import Configuring

from .overlapped import compute_time_ns


def checked_time(text: str) -> str:
    """Raises ConfigError."""
    compute_time_ns(text)
    return text


CONFIGURING = Configuring(values={"compute": checked_time})
