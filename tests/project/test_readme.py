"""The README tells the truth: its commands run, its links exist, its extension works as printed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from commbench.cli.doctor import matrix

README = (ROOT / "README.md").read_text()
CHEAP = ("sizes=[8]", "timing=fixed", "timing.repetitions=6", "timing.warmup_repetitions=1", "timing.warmup_s=0")
BLOCKS = dict(re.findall(r"```(python|yaml)\n(.*?)```", README.partition("## Add a benchmark")[2], flags=re.S))


def commands() -> list[str]:
    """Lines of the section Run, without comments."""
    block = re.findall(r"## Run\n\n```\n(.*?)```", README, flags=re.S)[0]
    return [line.split("   #")[0].split("  #")[0].strip() for line in block.splitlines()]


def test_it_is_short_and_opens_with_the_command() -> None:
    assert len(README.splitlines()) <= 200
    assert "make bench" in "\n".join(README.splitlines()[:8])


SHORT = ("commbench", "torchrun --nproc-per-node 2 -m commbench backend=gloo")


@pytest.mark.parametrize(
    "command", [one if one in SHORT else pytest.param(one, marks=pytest.mark.long) for one in commands()]
)
def test_commands_run(world: Callable[..., Any], command: str) -> None:
    words = shlex.split(command)
    if words[0] == "mpirun":
        pytest.skip("mpirun belongs to whichever wheel came last; tests/contracts starts both by their own names")
    if "-m" in words:  # tests/worlds/test_session.py runs a sweep; here every job of this one is composed and checked
        words.append("plan=true")
    plain = [word for word in words if not word.startswith(("sizes=", "timing=quick", "timing=rigorous"))]
    run = world(*plain, *(("sizes=[8]",) if "timing=soak" in words else CHEAP))
    assert run.status == 0, run.explain()
    assert "plan=true" in words or "results: " in run.stdout


def test_the_table_of_operations_is_what_the_backends_declare() -> None:
    assert matrix() in README


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [("backend=gloo",), ("backend=mpi", "engine=[native,python]"), ("backend=simulated",)],
    ids=["gloo", "mpi", "simulated"],
)
def test_the_printed_benchmark_works_everywhere(
    world: Callable[..., Any], tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "halo.py").write_text(BLOCKS["python"])
    (tmp_path / "conf" / "benchmark").mkdir(parents=True)
    (tmp_path / "conf" / "benchmark" / "halo.yaml").write_text(BLOCKS["yaml"])
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    extra = ("--config-dir", str(tmp_path / "conf"), "allow=[halo]", "benchmark=halo", "layout=1x3")
    run = world("commbench", *extra, *words, *CHEAP, env={"PYTHONPATH": path})
    assert run.status == 0, run.explain()
    assert set(run.cases.status) == {"ok"}
    assert set(run.cases.pair) == {"0-1", "1-2"}


@pytest.mark.parametrize(
    "file", sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_exist(file: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / file).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / file).parent / target).exists(), f"{file} links to {target}"


@pytest.mark.parametrize("file", sorted(["README.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]))
def test_files_that_are_named_exist(file: str) -> None:
    named = re.findall(
        r"(?<![\w/.-])((?:tests|tools|commbench|deploy|conf|notebooks)/[\w./*-]*[\w*])", (ROOT / file).read_text()
    )
    assert [name for name in named if not name.endswith("/NAME") and not list(ROOT.glob(name))] == []
