"""The cases of all runs combined, one row each, and what follows from them: names, lines over size,
the best, crossovers, fits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from commbench.core.texts import FIRST, name_of, size_text
from commbench.core.units import about_bytes, format_seconds, value_text
from commbench.core.variables import MAPS
from commbench.results.columns import GOOD_LEVEL, grouped
from commbench.results.load import row_dicts
from commbench.stats.launches import launch_medians

from .best import CHOSEN_SETTINGS, UNDECIDED, Best, best_backends_and_layouts
from .case_names import FAMILY_VARIABLES, SharedItems, label_notes, telling
from .crossover import sentences
from .fit import FAMILY_COLUMNS, GOOD_FIT, answerable, families, pieces

if TYPE_CHECKING:
    import pandas as pd

MOST_CASES = 20_000  # distinct cases that are compared; the others are only counted
MOST_FITS = 60
MATRIX_PAIRS = 4  # from this number on the pairs of a case are shown as a matrix
VISIT_COLUMNS = ("visit_medians_s", "visit_launches")
ONE_CASE = ("case_id", "library", "label", "hosts")


def _all_flags(of_runs: Iterable[Iterable[str] | None]) -> list[str]:
    """The flags that the case has in any of its runs."""
    return sorted({flag for flags in of_runs if isinstance(flags, Iterable) for flag in flags})


# column of cases.parquet -> how several runs of a case are combined; a report knows no others
COMBINED: Mapping[str, Literal["first", "median", "min", "max"] | Callable[[Any], Any]] = {
    **dict.fromkeys((*ONE_CASE, *FAMILY_VARIABLES, *FAMILY_COLUMNS), "first"),
    "world_size": "first",
    "ranks_per_node": "first",
    "run_id": "first",
    "median_s": "median",
    "ci_low_s": "min",
    "ci_high_s": "max",
    "interval_of": "first",
    "interval_level": "min",
    "visits": "first",
    "repetitions": "min",
    "visits_s": "first",
    "p99_s": "median",
    "algbw_gb_per_s": "median",
    "busbw_gb_per_s": "median",
    "message_rate_per_s": "median",
    **dict.fromkeys(
        ("end_gb_per_s", "first_second_gb_per_s", "full_speed_s", "least_gb_per_s", "retransmits"),
        "median",
    ),
    "limit_gb_per_s": "median",
    "limit_name": "first",
    "limit_kind": "first",
    "efficiency": "median",
    "warnings": _all_flags,
}
PAIRLESS = [
    "message_bytes",
    *(name for name in FAMILY_VARIABLES if name not in ("pair", *MAPS)),
]


class Fit(NamedTuple):
    """A piece of Hockney's model as text for a table."""

    benchmark: str
    name: str
    sizes: str
    alpha: str
    rate: str
    half: str
    miss: str


