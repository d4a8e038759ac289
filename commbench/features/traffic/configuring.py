"""The key `traffic`."""

from __future__ import annotations

from commbench.config.settings import Configuring

from .matrices import parse_traffic


def recorded_text(text: str) -> str:
    """With the digest of a file; raises ConfigError."""
    return parse_traffic(text).text


CONFIGURING = Configuring(values={"traffic": recorded_text})
