"""The answers of a report in plain sentences, and what they are derived from."""

from __future__ import annotations

import functools
import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from commbench.analysis.best import CHOSEN_SETTINGS
from commbench.analysis.case_names import case_names, without_shared
from commbench.analysis.combined import CombinedCases, combine_runs
from commbench.analysis.headline import unfinished_sentences
from commbench.analysis.machines import Machine, machines_of, rank_differences, run_groups
from commbench.analysis.pairs.findings import findings, told_once
from commbench.analysis.pairs.judgement import JudgedMatrix, judged_matrices
from commbench.core.annexes import registered
from commbench.core.errors import ConfigError
from commbench.core.texts import some_of
from commbench.core.units import plural
from commbench.core.variables import MAPS, NAMES
from commbench.results.columns import grouped
from commbench.results.flags import UNUSABLE
from commbench.results.intervals import interval_note, interval_of
from commbench.results.load import Paths, newest_rows, read_cases
from commbench.results.row import Row

from .showing import Comparison, Showing, missing_texts

MOST_SENTENCES = 6
NO_REASON = "no reason given"
RIGOROUS = "timing=rigorous"
OF_ONE_RUN = ("timing=", "timing.", "trial=", "seed=", "output=")  # overrides
MOST_PAIR_ROWS = 40_000
MOST_MATRIX_RUNS = 12
LEAST_MATRIX_PAIRS = 3  # a case with more pairs is shown as a matrix
FINDING_TITLES = {"rank": "Slow rank", "slow": "Slow link", "asymmetric": "Link with two speeds"}
_matrix_key = attrgetter(
    "run_id", *(name for name in NAMES if name not in ("pair", "elements", *MAPS))
)
LOST_HEADS = ("status", "cases", "reason", "which")
GROUP_HEADS = ("backend", "library", "layouts", "world", "CUDA IPC", "timing", "runs", "labels")


@dataclass(frozen=True)
class Results:
    """`rows` are the newer of two attempts at a case; `problems` says what was left out, and why.

    `records`: the run.json of each run; `folders`: run_id -> folder, where raw tables can be read.
    """

    rows: Sequence[Row]
    records: tuple[Mapping[str, Any], ...]
    folders: Mapping[str, Path]
    problems: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def are_all_compared(self) -> bool:
        """Whether each run is a launch of a comparison."""
        sides = [each.folder.resolve() for each in self.comparisons]
        runs = [folder.resolve() for folder in self.folders.values()]
        return bool(sides) and all(any(map(run.is_relative_to, sides)) for run in runs)

    @property
    def of_operations(self) -> list[Row]:
        """The cases without those of an overlap, whose times are of more than an operation."""
        return [row for row in self.rows if row.timed is None]


def read_results(paths: Sequence[Paths], benchmark: str | None = None) -> Results:
    """All runs below the folders and all parquet files of cases; raises ConfigError where nothing
    is left."""
    sources, problems = read_cases(paths)
    if not sources:
        raise ConfigError(
            f"nothing to report: {'; '.join(some_of(problems))}; give a folder with"
            " runs or a parquet file of cases"
        )
    every = newest_rows(source.cases for source in sources)
    rows = [row for row in every if benchmark in (None, row.benchmark)]
    if not rows:
        measured = ", ".join(sorted({row.benchmark for row in every}))
        raise ConfigError(f"--benchmark {benchmark} is not in these results; they have: {measured}")
    records = tuple(
        record for source in sources for record in source.records or ({"run_id": source.path.stem},)
    )
    folders = {
        str(source.records[0].get("run_id")): source.path
        for source in sources
        if source.path.is_dir()
    }
    comparisons = list[Comparison]()
    for feature in registered(Showing):
        found, left_out = feature.comparisons(paths, benchmark)
        comparisons += found
        problems += left_out
    return Results(rows, records, folders, tuple(problems), tuple(comparisons))


class Lost(NamedTuple):
    """Cases without a number: how many have this status and reason, and the names of the first
    ones."""

    status: str
    cases: int
    reason: str
    names: str


