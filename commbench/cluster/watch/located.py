"""Which node has become slower: a search for slow nodes, once a change to slower is told."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from commbench.cluster.baseline.fresh_launches import FreshLaunch, SuiteJob
from commbench.cluster.search.command import with_defaults
from commbench.cluster.search.node_rounds import search_refusal
from commbench.cluster.search.suspect_table import evidence_text
from commbench.cluster.watch.changes import JudgedCase
from commbench.config.compose import ConfigComposer
from commbench.config.settings import Job
from commbench.core.errors import CommbenchError
from commbench.core.layout import Layout
from commbench.core.secrets import masked_override
from commbench.core.terminal import first_line

# of a suite: where it runs and with what, without what it measures
MACHINE_KEYS = ("backend", "launcher", "env", "interface", "bind", "preflight", "allow", "search")


@dataclass(frozen=True)
class Location:
    """`nodes`: the names of the slow ones, empty if there are none; `lines`: what a search says of
    them, and the command that repeats it."""

    nodes: str
    lines: tuple[str, ...]


def located(
    judged: Mapping[str, JudgedCase],
    jobs: Iterable[SuiteJob],
    planted: Iterable[str],
    config_dir: str | None,
    launch: Callable[[Job], FreshLaunch],
) -> Location | None:
    """A search in the largest layout of the cases that are slower since this turn; None without
    such a case, or with too few ranks."""
    slower = {
        key: Layout.parse(each.case.layout)
        for key, each in judged.items()
        if each.is_new and each.verdict == "SLOWER"
    }
    searched = {key: layout for key, layout in slower.items() if search_refusal(layout) is None}
    if not searched:
        return None
    key = max(searched, key=lambda key: searched[key].size)
    job = next(each.job for each in jobs if key in each.cases)
    words = _machine_words(job, searched[key], planted, config_dir)
    again = f"next: commbench locate {shlex.join(map(masked_override, words))}"
    try:
        with ConfigComposer(config_dir) as composer:
            (search,) = composer.jobs(with_defaults(words), multirun=False)
        with redirect_stdout(io.StringIO()):  # the turn says it behind its first line
            runs = launch(search).runs
    except CommbenchError as error:
        return Location("", (f"no search for slow nodes: {first_line(error)}", again))
    records = [record["search"] for record in runs.values() if record.get("search")]
    if not records:
        return Location("", ("the search for slow nodes has not ended", again))
    return Location(", ".join(records[0]["bad"]), (*_search_lines(records[0]), again))


def with_nodes(
    judged: Mapping[str, JudgedCase], location: Location | None
) -> dict[str, JudgedCase]:
    """The cases with the nodes in each change to slower that is new."""
    nodes = "" if location is None else location.nodes
    return {
        key: replace(each, change=replace(each.change, nodes=nodes))
        if each.change is not None and each.is_new and each.verdict == "SLOWER"
        else each
        for key, each in judged.items()
    }


def _machine_words(
    job: Job, layout: Layout, planted: Iterable[str], config_dir: str | None
) -> list[str]:
    """The overrides of a search where the job ran."""
    overrides = [*job.overrides, *planted]
    with ConfigComposer(config_dir) as composer:
        keys = composer.keys_of(overrides)
    words = [
        word
        for word, key in zip(overrides, keys, strict=True)
        if key.partition(".")[0] in MACHINE_KEYS
    ]
    given = [] if "backend" in keys else [f"backend={job.settings.backend.name}"]
    return [*given, *words, f"layout={layout}"]


def _search_lines(search: Mapping[str, Any]) -> Iterator[str]:
    """The answer of a search, with the evidence against slow nodes; if there are none, against the
    first suspect."""
    yield from search["answer"]
    suspects = search["suspects"]
    slower = [suspect for suspect in suspects if suspect["decision"] == "SLOWER"]
    yield from map(evidence_text, slower or suspects[:1])
