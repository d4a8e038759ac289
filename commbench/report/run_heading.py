"""Above the tables of a run: what was measured, and what made its numbers uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commbench.analysis.case_names import shown_value
from commbench.analysis.effective_settings import settings_texts
from commbench.core.terminal import Terminal, paragraphs
from commbench.core.units import plural, short_pairs
from commbench.core.variables import MODEL_ENGINE, SHOWN, TABLE, is_usual
from commbench.hardware.torch_install import other_torch_text
from commbench.results.flags import binding_text, flag_named, shared_flags
from commbench.results.intervals import interval_note, marks_note
from commbench.results.row import Row

from .quantities import MEDIAN, is_measured
from .showing import disturbances_text

PATHS = ("link", "transport")
CONSTANT = (*(name for name in SHOWN if name != "benchmark"), *PATHS)


def backend_text(run: Mapping[str, Any]) -> str:
    """`nccl (torch 2.9.0 of the venv /opt/venv, NCCL 2.27.5 loaded from torch's folder)`."""
    backend = run["backend"]
    return f"{backend['name']} ({backend.get('loaded') or backend.get('library', '')})"


def heading(
    run: Mapping[str, Any],
    rows: Sequence[Row],
    varying: Sequence[str],
    terminal: Terminal,
    *,
    causes: bool,
) -> list[str]:
    """The title with the variables that do not vary, and with `causes` what is uncertain and
    why."""
    title = terminal.styled(terminal.paragraph(_title(run, rows, varying)), "bold")
    text = paragraphs(_causes(run, rows), terminal) if rows and causes else ""
    return [title, *([text] if text else [])]


def _title(run: Mapping[str, Any], rows: Sequence[Row], varying: Sequence[str]) -> str:
    world = run["world"]
    counts = (("size", "rank", "ranks"), ("nodes", "node", "nodes"))
    known = (plural(world[key], *words) for key, *words in counts if key in world)
    parts = [backend_text(run), *known]
    parts.append(f"timing {run['timing']}")
    for name in CONSTANT:
        values = [getattr(row, name) for row in rows if not is_usual(name, getattr(row, name))]
        if values and name not in varying:
            parts.append(f"{name} {_short_text(name, values[0])}")
    parts += _untried(rows)
    has_processes = any(row.engine != MODEL_ENGINE for row in rows)
    parts += [text] if has_processes and (text := binding_text(run)) else []
    return ", ".join([*parts, *([f"label {run['label']}"] if run["label"] else [])])


def _untried(rows: Sequence[Row]) -> list[str]:
    """What nobody has run on a GPU before, one text or none."""
    on_gpu = [row for row in rows if row.device == "cuda" and is_measured(row)]
    names = [
        each.name
        for each in TABLE
        if any(getattr(row, each.name) in each.untried for row in on_gpu)
    ]
    return [f"not verified on a GPU yet: {', '.join(names)}"] if names else []


def _causes(run: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Above the table: what stands behind ±, what made the numbers uncertain, the flags of all."""
    measured = [row for row in rows if is_measured(row)]
    networks = dict.fromkeys(
        row.reason for row in measured if "fallback" in row.warnings and row.reason
    )
    shared = sorted(
        shared_flags(measured) - {"oversubscribed", *(["fallback"] if networks else [])}
    )
    flags = [f"all cases: {flag_named(name).meaning} ({name})" for name in shared]
    medians = [*filter(None, map(MEDIAN.of, measured))]
    meaning = "; ".join(filter(None, [interval_note(medians), marks_note(medians)]))
    other = run["backend"].get("torch_of_system")
    torch = [] if other is None else [other_torch_text(other)]
    return [
        *filter(None, (meaning, disturbances_text([run], measured))),
        *networks,
        *flags,
        *settings_texts([run], rows),
        *torch,
    ]


def variable_text(row: Row, name: str) -> str:
    """The value in a cell; empty for one that is not shown."""
    value = shown_value(row, name)
    return "" if is_usual(name, value) else _short_text(name, value)


def _short_text(name: str, value: Any) -> str:
    """Many pairs at once are shortened."""
    return short_pairs(value) if name == "pair" else str(value)
