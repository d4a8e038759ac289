"""What the folders of `commbench ab` say: what was compared, and the verdicts of `commbench compare --paired`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.errors import CommbenchError
from commbench.core.units import format_seconds, plural

from .compare import Rules, compare_sides, variable_text
from .compare_sides import NAMES, parse_by, read_side
from .compare_text import SIZES, caption, comparison_summary, comparison_table, unjoined, verdict_text
from .difference import ALPHA
from .load import Paths, flat_paths, row_dicts
from .recommend import size_text

if TYPE_CHECKING:
    import pandas as pd

RECORD = "ab.json"
SIDES = ("base", "new")


@dataclass(frozen=True, eq=False)
class AbResult:
    """An ab folder: the overrides in which NEW differs from BASE, and the comparison (columns of compare.COLUMNS)."""

    folder: Path
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    rules: Rules
    frame: pd.DataFrame

    def sentence(self) -> str:
        """What was compared."""
        instead = f" instead of {' '.join(self.replaced)}" if self.replaced else ""
        launches = plural(int(self.frame["new_launches"].max()), "launch", "launches")
        return f"{self.folder.name}: NEW is BASE with {' '.join(self.added)}{instead}; {launches} of each side in turn."

    def summary(self) -> str:
        """How many cases are slower, faster, the same or undecided."""
        return f"{comparison_summary(self.frame, self.rules.least)}."

    def table_lines(self) -> list[str]:
        """For a terminal: the table, how to read it, and what is not in it."""
        return [comparison_table(self.frame, self.rules), *caption(self.frame, self.rules), *unjoined(self.frame)]

    def notes(self) -> list[str]:
        """How to read the cells, and what is not in them."""
        return [
            "Times are medians over launches. NEW / BASE above 1 is slower; the interval is of 95 % over launches in "
            f"pairs. Verdict: the whole interval is beyond {100 * self.rules.delta:g} %, or within it (SAME). "
            "p (Holm): the signed-rank test on pairs of launches, corrected for the number of cases; ?: not certain, "
            f"for p is above {ALPHA}.",
            *unjoined(self.frame),
        ]

    def cells(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Headings and rows for the page; variables that all cases share are left out."""
        both = self.frame[self.frame["sides"] == "both"]
        variables = both[[name for name in NAMES if name not in SIZES]].apply(lambda column: column.map(variable_text))
        names = ["benchmark", *(name for name in variables if name != "benchmark" and variables[name].nunique() > 1)]
        texts = variables[names].to_numpy().tolist()
        rows = [(*case, *_numbers(row)) for case, row in zip(texts, row_dicts(both), strict=True)]
        return [*names, "size", "BASE", "NEW", "NEW / BASE", "95 % interval", "verdict", "p (Holm)"], rows


def _numbers(row: Mapping[str, Any]) -> tuple[str, ...]:
    ends = [row["ratio_low"], row["ratio_high"]]
    return (
        size_text(row["message_bytes"]) if row["message_bytes"] else "-",
        format_seconds(row["base_median_s"]),
        format_seconds(row["new_median_s"]),
        "-" if row["ratio"] is None else f"{row['ratio']:.3f} x",
        "-" if None in ends else " .. ".join(f"{end:.3f}" for end in ends),
        verdict_text(row) if row["verdict"] or row["ratio"] is None else "too few launches",
        "-" if row["p_holm"] is None else f"{row['p_holm']:.2g}",
    )


def read_ab_results(paths: Iterable[Paths], benchmark: str | None = None) -> tuple[list[AbResult], list[str]]:
    """All ab folders at or below the paths or directly above a side, and why others are left out.

    With `benchmark` without the other cases, and without the folders that have none of it.
    """
    results, problems = [], []
    for folder in _ab_folders(flat_paths(paths)):
        try:
            result = _ab_result(folder, benchmark)
        except (CommbenchError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            problems.append(f"comparison of {folder}: {type(error).__name__ if not str(error) else error}")
            continue
        if (result.frame["sides"] == "both").any():
            results.append(result)
    return results, problems


def _ab_folders(paths: Sequence[Path]) -> list[Path]:
    below = [file for path in paths if path.is_dir() for file in path.rglob(RECORD)]
    above = [path.absolute().parent / RECORD for path in paths if path.name in SIDES]
    folders = {file.parent.resolve(): file.parent for file in (*below, *above) if file.is_file()}
    return sorted(folders.values(), key=lambda folder: folder.name)


def _ab_result(folder: Path, benchmark: str | None) -> AbResult:
    """Raises CommbenchError for sides that can't be compared, and what a damaged record makes json and dict raise."""
    record = json.loads((folder / RECORD).read_text())
    base_words, new_words = ([str(word) for word in record[side]] for side in SIDES)
    rules = Rules(parse_by(record["by"]), paired=True, seed=int(record["seed"]))
    base, new = (read_side(side.upper(), folder / side) for side in SIDES)
    frame = compare_sides(base, new, rules)
    if benchmark is not None:
        frame = frame[frame["benchmark"] == benchmark]
    added = tuple(word for word in new_words if word not in base_words)
    return AbResult(folder, added, tuple(word for word in base_words if word not in new_words), rules, frame)
