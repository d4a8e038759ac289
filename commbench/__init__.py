"""commbench: how fast do these machines talk, over which backend, and did my change help?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commbench.cli.run import run_one as run
    from commbench.report.cold_start import cold_start as cold_start
    from commbench.report.cold_start import launch_overhead as launch_overhead
    from commbench.report.compare import compare as compare
    from commbench.report.load import load as load
    from commbench.report.slow_pairs import slow_pairs as slow_pairs

__all__ = ["cold_start", "compare", "launch_overhead", "load", "run", "slow_pairs"]
_PLACES = {
    "cold_start": ("commbench.report.cold_start", "cold_start"),
    "compare": ("commbench.report.compare", "compare"),
    "launch_overhead": ("commbench.report.cold_start", "launch_overhead"),
    "load": ("commbench.report.load", "load"),
    "run": ("commbench.cli.run", "run_one"),
    "slow_pairs": ("commbench.report.slow_pairs", "slow_pairs"),
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used: the command line needs none of them."""
    if name not in _PLACES:
        raise AttributeError(f"module 'commbench' has no attribute {name!r}; public names: {', '.join(__all__)}")
    import importlib

    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute)
