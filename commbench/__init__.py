"""commbench: how fast these machines communicate, over which backend, and whether a change helped.

    import commbench

    folder = commbench.run(backend="gloo", layout="1x2", sizes=[8, "1KiB"])
    cases = commbench.load(folder)                      # a pandas DataFrame, one row per case
    samples = commbench.load(folder, table="samples")   # every repetition of every rank
    commbench.compare("results/before", "results/after")    # a verdict per case
    commbench.slow_pairs("results")                     # links slower than others of their class

Every error that commbench raises on purpose is a CommbenchError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from commbench.analysis.compare import compare
    from commbench.analysis.pairs.findings import slow_pairs
    from commbench.cli.run import run_one as run
    from commbench.core.errors import CommbenchError, ConfigError, WorldBroken
    from commbench.features.crossovers.crossover import crossovers
    from commbench.features.launch_overhead.overheads import launch_overhead
    from commbench.features.ramps.cold_start import cold_start
    from commbench.features.streams.stored import soak_intervals
    from commbench.results.load import load

    __version__: str

_PLACES = {  # public name -> its module, where `run` has the name run_one
    "CommbenchError": "commbench.core.errors",
    "ConfigError": "commbench.core.errors",
    "WorldBroken": "commbench.core.errors",
    "cold_start": "commbench.features.ramps.cold_start",
    "compare": "commbench.analysis.compare",
    "crossovers": "commbench.features.crossovers.crossover",
    "launch_overhead": "commbench.features.launch_overhead.overheads",
    "load": "commbench.results.load",
    "run": "commbench.cli.run",
    "slow_pairs": "commbench.analysis.pairs.findings",
    "soak_intervals": "commbench.features.streams.stored",
}
__all__ = [
    "CommbenchError",
    "ConfigError",
    "WorldBroken",
    "cold_start",
    "compare",
    "crossovers",
    "launch_overhead",
    "load",
    "run",
    "slow_pairs",
    "soak_intervals",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: the command line needs none of them."""
    from commbench.core.annexes import needed_annex

    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("commbench")
        except PackageNotFoundError:  # PYTHONPATH, or a clone that is not installed
            return "source"
    if name not in _PLACES:
        raise AttributeError(
            f"module 'commbench' has no attribute {name!r}; public names: {', '.join(__all__)}"
        )
    module = needed_annex(_PLACES[name], f"commbench.{name}")
    value = getattr(module, "run_one" if name == "run" else name)
    if not isinstance(value, type):
        value = _public(value, name)
        globals()[name] = value
    return value


def _public(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function under its public name. Of an error that is raised on purpose, Python shows the
    user's own line and the message, not the lines of commbench and Hydra between them."""
    import functools

    from commbench.core.errors import CommbenchError

    @functools.wraps(function)
    def called(*args: Any, **keys: Any) -> Any:
        try:
            return function(*args, **keys)
        except CommbenchError as error:
            raise error.with_traceback(None) from None

    called.__module__ = "commbench"
    called.__name__ = called.__qualname__ = name
    return called


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
