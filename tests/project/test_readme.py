"""The README tells the truth: its commands run, its links exist, its extension works as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loops import for_each
from places import PACKAGES, ROOT

from commbench.cli.listings import operations_text
from commbench.cli.main import main
from commbench.cluster.watch.command import watch_options


def without_continuations(page: str) -> str:
    """The page, with each command on one line."""
    return re.sub(r" \\\n +", " ", (ROOT / page).read_text())


README = without_continuations("README.md")
CLUSTERS = without_continuations("docs/clusters.md")
CHEAP = (
    "sizes=[8]",
    "timing=fixed",
    "timing.repetitions=6",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
)
BLOCKS = dict(
    re.findall(
        r"```(python|yaml)\n(.*?)```",
        (ROOT / "docs" / "own_benchmark.md").read_text(),
        flags=re.S,
    )
)
READING = re.findall(r"```python\n(.*?)```", README.partition("## Results\n")[2], flags=re.S)[0]
SIMULATED = "commbench backend=simulated "  # in the README with what they print
# hardware: composed and checked
ELSEWHERE = ("backend=nccl", "backend=cuda_copy", "env.UCX_NET_DEVICES=mlx5_0:1")
INLINE = set(re.findall(r"`(commbench [^`\n]*)`", README))
# of results that must exist: test_reading_as_printed
FOLDERS = ("commbench report ", "commbench show ", "commbench export ")
# a quarter of a minute to three minutes on two cores: run with one size and fixed repetitions
EVERY_TIME = "commbench|torchrun .*"
SLOW = "mpirun .*|commbench benchmark=all .*|commbench ab .*|.* writer=osu .*"
# what installs, what measures nothing, and what reads a file
NOT_HERE = ("make bench", "commbench doctor", "commbench import ")
OF_CLUSTERS = ("srun -N 64 ", "commbench accept ", "commbench watch ")


def commands(page: str = README) -> list[str]:
    """The command lines of all blocks without a language, without their comments."""
    lines = [
        line
        for block in re.findall(r"^```\n(.*?)^```", page, flags=re.S | re.M)
        for line in block.splitlines()
    ]
    starts = ("commbench", "torchrun ", "mpirun ", "srun ", "make ")
    return [
        line.split("   #")[0].split("  #")[0].strip() for line in lines if line.startswith(starts)
    ]


(GATE,) = (line for line in commands() if "--fail-on" in line)
NOT_MEASURING = (SIMULATED, *FOLDERS, *NOT_HERE, *OF_CLUSTERS, GATE)
MEASURING = [line for line in commands() if not line.startswith(NOT_MEASURING)]
FOR_HARDWARE = [line for line in MEASURING if any(word in line for word in ELSEWHERE)]
RUN_HERE = [line for line in MEASURING if line not in FOR_HARDWARE]
SHORTENED = [line for line in RUN_HERE if re.fullmatch(f"{EVERY_TIME}|{SLOW}", line)]


def check_command(run: Any, command: str) -> None:
    ends = {
        "plan=true": "nothing was started",
        "writer=osu": "# measured by commbench",
        " ab ": " runs: ",
    }
    printed = next((text for word, text in ends.items() if word in command), "results: ")
    assert printed in run.stdout, run.explain()


@pytest.mark.long
@pytest.mark.parametrize("command", [line for line in RUN_HERE if line not in SHORTENED])
def test_commands_run_as_they_stand(world: Callable[..., Any], command: str) -> None:
    check_command(world(*shlex.split(command)), command)


def marked(line: str) -> Any:
    return pytest.param(line, marks=() if re.fullmatch(EVERY_TIME, line) else pytest.mark.long)


@pytest.mark.parametrize("command", [marked(line) for line in SHORTENED])
def test_slow_commands_run_with_one_size(world: Callable[..., Any], command: str) -> None:
    words = [word for word in shlex.split(command) if not word.startswith(("sizes=", "timing="))]
    fewer = ("--launches", "2") if "--launches" in words else ()
    check_command(world(*words, *CHEAP, *fewer), command)


SLOWER_BY_30_PERCENT = (
    "backend.model.latency_s=2.6e-6",
    "backend.model.call_s=1.3e-7",
    "backend.model.bandwidth_gb_per_s=7.69",
)


@pytest.mark.long
@pytest.mark.parametrize(("changed", "status"), [((), 0), (SLOWER_BY_30_PERCENT, 1)])
def test_the_gate_passes_what_is_alike_and_stops_what_is_slower_by_30_percent(
    world: Callable[..., Any], changed: tuple[str, ...], status: int
) -> None:
    """Its line, with a noisy simulated world in place of the library."""
    simulated = "backend=simulated backend.model.noise=0.03 'backend.seed=${trial}'"
    new = " ".join(["'backend.seed=7${trial}'", *changed])
    gate = GATE.replace("backend=mpi", simulated).replace("env.LD_LIBRARY_PATH=/opt/new/lib", new)
    run = world(*shlex.split(gate), status=status)
    verdict = "4 of 4 cases SLOWER" if changed else "4 of 4 cases SAME"
    assert verdict in run.stdout, run.explain()


def test_commands_for_clusters_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    locate, accept, watch = (
        shlex.split(line) for line in commands() if line.startswith(OF_CLUSTERS)
    )
    assert locate[-2:] == ["commbench", "locate"]
    assert watch_options(watch[2:]).every_s == 6 * 3600
    assert main(accept[1:]) == 2
    assert "results/today" in capsys.readouterr().err, "only the results are missing"


@pytest.mark.parametrize("command", FOR_HARDWARE)
def test_commands_for_other_hardware_are_planned(world: Callable[..., Any], command: str) -> None:
    words = shlex.split(command)
    # without its launcher
    run = world(*words[words.index("commbench") :], "plan=true", status=None)
    assert "nothing was started" in run.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "command"),
    [
        (page, line)
        for page in (README, CLUSTERS)
        for line in commands(page)
        if line.startswith(SIMULATED)
    ],
)
def test_illustrations_are_what_the_simulated_world_prints(
    world: Callable[..., Any], page: str, command: str
) -> None:
    run = world(*shlex.split(command))
    printed = page.partition(command)[2].split("```")[2].strip("\n").splitlines()
    assert len(printed) > 3
    shown = " ".join(run.stdout.split())
    # n depends on the machine
    numbers = [" ".join(line.split()[: None if "  n" in line else -1]) for line in printed]
    assert [line for line in numbers if line not in shown] == []


@pytest.mark.long
def test_reading_as_printed(
    world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "backend=simulated",
        "benchmark=[p2p_latency,all_reduce]",
        "pairs=all",
        "sizes=[8,64KiB,25MiB]",
        *CHEAP[1:],
    )
    run = world("commbench", *words)
    run.output.rename(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    exec(compile(READING, "README.md", "exec"), {})
    for command in (line for line in commands() if line.startswith(FOLDERS)):
        assert main(shlex.split(command)[1:]) == 0
    finished, *_ = sorted(path.parent for path in Path("results").glob("*/run.json"))
    values = {"RUN": str(finished), "BASE": "results", "NEW": "results"}
    # test_the_printed_benchmark_works..., a job's traces, and two nodes
    not_here = ("--config-dir", "traces/", "layout=2x1")
    for command in (line for line in INLINE if not any(word in line for word in not_here)):
        words = [values.get(word, word) for word in shlex.split(command)[1:]]
        if len(words) == 1 and not words[0].startswith("-"):  # the text names a command
            with pytest.raises(SystemExit, match="0"):
                main([*words, "--help"])
        else:
            assert main(words) == 0, command
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_table_of_operations_is_what_the_backends_declare() -> None:
    assert operations_text() in (ROOT / "docs" / "backends.md").read_text()


def test_the_picture_is_drawn_from_the_results_beside_the_notebooks(tmp_path: Path) -> None:
    """By `python notebooks/readme_picture.py`. Its texts are compared: a point may move with
    matplotlib's version."""
    drawn = tmp_path / "drawn.svg"
    kept = ROOT / "docs" / "quickstart.svg"
    subprocess.run([sys.executable, ROOT / "notebooks" / "readme_picture.py", drawn], check=True)
    texts = [re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text()) for file in (drawn, kept)]
    assert texts[0] == texts[1] and {"gloo", "mpi", "bandwidth, GB/s"} <= set(texts[1])
    assert kept.stat().st_size < 60_000 and "<script" not in kept.read_text()