@dataclass(frozen=True, eq=False)
class Summary:
    """The content of the report, for the terminal and for the page, each part derived once.

    `is_measured_into`: whether a process still measures into the folder of a run.
    """

    results: Results
    is_measured_into: Callable[[Path], bool] = lambda folder: False

    @functools.cached_property
    def unfinished(self) -> list[str]:
        """A sentence for each run that did not come to its end."""
        read = self.results
        return unfinished_sentences(read.rows, read.records, read.folders, self.is_measured_into)

    @functools.cached_property
    def combined(self) -> CombinedCases:
        """All cases but soaks."""
        operations = self.results.of_operations
        # of a comparison the verdicts are the answer, not a choice between its sides
        settings = () if self.results.are_all_compared else CHOSEN_SETTINGS
        return combine_runs([row for row in operations if not row.is_soak], settings)

    @functools.cached_property
    def soaks(self) -> CombinedCases:
        """The soaks but those of many pairs, which are matrices, each over all of its launches."""
        soaks = [row for row in self.results.rows if row.is_soak]
        in_matrices = set(map(id, several_pairs(soaks, LEAST_MATRIX_PAIRS)))
        return combine_runs([row for row in soaks if id(row) not in in_matrices])

    @functools.cached_property
    def matrices(self) -> list[JudgedMatrix]:
        """Of the newest runs, with more than LEAST_MATRIX_PAIRS pairs of a case."""
        many = several_pairs(self.results.rows, LEAST_MATRIX_PAIRS)
        runs = [*dict.fromkeys(row.run_id for row in many)][-MOST_MATRIX_RUNS:]
        return sorted(
            judged_matrices(row for row in many if row.run_id in runs),
            key=lambda matrix: (
                matrix.shared.run_id,
                matrix.shared.benchmark,
                matrix.shared.message_bytes,
            ),
        )

    @functools.cached_property
    def pairs(self) -> Sequence[Row]:
        """The cases among which slow pairs are looked for."""
        return several_pairs(self.results.rows, 1)[:MOST_PAIR_ROWS]

    @functools.cached_property
    def unjudged_pairs(self) -> str:
        """Why links can't be judged: most of their cases say nothing about one; else empty."""
        flags = [UNUSABLE.intersection(row.warnings) for row in self.pairs if row.status == "ok"]
        unusable = [*filter(None, flags)]
        if 2 * len(unusable) <= len(flags):
            return ""
        why = ", ".join(sorted({*itertools.chain(*unusable)}))
        return f"Links can't be judged: {len(unusable)} of {len(flags)} pairs and sizes are {why}."

    @functools.cached_property
    def lost(self) -> list[Lost]:
        return lost_cases(self.results.rows)

    @functools.cached_property
    def machines(self) -> list[Machine]:
        return machines_of(self.results.records)

    @functools.cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Cells below GROUP_HEADS."""
        return run_groups(self.results.records)

    @functools.cached_property
    def differences(self) -> list[tuple[str, str, str]]:
        """Facts in which ranks differ, their values, and the ranks."""
        return rank_differences(self.results.records)

    @functools.cached_property
    def matrix_names(self) -> Mapping[JudgedMatrix, str]:
        """`tcp p2p_bandwidth 1x4 256 KiB`: each with what tells it from the others."""
        rows = without_shared([each.shared for each in self.matrices])
        names = zip(self.matrices, rows, case_names(rows), strict=True)
        return {matrix: f"{row.backend} {name}" for matrix, row, name in names}

    def basis_of_choices(self) -> Iterator[str]:
        """What a choice between backends rests on."""
        yield from self._launches()
        yield from self._without_choice()

    def _launches(self) -> Iterator[str]:
        """Which differences between launches the intervals do not cover."""
        if not self._most_runs or self.results.are_all_compared:
            return
        how = "the command below" if self.again else RIGOROUS
        several = "" if self._is_rigorous else f"; {how} measures several"
        if self._most_runs > 1:
            yield (
                f"Cases with several runs (up to {self._most_runs}) show the median of the runs and"
                f" the widest of their intervals, not one over launches{several}."
            )
        elif max(row.launches for row in self.combined.rows) == 1:
            yield (
                "Each case was measured in one launch, so its interval does not cover differences"
                f" between launches{several}."
            )

    @property
    def _is_rigorous(self) -> bool:
        return all(row.timing == "rigorous" for row in self.combined.rows)

    @functools.cached_property
    def again(self) -> str:
        """The command that measures the runs in several launches; empty where they were."""
        if self._is_rigorous:
            return ""
        return rigorous_command([record.get("overrides") for record in self.results.records])

    def _without_choice(self) -> Iterator[str]:
        if not self._most_runs or self.combined.best or self.results.are_all_compared:
            return
        labels = sorted({row.label or "none" for row in self.combined.rows})
        under = f" under one label (labels: {', '.join(labels)})" if len(labels) > 1 else ""
        no_two = f"no two were measured at the same size{under}"
        yield f"No backends or layouts can be compared: {no_two}."

    def interval_note(self) -> str:
        """What stands behind ±; empty where no case has an interval."""
        return interval_note(filter(None, map(interval_of, self.combined.rows)))

    def left_out(self) -> Iterator[str]:
        """What is not in the figures and answers, and why."""
        yield from self.results.problems
        if apart := len(self.combined.rows) - len(self.combined.shown):
            cases = plural(apart, "case", "cases")
            yield f"{cases} simulated or of one rank, beside measured ones of several"
        yield from missing_texts(self.results.rows)

    def doubts(self, more: Iterable[str] = ()) -> list[str]:
        """What to check before the numbers are used; `more`: what features doubt."""
        lines = list(self._slow_links())
        for status, group in grouped(self.lost, lambda lost: lost.status).items():
            cases = plural(sum(lost.cases for lost in group), "case", "cases")
            lines.append(f"{cases} {status}: {group[0].reason} ({group[0].names}).")
        lines += more
        if self.differences:
            names = list(dict.fromkeys(name for name, _, _ in self.differences))
            lines.append(
                f"Ranks differ in {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}."
            )
        if all(row.status != "ok" for row in self.results.rows):
            lines.append("Nothing was measured.")
        return lines

    @property
    def _most_runs(self) -> int:
        return max((row.runs for row in self.combined.rows), default=0)

    def _slow_links(self) -> Iterator[str]:
        if self.unjudged_pairs:
            yield self.unjudged_pairs
        shown = told_once(findings(self.pairs))
        records = {str(record.get("run_id")): record for record in self.results.records}
        for finding in shown[:MOST_SENTENCES]:
            record = records.get(finding.run_id, {})
            backend = (record.get("backend") or {}).get("name")
            where = f" ({backend} {finding.layout})" if backend and len(self.groups) > 1 else ""
            yield f"{FINDING_TITLES[finding.kind]}{where}: {finding.text_with_host(record)}."
        if len(shown) > MOST_SENTENCES:
            yield (
                f"{len(shown) - MOST_SENTENCES} more slow pairs; commbench.slow_pairs(PATH) lists"
                " all."
            )


def rigorous_command(overrides: Sequence[Any]) -> str:
    """The command that measures runs with these overrides in several launches: one for all where
    they differ in the value of one key; empty where there is none."""
    known = [
        [word for word in words if not word.startswith(OF_ONE_RUN)]
        for words in overrides
        if isinstance(words, list)
    ]
    if not known or len(known) < len(overrides):
        return ""
    words = dict.fromkeys(itertools.chain.from_iterable(known))
    shared = [word for word in words if all(word in own for own in known)]
    if len(shared) == len(words):
        return f"commbench {shlex.join([*shared, RIGOROUS])}"
    varied = (word.partition("=") for word in words if word not in shared)
    keys, _, values = zip(*varied, strict=True)
    is_several = len({*keys}) > 1 or {"experiment", "part"} & {*keys}  # which no sweep varies
    if is_several or any(len(own) != len(shared) + 1 for own in known):
        return ""
    swept = f"{keys[0]}={','.join(values)}"
    return f"commbench -m {shlex.join([swept, *shared, RIGOROUS])}"


def several_pairs(rows: Iterable[Row], least: int) -> list[Row]:
    """The cases of one pair each, where more than `least` pairs were measured alike."""
    single = [row for row in rows if row.pair is not None and " " not in row.pair]
    different = {(_matrix_key(row), row.pair) for row in single}
    pairs = Counter(key for key, _ in different)
    return [row for row in single if pairs[_matrix_key(row)] > least]


def lost_cases(rows: Iterable[Row]) -> list[Lost]:
    """Cases without a number by status and reason, the most serious status and the most frequent
    reason first."""
    without = (row for row in rows if row.status != "ok")
    groups = grouped(without, lambda row: (row.status, row.reason or NO_REASON))
    lost = []
    for (status, reason), group in groups.items():
        places = (f"{row.benchmark} {row.backend} {row.layout}" for row in group[:200])
        names = [*dict.fromkeys(places)]
        text = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        lost.append(Lost(status, len(group), reason, text))
    order = {"invalid": 0, "failed": 1, "skipped": 2}
    return sorted(lost, key=lambda group: (order.get(group.status, 0), -group.cases))
