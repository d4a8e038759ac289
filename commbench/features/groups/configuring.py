"""The key `groups`."""

from __future__ import annotations

from commbench.config.settings import Configuring

from .operations import parse_group_operations


def checked_text(text: str) -> str:
    """Raises ConfigError."""
    return parse_group_operations(text).text


CONFIGURING = Configuring(values={"groups": checked_text})
