"""docs/workloads.md says how to record a job: as printed it runs, and is answered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from places import ROOT

CODE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def test_the_recipe_runs_as_printed_and_its_steps_are_marked(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "workloads.md").read_text().partition("## What to record")[2]
    (language, program), (_, commands) = CODE.findall(section)[:2]
    assert language == "python"
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    answer, saving, *rest = done.stdout.splitlines()
    assert re.match(
        r"a step takes [\d.]+ [mu]?s, with [\d.]+ [mu]?s of exposed communication", answer
    )
    assert re.match(r"\d+% of a step is exposed communication; an infinitely fast network", saving)
    read = "2 of 2 ranks, torch profiler, 5 steps; 10 operations in 1 signature"
    assert any(line.startswith(read) for line in rest)
