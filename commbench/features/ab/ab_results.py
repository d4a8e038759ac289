"""Folders of `commbench ab`: they record what to compare, and are compared like with `commbench
compare --paired`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from commbench.analysis.compare import Rules, compare_sides
from commbench.analysis.compared_case import ComparedCase
from commbench.analysis.sides import parse_by, read_side
from commbench.core.errors import CommbenchError
from commbench.results.load import Paths, flat_paths
from commbench.results.run_folder import walk
from commbench.stats.thresholds import SMALLEST_CHANGE

AB_FILE = "ab.json"
AB_SIDES = ("base", "new")  # in the folder of `commbench ab`


@dataclass(frozen=True, eq=False)
class AbResult:
    """A folder of `commbench ab`: the overrides in which NEW differs from BASE, and the
    comparison."""

    folder: Path
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    rules: Rules
    cases: tuple[ComparedCase, ...]


def read_ab_results(
    paths: Iterable[Paths], benchmark: str | None = None
) -> tuple[list[AbResult], list[str]]:
    """All ab folders at or below the paths or directly above a side, and why others were left out.

    `benchmark`: only its cases, and only the folders that have some.
    """
    flat = flat_paths(paths)
    below = [
        folder / AB_FILE for path in flat for folder, _, names in walk(path) if AB_FILE in names
    ]
    above = [path.absolute().parent / AB_FILE for path in flat if path.name in AB_SIDES]
    folders = {file.parent.resolve(): file.parent for file in (*below, *above) if file.is_file()}
    results = []
    problems = []
    for folder in sorted(folders.values(), key=lambda folder: folder.name):
        try:
            result = _ab_result(folder, benchmark)
        except (CommbenchError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            problems.append(
                f"comparison of {folder}: {type(error).__name__ if not str(error) else error}"
            )
            continue
        if any(case.sides == "both" for case in result.cases):
            results.append(result)
    return results, problems


def _ab_result(folder: Path, benchmark: str | None) -> AbResult:
    """Raises CommbenchError for sides that can't be compared, and what a damaged record makes json
    and dict raise."""
    record = json.loads((folder / AB_FILE).read_text())
    base, new = (list(map(str, record[side])) for side in AB_SIDES)
    added = tuple(word for word in new if word not in base)
    replaced = tuple(word for word in base if word not in new)
    delta = float(record.get("delta", SMALLEST_CHANGE))  # not in older files
    rules = Rules(parse_by(record["by"]), paired=True, delta=delta, seed=int(record["seed"]))
    base_side = read_side("BASE", folder / "base")
    new_side = read_side("NEW", folder / "new")
    cases = compare_sides(base_side, new_side, rules)
    own = (case for case in cases if benchmark in (None, case.variables.benchmark))
    return AbResult(folder, added, replaced, rules, tuple(own))
