"""What differs between the machines of the ranks and should not: facts, and clocks.

`results/fact_scopes.py` says which facts may differ.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commbench.core.terminal import TableColumn, Terminal, table_text
from commbench.core.texts import some_of
from commbench.core.units import format_ranges
from commbench.hardware import network
from commbench.hardware.machine_facts import RanksByValue
from commbench.hardware.sources import Facts
from commbench.results.fact_scopes import scope_of

FACT_TITLES = {
    "run.digest": "configuration (digest)",
    "gpu.own.name": "GPU",
    "gpu.own.memory_total_bytes": "GPU memory (bytes)",
    "gpu.own.driver_version": "GPU driver",
}
LONGEST_VALUE = 48  # characters in the table of differences
MOST_NAMED_HOSTS = 4  # named in one of its lines
CLOCK_SKEW_S = 1.0  # beyond it log lines of two hosts can't be put in order


class RankDifferences(NamedTuple):
    """Why ranks can't be measured together, and a line for each variable whose values differ, but
    name the same network."""

    problem: str | None
    same_networks: list[str]


def rank_differences(
    differing: Mapping[str, RanksByValue], facts: Sequence[Facts], interface: str | None
) -> RankDifferences:
    """What the differing facts mean for the ranks; `facts` has one entry per rank."""
    refused = dict[str, RanksByValue]()
    same_networks = list[str]()
    for key, ranks in differing.items():
        scope = scope_of(key).ranks
        # the user names a network such as 10.0.0.0/24, in which names differ by host
        is_network = scope == "network" and "/" not in (interface or "")
        same_network = same_network_text(key, facts) if is_network else None
        if same_network is not None:
            same_networks.append(same_network)
        elif is_network or scope == "error":
            refused[key] = ranks
    if not refused:
        return RankDifferences(None, same_networks)
    table = difference_table(refused, facts)
    advice = "make them equal, or accept it with preflight=warn"
    return RankDifferences(f"ranks differ:\n{table}\n{advice}", same_networks)


def same_network_text(key: str, facts: Sequence[Facts]) -> str | None:
    """That a variable names the same network of the same rate on every host, although its values
    differ; else None."""
    name = key.removeprefix("environment.")
    behind = {network.networks_behind(name, str(own.get(key, "")), own) for own in facts}
    network_text = behind.pop()
    if behind or network_text is None:
        return None
    return f"{name} differs between hosts, but names the same network on all: {network_text}"


def difference_table(differing: Mapping[str, RanksByValue], facts: Sequence[Facts]) -> str:
    """A line for each value of each fact, with the ranks and hosts that have it."""
    lines = []
    for key, ranks_by_value in differing.items():
        title = FACT_TITLES.get(key, key)
        for value, ranks in ranks_by_value.items():
            is_long = len(value) > LONGEST_VALUE
            text = f"{value[: LONGEST_VALUE - 3]}..." if is_long else value
            hosts = dict.fromkeys(str(facts[rank].get("host.hostname", "?")) for rank in ranks)
            names = ", ".join(some_of([*hosts], MOST_NAMED_HOSTS))
            lines.append((title, text, format_ranges(ranks), names))
            title = ""
    columns = [TableColumn(heading) for heading in ("fact", "value", "ranks", "hosts")]
    return textwrap.indent(table_text(columns, lines, Terminal()), "  ")


def clock_skew_warning(times_s: Sequence[float], facts: Sequence[Facts]) -> str | None:
    """A warning if wall clocks that were read at the same moment are over a second apart."""
    first = times_s.index(min(times_s))
    last = times_s.index(max(times_s))
    apart_s = times_s[last] - times_s[first]
    if apart_s <= CLOCK_SKEW_S:
        return None
    behind, ahead = (facts[rank].get("host.hostname", "?") for rank in (first, last))
    return (
        f"the clock of {ahead} (rank {last}) is {apart_s:.1f} s ahead of that of {behind} (rank"
        f" {first}); set them by NTP"
    )