def test_every_page_is_in_the_index() -> None:
    linked = re.findall(r"\]\(([\w.]+\.md)\)", (ROOT / "docs" / "README.md").read_text())
    assert sorted(linked) == sorted(
        path.name for path in ROOT.glob("docs/*.md") if path.name != "README.md"
    )


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
    assert set(run.cases.status) == {"ok"}
    assert set(run.cases.pair) == {"0-1", "1-2"}


PAGES = sorted(["README.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))])


@for_each(
    "file",
    sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]),
)
def test_links_exist(file: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / file).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / file).parent / target).exists(), f"{file} links to {target}"


@for_each("file", PAGES)
def test_files_that_are_named_exist(file: str) -> None:
    named = re.findall(
        r"(?<![\w/.-])((?:tests|tools|commbench|replay|deploy|conf|notebooks)/[\w./*-]*[\w*])",
        (ROOT / file).read_text(),
    )
    assert [name for name in named if "NAME" not in name and not list(ROOT.glob(name))] == []


@for_each("file", PAGES)
def test_modules_that_are_named_exist(file: str) -> None:
    """Also by their place in the package or among the tests: `measure/rows.py`,
    `unit/measure/test_rows.py`."""
    named = set(re.findall(r"`([\w*-]+(?:/[\w*-]+)+\.(?:py|yaml))", (ROOT / file).read_text()))
    roots = (ROOT, *PACKAGES, ROOT / "tests")
    absent = {name for name in named if not any(list(root.glob(name)) for root in roots)}
    assert {name for name in absent if not re.search("DIR/|NAME", name)} == set()


@for_each("file", PAGES)
def test_targets_that_are_named_have_a_rule(file: str) -> None:
    """`make` says "Nothing to be done" for a target that is only listed as .PHONY."""
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / file).read_text(), re.MULTILINE))
    assert named <= rules
