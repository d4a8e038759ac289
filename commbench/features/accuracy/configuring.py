"""payload=rounding in a configuration: which settings go with it."""

from __future__ import annotations

from commbench.config.settings import Configuring

from .rounding import check

CONFIGURING = Configuring(check=check)
