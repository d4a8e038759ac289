"""Where the guidelines are told: at the end of their experiment, and in a verdict on a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from healthy_runs import healthy_run

from commbench.cli.run import run
from commbench.cluster.gate.command import accept


def test_the_guidelines_experiment_ends_with_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["experiment=guidelines", "backend=simulated", "scale=cpu", "sizes=[32,1KiB]"]
    words += ["benchmark=[all_reduce,reduce,broadcast]", f"output={tmp_path}"]
    assert run(words) == 0
    *_, answer = capsys.readouterr().out.split("Performance guidelines\n")
    assert answer.startswith("  * ") and "all_reduce <= reduce + broadcast" in answer


def test_a_violation_fails_without_a_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planted(values: dict[str, Any]) -> dict[str, Any]:
        if (values["benchmark"], values["message_bytes"]) == ("all_reduce", 8):
            values["median_s"] *= 3
        visits = [values["median_s"] * (1 + 0.001 * visit) for visit in range(8)]
        return values | {"visit_medians_s": visits, "visit_launches": [0] * 8}

    planted_run = healthy_run(tmp_path, 1, change=planted)
    assert accept([str(planted_run)]) == 1
    text = capsys.readouterr().out
    assert re.search(r"^the time does not fall with the size: .* FAIL ", text, re.MULTILINE)
