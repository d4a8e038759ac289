"""What differs between ranks that should be alike, as a table; and hosts whose wall clocks tell different times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commbench.core.ranges import format_ranges

NAMES = {
    "run.digest": "configuration (digest)",
    "gpu.own.name": "GPU",
    "gpu.own.memory_total_bytes": "GPU memory (bytes)",
    "gpu.own.driver_version": "GPU driver",
}
LONGEST = 48  # letters of a value
MOST_HOSTS = 4
SKEW_S = 1.0  # from which on log lines of two hosts can't be put in order


def table(differing: Mapping[str, Mapping[str, Sequence[int]]], facts: Sequence[Mapping[str, Any]]) -> str:
    """A line for each value of each fact, with the ranks and hosts that have it. `facts` are those of all ranks."""
    rows = [("fact", "value", "ranks", "hosts"), *_rows(differing, facts)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def _rows(
    differing: Mapping[str, Mapping[str, Sequence[int]]], facts: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, str]]:
    for key, seen in differing.items():
        name = NAMES.get(key, key)
        for value, ranks in seen.items():
            text = str(value) if len(str(value)) <= LONGEST else f"{str(value)[: LONGEST - 3]}..."
            yield name, text, format_ranges(ranks), _hosts([facts[rank] for rank in ranks])
            name = ""


def _hosts(facts: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(str(one.get("host.hostname", "?")) for one in facts))
    return ", ".join(names[:MOST_HOSTS]) + (f" and {len(names) - MOST_HOSTS} more" if len(names) > MOST_HOSTS else "")


def skew_text(times_s: Sequence[float], facts: Sequence[Mapping[str, Any]]) -> str | None:
    """Where wall clocks that were read at one moment are over a second apart; None where they are not."""
    order = sorted(range(len(times_s)), key=lambda rank: times_s[rank])
    first, last = order[0], order[-1]
    apart = times_s[last] - times_s[first]
    if apart <= SKEW_S:
        return None
    behind, ahead = (facts[rank].get("host.hostname", "?") for rank in (first, last))
    return (
        f"the clock of {ahead} (rank {last}) is {apart:.1f} s ahead of that of {behind} (rank {first}); set them by NTP"
    )
