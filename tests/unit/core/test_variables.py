"""A variable that is added to the one table appears everywhere, and changes no id of earlier
cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from composed import settings_of
from forked_commands import commands

import commbench
from commbench.cli.plans import planned_here

ADDED = """
    priority: Literal["low", "high"] = variable(
        "traffic class of the messages", default="low", choices=("low", "high"), axis=True
    )
"""
# in a copy of the package that has the variable
CHILD = """
import json, sys
from dataclasses import replace
import commbench
from commbench.config.compose import ConfigComposer
from commbench.config.keys import KEYS
from commbench.cli.plans import planned_here, print_plans
from commbench.analysis.families import families
from commbench.analysis.combined import combine_runs
from commbench.core.texts import name_of
from commbench.results.load import read_case_rows

words = ["backend=simulated", "benchmark=p2p_latency", "layout=1x2", "sizes=[8,64]",
         "timing=fixed", "timing.repetitions=20", "writer=parquet", f"output={sys.argv[1]}"]
with ConfigComposer(None) as composer:
    (plain,) = composer.jobs(words, multirun=False)
    ids = [job.case.case_id for job in planned_here(plain.settings)]
    (both,) = composer.jobs([*words, "priority=[low,high]"], multirun=False)
print_plans([both])
run = commbench.run(*words, "priority=[low,high]")
cases = commbench.load(run)
rows = read_case_rows([run])
compared = commbench.compare(run, run, by="priority=low:high")
choice = combine_runs(rows)
print("ANSWER" + json.dumps({
    "key": KEYS["priority"].choices, "ids": ids, "column": sorted(set(cases["priority"])),
    "rows": len(cases), "compared": compared["priority"].tolist(),
    "distinguishing": choice.distinguishing, "families": len(families(rows)),
    "name": name_of(replace(families(rows)[0].variables, priority="high"), ["priority"]),
}))
"""


@pytest.fixture(scope="module")
def copy_with_priority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with a commbench that has one more variable."""
    folder = tmp_path_factory.mktemp("priority")
    package = folder / "commbench"
    # with its bytecode: to compile all of it again takes seconds
    shutil.copytree(Path(commbench.__file__).parent, package)
    table = package / "core" / "variables.py"
    head, mark, rest = table.read_text().partition("    timing: str = variable(")
    table.write_text(f"{head}{ADDED.lstrip(chr(10))}{mark}{rest}")
    config = package / "conf" / "config.yaml"
    config.write_text(f"{config.read_text()}\npriority: low\n")
    return folder


def python(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(path)},
        cwd=path,
        timeout=120,
        check=False,
    )


def test_one_more_variable_appears_in_keys_titles_tables_ids_comparison_and_report(
    copy_with_priority: Path, tmp_path: Path
) -> None:
    done = python(copy_with_priority, "-c", CHILD, str(tmp_path))
    assert done.returncode == 0, done.stderr
    plan, _, text = done.stdout.partition("ANSWER")
    answer: dict[str, Any] = json.loads(text)
    assert answer["key"] == ["low", "high"]
    assert "priority" in plan
    assert (answer["column"], answer["rows"]) == (["high", "low"], 4)
    assert answer["compared"] == ["low -> high", "low -> high"]
    assert (answer["families"], answer["distinguishing"]) == (2, ["priority"])
    assert answer["name"].endswith("priority high")
    shown, refused = commands(
        copy_with_priority, tmp_path, ["show", str(tmp_path)], ["priority=urgent"]
    )
    assert "priority" in shown.stdout, shown.stderr
    assert "priority=urgent is unknown; allowed: low, high" in refused.stderr


def test_one_more_variable_changes_no_id_of_earlier_cases(
    copy_with_priority: Path, tmp_path: Path
) -> None:
    child = CHILD.partition("    (both,)")[0] + "print(json.dumps(ids))"
    with_priority = json.loads(python(copy_with_priority, "-c", child, str(tmp_path)).stdout)
    words = ("backend=simulated", "benchmark=p2p_latency", "layout=1x2", "sizes=[8,64]")
    quick = ("timing=fixed", "timing.repetitions=20", "writer=parquet", f"output={tmp_path}")
    without = [job.case.case_id for job in planned_here(settings_of(*words, *quick))]
    assert with_priority == without
    assert len(without) == 2
