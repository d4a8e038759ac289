"""`expect=normal`: whether a run has what others have measured on its kind of machine."""

from __future__ import annotations

from commbench.measure.expectations import ExpectationResult
from commbench.report.summary import Summary, read_results

from .derived import judged_of
from .normal import NO_VALUE, SLOW
from .reference import references


def check_known_values() -> None:
    """Raises ConfigError where the folder of own values can't be used."""
    references()


def verdict_on_normal(folder: str) -> ExpectationResult:
    """Compare a run with the known values of its machine: missed by a case that is more than 1.5
    times slower, or beyond the threshold of a check. Guesses do not count."""
    every = judged_of(Summary(read_results([folder])))
    judged = [each for each in every if each.decides]
    missed = [
        f"expect=normal: {each.case} has {each.measured}, not {each.expected}"
        f" ({each.reference.title}; {each.reference.origin}); {each.causes}"
        for each in judged
        if each.verdict == SLOW
    ]
    nothing = (
        f"expect=normal: {NO_VALUE} and these cases; label=MACHINE names one that was not detected"
    )
    return ExpectationResult(
        len(judged) - len(missed), len(missed), tuple(missed), () if judged else (nothing,)
    )
