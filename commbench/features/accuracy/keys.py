"""The keys of the feature: what payload=rounding can't be combined with."""

from __future__ import annotations

from commbench.config.settings import Settings
from commbench.core.errors import ConfigError

from .exact import SIGNIFICAND_BITS

ADDING = "all_reduce, reduce, reduce_scatter"
REFUSED = "payload=rounding"


def check(settings: Settings) -> None:
    """Raises ConfigError where nothing is added, or not in floating point."""
    unfit = [each.name for each in settings.benchmarks if "payload" not in each.axes]
    if unfit:
        raise ConfigError(
            f"{REFUSED} is for operations that add: {ADDING}; {unfit[0]} adds nothing"
        )
    exact = [name for name in settings.dtypes if name not in SIGNIFICAND_BITS]
    if exact:
        allowed = ", ".join(SIGNIFICAND_BITS)
        raise ConfigError(f"{REFUSED} needs dtype={allowed}; sums of {exact[0]} never round")
    others = [name for name in settings.axes["reduction"] if name != "sum"]
    if others:
        raise ConfigError(f"{REFUSED} needs reduction=sum; {others[0]} is not a sum")
    if settings.nodes == "each" or any(settings.axes["overlap"]):
        kept = "nodes=each" if settings.nodes == "each" else "overlap"
        raise ConfigError(f"{REFUSED} compares results of all ranks alone; leave out {kept}")
