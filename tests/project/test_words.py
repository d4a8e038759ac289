"""Values that are words have types, so a misspelt one is an error of mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from places import ROOT

# a comparison each, right but for one letter of its word; the others would be refused as well
SNIPPET = """
from commbench.config.settings import Settings
from commbench.core.case import Shape
from commbench.core.program import BufferSpec
from commbench.core.protocols import Backend
from commbench.core.states import case_status, headline_of, interval_of, status_of_run
from commbench.core.variables import Case, Variable
from commbench.hardware.mpi_library import MpiLibrary
from commbench.results.columns import Column, Row
from commbench.results.fact_scopes import FactScope
from commbench.results.slow_pairs import Finding


def compare(
    row: Row,
    case: Case,
    settings: Settings,
    shape: Shape,
    buffer: BufferSpec,
    backend: Backend,
    library: MpiLibrary,
    column: Column,
    scope: FactScope,
    finding: Finding,
    known: Variable,
) -> None:
{lines}
"""
COMPARISONS = {
    "case_status(row)": "failed",
    "status_of_run(row)": "done",
    "interval_of(row)": "visits",
    "headline_of(row)": "initiator",
    "shape.headline": "initiator",
    "case.engine": "python",
    "case.timing_mode": "graph",
    "case.sync": "window",
    "case.device": "cuda",
    "case.schedule": "rounds",
    "case.staging": "pinned",
    "case.cache": "rotate",
    "case.buffers": "shared",
    "case.reduction": "sum",
    "case.cuda_ipc": "off",
    "case.bind": "numa",
    "settings.preflight": "strict",
    "settings.on_error": "stop",
    "settings.sizes_per": "rank",
    "buffer.memory": "pinned",
    "backend.launchers": "none",
    "library.kind": "openmpi",
    "column.kind": "integer",
    "column.role": "identity",
    "known.applies_to": "backend",
    "scope.ranks": "node",
    "scope.restarts": "equal",
    "scope.runs": "show",
    "scope.record": "yes",
    "finding.kind": "rank",
}


def test_mypy_refuses_a_comparison_with_a_misspelt_word(tmp_path: Path) -> None:
    right = [f"{value} == {word!r}" for value, word in COMPARISONS.items()]
    misspelt = [f"{value} == {word + 'x'!r}" for value, word in COMPARISONS.items()]
    lines = "\n".join(f"    {comparison}" for comparison in [*misspelt, *right])
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET.format(lines=lines))
    begin = SNIPPET.split("{lines}")[0].count("\n") + 1
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    refused = {
        int(line.split(":")[1]) for line in done.stdout.splitlines() if "comparison-overlap" in line
    }
    accepted = [text for number, text in enumerate(misspelt, start=begin) if number not in refused]
    assert accepted == [], done.stdout + done.stderr
    assert len(refused) == len(misspelt), "a word of the package is refused"