@dataclass(frozen=True, eq=False)
class CombinedCases:
    """`cases`: one row per distinct case that is ok, one pair of each matrix; `whole`: the same
    with the whole of their maps, by which published values find theirs; `left`: how many
    exceeded MOST_CASES; `shared`: what was taken from their maps; `settings`: the variables that
    are chosen as backends are."""

    cases: pd.DataFrame
    whole: pd.DataFrame
    left: int
    shared: SharedItems
    settings: Sequence[str]

    @property
    def notes(self) -> list[str]:
        """What names leave out."""
        return [*self.shared.notes, *label_notes(self.rows)]

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        return row_dicts(self.cases)

    @functools.cached_property
    def shown(self) -> pd.DataFrame:
        """The cases of the figures; simulated ones and those of one rank only if there are no
        others."""
        measured = answerable(self.cases)
        return measured if len(measured) else self.cases

    @functools.cached_property
    def distinguishing(self) -> list[str]:
        """Variables that differ within some benchmark: part of every name, so that a line has one
        name everywhere."""
        variables_of = (family.variables for family in families(self.cases))
        by_benchmark = grouped(variables_of, lambda variables: variables["benchmark"])
        return list(dict.fromkeys(name for own in by_benchmark.values() for name in telling(own)))

    def name(self, variables: Mapping[str, Any], without: Sequence[str] = ()) -> str:
        """The name of a line: backend and engine, then what distinguishes it from the others."""
        told = [name for name in self.distinguishing if name not in without]
        return name_of(self.shared.taken_from(variables), told)

    def lines(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Benchmark -> name without its window -> rows by size; latency first, then other pairs,
        then collectives."""
        rows = row_dicts(self.shown.sort_values("message_bytes", kind="stable"))
        by_benchmark = grouped(rows, lambda row: str(row["benchmark"]))
        order = sorted(
            by_benchmark, key=lambda name: (name != "p2p_latency", not name.startswith("p2p"), name)
        )
        return {
            benchmark: grouped(
                by_benchmark[benchmark], lambda row: self.name(row, without=("window",))
            )
            for benchmark in order
        }

    def short_names(self, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
        """The name of each line -> the same without what all lines share; a single line keeps its
        name."""
        varied = [
            name
            for name in dict.fromkeys((*FIRST, *self.distinguishing))
            if name != "window"
            and len({value_text(rows[0][name] or "") for rows in lines.values()}) > 1
        ]
        first = [name for name in varied if name in FIRST]
        more = [name for name in varied if name not in FIRST]
        if not varied:
            return {line: line for line in lines}
        return {
            line: name_of(rows[0], more, first) or f"no {varied[0]}" for line, rows in lines.items()
        }

    @functools.cached_property
    def best(self) -> list[Best]:
        """The best backend, layout and setting at each size that at least two have."""
        return best_backends_and_layouts(self.cases, self.settings)

    @functools.cached_property
    def crossings(self) -> list[str]:
        """One sentence per two backends that were measured at the same sizes, crossovers first."""
        by_benchmark = [cases for _, cases in self.cases.groupby("benchmark", sort=True)]
        texts = [text for cases in by_benchmark for text in sentences(cases, "backend")]
        return sorted(texts, key=lambda text: (" above " not in text, UNDECIDED in text))

    @functools.cached_property
    def fits(self) -> list[Fit]:
        """The pieces of families with at least three sizes that miss none of them by more than
        GOOD_FIT."""
        fitting = [family for family in families(answerable(self.cases)) if family.sizes.size > 2][
            :MOST_FITS
        ]
        fits: list[Fit] = []
        for family in fitting:
            benchmark = str(family.variables["benchmark"])
            name = self.name(family.variables)
            for piece in pieces(family.sizes, family.median_s):
                if piece.largest_residual <= GOOD_FIT:
                    sizes = " .. ".join(
                        size_text(family.sizes[at]) for at in (piece.first, piece.last - 1)
                    )
                    rate = piece.asymptotic_gb_per_s
                    half = piece.n_half_bytes
                    fits.append(
                        Fit(
                            benchmark,
                            name,
                            sizes,
                            format_seconds(piece.alpha_s),
                            "not seen" if rate is None else f"{rate:.3g} GB/s",
                            "-" if half is None else about_bytes(half),
                            f"{100 * piece.largest_residual:.2g} %",
                        )
                    )
        return fits[:MOST_FITS]


def combine_runs(cases: pd.DataFrame, settings: Sequence[str] = CHOSEN_SETTINGS) -> CombinedCases:
    """Combine the cases of all runs; raises CommbenchError for a missing column. `settings`: see
    CombinedCases."""
    wanted = (*cases.columns, *COMBINED, *VISIT_COLUMNS)
    cases = cases.reindex(columns=list(dict.fromkeys(wanted)))
    whole = _over_runs(cases[(cases["status"] == "ok") & (cases["median_s"] > 0)])
    # of cases with many pairs the first pair of two ranks; maps are not compared: they can't be
    # hashed
    maps = row_dicts(whole[["backend", *MAPS]])
    shared = SharedItems.of(maps)
    reduced = list(map(shared.taken_from, maps))
    distinct = whole.assign(**{name: [row[name] for row in reduced] for name in MAPS})
    many = (
        distinct.groupby(PAIRLESS, dropna=False, sort=False)["pair"].transform("nunique")
        >= MATRIX_PAIRS
    )
    pairs = distinct["pair"].astype("string")  # all null they would be numbers
    ends = pairs.str.split(" ").str[0].str.split("-")
    apart = pairs.where(ends.str[0] != ends.str[1])
    first = apart.groupby([distinct[name] for name in PAIRLESS], dropna=False).transform("min")
    is_shown = ~many | (pairs == first).fillna(False)
    shown = distinct[is_shown].reset_index(drop=True)
    shown_whole = whole[is_shown].reset_index(drop=True)
    left = max(0, len(shown) - MOST_CASES)
    return CombinedCases(
        shown.head(MOST_CASES), shown_whole.head(MOST_CASES), left, shared, settings
    )


def _over_runs(ok: pd.DataFrame) -> pd.DataFrame:
    """One row per ONE_CASE with the columns COMBINED: the median over runs and the widest interval,
    as in a Family.

    Further columns: `runs`, `medians` of each launch, and `launches`, how many those are; run_id is
    null where there are several runs.
    """
    medians: Any = [
        launch_medians(*row) for row in ok[["median_s", *VISIT_COLUMNS]].itertuples(index=False)
    ]
    frame = ok.assign(
        ci_low_s=ok[["ci_low_s", "median_s"]].min(axis=1, skipna=False),
        ci_high_s=ok[["ci_high_s", "median_s"]].max(axis=1, skipna=False),
        runs=1,
        medians=medians,
        label=ok["label"].fillna(""),
        interval_level=ok["interval_level"].astype(float).fillna(GOOD_LEVEL),
    )
    totals: dict[str, Any] = {name: how for name, how in COMBINED.items() if name not in ONE_CASE}
    totals["runs"] = "sum"
    totals["medians"] = lambda of_runs: list(itertools.chain(*of_runs))
    by_case = frame.groupby(list(ONE_CASE), sort=False, dropna=False)
    distinct = by_case.agg(totals).reset_index()
    return distinct.assign(
        run_id=distinct["run_id"].where(distinct["runs"] == 1),
        launches=distinct["medians"].map(len).astype(int),
    )
