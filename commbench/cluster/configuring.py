"""The search for slow nodes (`pairs=search`): what a run that it is in must be like."""

from __future__ import annotations

from commbench.config.settings import SEARCH, Configuring, Settings
from commbench.core.errors import ConfigError
from commbench.core.variables import TABLE


def check(settings: Settings) -> None:
    """Raises ConfigError for a run that a search can't be in."""
    if settings.pairs != SEARCH:
        return
    without = [benchmark.name for benchmark in settings.benchmarks if "pair" not in benchmark.axes]
    if without:
        raise ConfigError(
            f"pairs=search times pairs of ranks, which {without[0]} has none of; use"
            " benchmark=[p2p_bandwidth,p2p_latency]"
        )
    if len(settings.layouts) > 1:
        raise ConfigError("pairs=search takes one layout; run it once for each")
    if settings.schedule != "rounds":
        raise ConfigError("pairs=search times many pairs at once; it needs schedule=rounds")
    for each in TABLE:
        is_beside = each.feature is not None and each.applies_to == "all"
        if is_beside and each.null and settings.axes[each.name] != (None,):
            raise ConfigError(f"pairs=search times messages alone; use {each.name}={each.null}")


CONFIGURING = Configuring(check=check)
