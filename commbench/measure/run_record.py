"""run.json, the record of a run: as it begins, and where an earlier start is continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from commbench.config.settings import Settings
from commbench.core.case import World
from commbench.core.secrets import masked_override
from commbench.hardware import machine_facts, topology
from commbench.hardware.machine_facts import RanksByValue
from commbench.hardware.sources import Facts
from commbench.results.columns import SCHEMA_VERSION
from commbench.results.fact_scopes import is_unknown, scope_of
from commbench.runtime.recovery import EarlierStarts, Resume

from .request import Request

OF_RUN = ("run_id", "started_at", "sweep_id", "broken", "broken_reasons")  # of all its starts
OF_START = ("status", "reason", "stacks", "finished_at", "reference")


def run_record(
    settings: Settings,
    request: Request,
    world: World,
    facts: Sequence[Facts],
    differing: Mapping[str, RanksByValue],
) -> dict[str, Any]:
    """run.json, except for what the library reports once it is open."""
    nodes = machine_facts.facts_by_node(facts, [world.node_of(rank) for rank in range(len(facts))])
    gpus = (
        {key: own[key] for key in sorted(own) if key.startswith("gpu.own.")}
        for own in facts
        if settings.ranks_have_gpus
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "running",
        "exit_status": None,
        "started_at": datetime.now(timezone.utc).isoformat(),
        "overrides": list(map(masked_override, request.job.overrides)),
        "sweep_id": request.sweep_id,
        "trial": settings.trial,
        "launches": {"planned": settings.timing.launches, "began": [0], "spent_s": 0.0},
        "label": settings.label,
        "timing": settings.timing.name,
        "world": {
            "size": world.size,
            "nodes": len(world.nodes),
            "ranks": world.nodes,
            "launcher": world.launcher,
        },
        "cuda_ipc": {"asked": settings.cuda_ipc, "effective": None},
        "told_rates_gb_per_s": dict(settings.limit),
        "gpus": [*gpus],
        "wiring": [topology.node_record(node) for node in nodes],
        "topology": facts[0].get(topology.TOPOLOGY_FACT),
        "config": request.job.config,
        "config_dir": request.config_dir,
        "layouts": list(map(str, settings.layouts)),
        "provenance": {"nodes": nodes, "differences": differing},
    }


def change_problem(earlier: EarlierStarts, run: Mapping[str, Any]) -> str | None:
    """The facts that have changed since the run began, so that rows from before and after can't be
    compared."""
    if earlier.resume is not Resume.RETRY:
        return None
    before = earlier.run.get("provenance", {}).get("nodes", [])
    now = run["provenance"]["nodes"]
    lines = [f"  nodes: {len(before)} then, {len(now)} now"] if len(before) != len(now) else []
    for number, (old, new) in enumerate(zip(before, now, strict=False)):
        equal = (key for key in sorted({*old, *new}) if scope_of(key).restarts == "equal")
        known = (key for key in equal if not (is_unknown(key, old) or is_unknown(key, new)))
        lines += [
            f"  node {number}, {key}: {old.get(key)} then, {new.get(key)} now"
            for key in known
            if old.get(key) != new.get(key)
        ]
    if not lines:
        return None
    changes = "\n".join(lines)
    return (
        f"this is not as it was when the run began:\n{changes}\n"
        "accept it with: commbench resume --force"
    )


def continued_record(earlier: EarlierStarts, run: Mapping[str, Any]) -> dict[str, Any]:
    """run.json of a resumed run, whose folder may have been renamed since: with the name and time
    of its first start, and a list of all its starts."""
    before = earlier.run
    last_start = {key: before.get(key) for key in OF_START}
    planned = run["launches"]["planned"]
    launches = {**run["launches"], **before.get("launches", {}), "planned": planned}
    if earlier.resume is Resume.LAUNCH:
        launches["began"] = [*launches["began"], earlier.launch]
    if earlier.resume.by_user:
        launches["spent_s"] = 0.0
    return {
        **run,
        **{key: before[key] for key in OF_RUN if key in before},
        "launches": launches,
        "starts": [*before.get("starts", []), last_start],
    }
