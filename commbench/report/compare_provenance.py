"""What else differs between two sides of runs: machine, versions, environment, configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.core.fact_scopes import scope_of

MISSING = "missing"
LONGEST = 60  # characters of a value
# Of the run itself, or derived from what is listed anyway; facts of machines are in commbench.core.fact_scopes.
IGNORED = {
    "run_id", "folder", "started_at", "finished_at", "overrides", "sweep_id", "launch", "timing", "layouts", "cases",
    "at_most_s", "memory", "calibration", "reason", "exit_status", "config_dir", "world.ranks", "config.launch",
    "processes", "config.label", "config.output", "config.expect", "config.writers",
}  # fmt: skip
IGNORED_SUFFIXES = ("_namespace", "._target_", ".environment.COMMBENCH_FOLDER")
NODES = "provenance.nodes"


@dataclass(frozen=True)
class Differing:
    """A fact with the values of each side, as texts; `apart` where no value is on both sides."""

    key: str
    base: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def apart(self) -> bool:
        return not set(self.base) & set(self.new)

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.base)} -> {_shown(self.new)}"


def differing(base: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Differing]:
    """Facts of run.json whose values are not the same on both sides; empty where a side has no records."""
    if not base or not new:
        return []
    sides = [[facts(run) for run in runs] for runs in (base, new)]
    found = []
    for key in sorted({key for runs in sides for run in runs for key in run}):
        values = [tuple(sorted({run.get(key, MISSING) for run in runs})) for runs in sides]
        if values[0] != values[1]:
            found.append(Differing(key, *values))
    return found


def facts(run: Mapping[str, Any]) -> dict[str, str]:
    """Dotted name -> text of the value; of several nodes all values."""
    found = {key: _text(value) for key, value in _leaves("", run) if _matters(key) and not key.startswith(NODES)}
    by_key: dict[str, set[str]] = {}
    provenance = run.get("provenance")
    nodes = provenance.get("nodes") if isinstance(provenance, Mapping) else None
    for node in nodes if isinstance(nodes, list) else ():
        for key, value in node.items() if isinstance(node, Mapping) else ():
            by_key.setdefault(key, set()).add(_text(value))
    return found | {key: ", ".join(sorted(values)) for key, values in by_key.items() if _matters(key)}


def one_after_the_other(base: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> bool:
    """All runs of one side came before all of the other, so that a drift of the machine looks like a change."""
    times = [sorted(str(run.get("started_at") or "") for run in runs) for runs in (base, new)]
    if not all(side and side[0] for side in times):
        return False
    return times[0][-1] < times[1][0] or times[1][-1] < times[0][0]


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _leaves(f"{prefix}.{name}" if prefix else str(name), one)
    else:
        yield prefix, value


def _matters(key: str) -> bool:
    parts = key.split(".")
    heads = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return not heads & IGNORED and not key.endswith(IGNORED_SUFFIXES) and scope_of(key).runs == "show"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _shown(values: Sequence[str]) -> str:
    shown = " | ".join(one if len(one) <= LONGEST else f"{one[: LONGEST - 3]}..." for one in values[:3])
    return shown + (f" | ... ({len(values)} values)" if len(values) > 3 else "") or "empty"
