"""Sentences on soaks: stable, or when they dipped and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commbench.core.texts import span_text
from commbench.core.units import about_duration, plural

from .stability import Stability, Stretch

MOST_NAMED = 3


def stability_sentences(names: Sequence[str], found: Sequence[Stability]) -> Iterator[str]:
    """One for all that are stable, and one for each of the worst others."""
    pairs = list(zip(names, found, strict=True))
    stable = [each for each in found if each.is_stable]
    others = sorted((each for each in pairs if not each[1].is_stable), key=_slowest)
    if len(stable) == 1:
        others = [pair for pair in pairs if pair[1].is_stable] + others
    elif stable:
        lasted = span_text([each.end_s for each in stable], about_duration)
        within = _percent(max(each.within for each in stable))
        yield f"{len(stable)} of {len(found)} soaks over {lasted}: stable, within {within}."
    for name, each in others[:MOST_NAMED]:
        after = f", after a ramp of {about_duration(each.begin_s)}" if each.begin_s else ""
        yield f"{name} over {about_duration(each.end_s)}{after}: {_verdict(each)}."
    if len(others) > MOST_NAMED:
        left = plural(len(others) - MOST_NAMED, "more soak", "more soaks")
        yield f"{left} dipped or varied less."


def _slowest(named: tuple[str, Stability]) -> tuple[float, float]:
    """Sort key: the deepest dip first, then the widest."""
    _, found = named
    return min((each.share for each in found.slower), default=1.0), -found.within


def _verdict(found: Stability) -> str:
    within = f"within {_percent(found.within)}"
    if not found.slower and not found.faster:
        return f"{'' if found.is_stable else 'not '}stable, {within}"
    texts = []
    if found.slower:
        deepest = min(found.slower, key=lambda each: each.share)
        texts.append(_stretches("dipped", found.slower, deepest))
    if found.faster:
        highest = max(found.faster, key=lambda each: each.share)
        texts.append(_stretches("was faster", found.faster, highest))
    return f"{'; '.join(texts)}; else {within}"


def _stretches(what: str, every: Sequence[Stretch], farthest: Stretch) -> str:
    """`dipped 3 times, farthest to 60 % of its usual speed, at 812.0 s for 300 ms`."""
    times = "once, to" if len(every) == 1 else f"{len(every)} times, farthest to"
    share = _percent(farthest.share)
    lasted = about_duration(farthest.end_s - farthest.begin_s)
    return f"{what} {times} {share} of its usual speed, at {farthest.begin_s:,.1f} s for {lasted}"


def _percent(share: float) -> str:
    return f"{100 * share:.{1 if share < 0.1 else 0}f} %"
