"""`make documents`: the experiments of five published documents, as far as one machine goes, beside
the documents' values; rewrites docs/experiments.md and its figures.

`python tools/documents NAME ...` measures some of the chapters (tools/documents/chapters.py); the
others stay. Virtual hosts need root.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from chapters import CHAPTERS, Chapter, Scene
from pages import rewrite
from planted_rates import set_rate, staircase
from virtual_hosts import Link, VirtualHosts, virtual_hosts

from commbench.report.distributions import read_raw_data
from commbench.report.sections import sections
from commbench.report.summary import Summary, read_results
from commbench.results.load import load_run

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
COMMBENCH = str(Path(sys.executable).parent / "commbench")
LIMIT_S = 400
WIDTH = 150  # of the lines of the documents


def main(names: list[str]) -> None:
    for chapter in CHAPTERS:
        if not names or chapter.name in names:
            print(f"documents: {chapter.name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                text = "".join(written(chapter, Path(folder)))
                rewrite("experiments.md", chapter.name, text)


def written(chapter: Chapter, folder: Path) -> Iterator[str]:
    """The text of a chapter, measured now."""
    yield f"### {chapter.title}\n\n{paragraph(f'{chapter.published} {chapter.finding}')}"
    for scene in chapter.scenes:
        output = measured(scene, folder)
        yield paragraph(scene.says) if scene.says else ""
        hosts = " launcher=ssh launcher.hosts=[...]" if scene.links else ""
        shown = "".join(f"{block}\n" for block in blocks(output, scene))
        yield f"```\n$ commbench {scene.words}{hosts}\n{shown}```\n\n"
        if scene.figure:
            yield drawn(chapter, scene, newest(folder))
    yield paragraph(f"Not here: {chapter.not_here}")


def paragraph(text: str) -> str:
    return f"{textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)}\n\n"


def measured(scene: Scene, folder: Path) -> str:
    """What the command prints."""
    words = scene.words.replace("RESULTS", "results").split()
    is_run = any(word.startswith("experiment=") for word in words)
    command = [COMMBENCH, *words, *(["output=results"] if is_run else [])]
    with ExitStack() as stack:
        climbing: AbstractContextManager[None] = nullcontext()
        if scene.links is not None:
            links = scene.links
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            link = Link(links.rate_mbit)
            # launches of a setting are one case if their hosts have the same names
            hosts = stack.enter_context(virtual_hosts(links.hosts, place / "hosts", link, number=0))
            for host, rate_mbit in links.slow:
                set_rate(hosts.hosts[host], rate_mbit)
            if links.steps:
                set_rate(hosts.hosts[0], links.steps[0][1])
                climbing = staircase(hosts.hosts[0], links.steps[1:])
            command = hosts.hosts[0].command(*command, *started_on(hosts))
        with climbing:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=folder, timeout=LIMIT_S, check=False
            )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{shlex.join(command)}: exit {done.returncode}\n{done.stderr}")
    # as with commbench on PATH
    return done.stdout.replace(f"{folder}/", "").replace(COMMBENCH, "commbench")


def started_on(hosts: VirtualHosts) -> list[str]:
    names = ",".join(host.name for host in hosts.hosts)
    launcher = ["launcher=ssh", f"launcher.hosts=[{names}]", f"launcher.agent={hosts.agent}"]
    return [*launcher, f"interface={hosts.network}", "bind=none"]


def blocks(output: str, scene: Scene) -> Iterator[str]:
    """The blocks of the output that a scene shows, each with an empty line before it."""
    # names of virtual hosts are made up
    text = re.sub(r"node(\d)-\d+-\d+", r"node\1", output.strip())
    for block in re.split(r"\n\n+", text):
        if any(re.search(shown, block, re.MULTILINE) for shown in scene.blocks):
            yield "\n" + "\n".join(line.rstrip() for line in block.splitlines())


def newest(folder: Path) -> list[Path]:
    """The runs of the last command."""
    runs = sorted(path.parent for path in folder.glob("results/*/run.json"))
    sweeps = {run: load_run(run)["sweep_id"] or run for run in runs}
    return [run for run in runs if sweeps[run] == sweeps[runs[-1]]]


def drawn(chapter: Chapter, scene: Scene, runs: list[Path]) -> str:
    """The Markdown of the first figure of a report with this title."""
    results = read_results([str(run) for run in runs])
    summary = Summary(results)
    every = (
        figure
        for section in sections(summary, read_raw_data(results))
        for figure in section.figures()
        if figure.title.startswith(scene.figure)
    )
    figure = next(every)
    FIGURES.mkdir(exist_ok=True)
    file = FIGURES / f"{chapter.name}_{re.sub('[^a-z0-9]+', '_', scene.figure)}.svg"
    file.write_bytes(figure.svg)
    return f"![{figure.title}](figures/{file.name})\n\n*{scene.caption}*\n\n"


if __name__ == "__main__":
    main(sys.argv[1:])
