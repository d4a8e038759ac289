"""timing=soak in a configuration: which settings go with it."""

from __future__ import annotations

from commbench.config.settings import Configuring, Settings
from commbench.core.errors import ConfigError


def check(settings: Settings) -> None:
    if settings.timing.is_soak and settings.nodes == "each":
        raise ConfigError(
            "nodes=each needs the stamps of all ranks, which a soak does not keep; use another"
            " timing"
        )


CONFIGURING = Configuring(check=check)
