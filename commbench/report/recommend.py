"""Which backend and layout to use: the cases of all runs combined, and the best of them at each
size.

Layouts are compared only where they have the same number of ranks: 1x2 has less work to do than
1x4.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from commbench.core.units import (
    about_bytes,
    format_bytes,
    format_factor,
    format_seconds,
    plural,
    value_text,
)
from commbench.core.variables import MAPS, TABLE
from commbench.results.columns import Row, grouped
from commbench.results.load import row_dicts

from .crossover import NO_VALUE, THIS_RUN, UNDECIDED, best_rows, sentences
from .difference import FEW_LAUNCHES
from .fit import (
    FAMILY_COLUMNS,
    FAMILY_VARIABLES,
    GOOD_FIT,
    answerable,
    families,
    launch_medians,
    pieces,
    varying,
)

if TYPE_CHECKING:
    import pandas as pd

MOST_CASES = 20_000  # distinct cases that are compared; the others are only counted
MOST_FITS = 60
FIRST = ("backend", "engine")
BARE = tuple(each.name for each in TABLE if each.bare)
SHORT = 8  # characters of an exact size
MATRIX_PAIRS = 4  # from this number on the pairs of a case are shown as a matrix
VISIT_COLUMNS = ("visit_medians_s", "visit_segments")
# not in older files
INTERVAL_COLUMNS = ("interval_of", "interval_level", "visits", "visits_s", *VISIT_COLUMNS)
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
class Choice:
    """`cases`: one row per distinct case that is ok, one pair of each matrix; `left`: how many
    exceeded MOST_CASES."""

    cases: pd.DataFrame
    left: int

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
        return list(
            dict.fromkeys(
                name for variables in by_benchmark.values() for name in _distinguishing(variables)
            )
        )

    def name(self, variables: Mapping[str, Any], without: Sequence[str] = ()) -> str:
        """The name of a line: backend and engine, then what distinguishes it from the others."""
        return name_of(variables, [name for name in self.distinguishing if name not in without])

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
    def best(self) -> list[Row]:
        """The best backend and layout by benchmark, ranks and size, for the sizes that at least two
        have.

        The rows of crossover.best with `world_size` and `more`, the variables that distinguish rows
        of a benchmark.
        """
        rows: list[Row] = [
            {**row, "world_size": world}
            for world, cases in answerable(self.cases).groupby("world_size", sort=True)
            for row in best_rows(cases, "backend", "layout")
        ]
        by_benchmark = grouped(rows, lambda row: row["benchmark"])
        differing = {benchmark: _distinguishing(alike) for benchmark, alike in by_benchmark.items()}
        return [
            {
                **row,
                "more": ", ".join(
                    f"{name} {value_text(row[name])}"
                    for name in differing[row["benchmark"]]
                    if row[name] not in NO_VALUE
                ),
            }
            for row in rows
        ]

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


def choice_of(cases: pd.DataFrame) -> Choice:
    """Combine the cases of all runs; raises CommbenchError for a missing column."""
    cases = cases.reindex(
        columns=list(dict.fromkeys([*cases.columns, *FAMILY_VARIABLES, *INTERVAL_COLUMNS]))
    )
    distinct = _over_runs(cases[(cases["status"] == "ok") & (cases["median_s"] > 0)])
    # of cases with many pairs the first pair of two ranks; maps are not compared: they can't be
    # hashed
    many = (
        distinct.groupby(PAIRLESS, dropna=False, sort=False)["pair"].transform("nunique")
        >= MATRIX_PAIRS
    )
    pairs = distinct["pair"].astype("string")  # all null they would be numbers
    ends = pairs.str.split(" ").str[0].str.split("-")
    apart = pairs.where(ends.str[0] != ends.str[1])
    first = apart.groupby([distinct[name] for name in PAIRLESS], dropna=False).transform("min")
    single = distinct[~many | (pairs == first).fillna(False)].reset_index(drop=True)
    return Choice(single.head(MOST_CASES), max(len(single) - MOST_CASES, 0))


def _over_runs(ok: pd.DataFrame) -> pd.DataFrame:
    """One row per case_id, library, label and hosts: the median over runs and the widest interval,
    as in a Family.

    It has the columns named in `totals` and `kept`, and no others. `medians` has that of each
    launch; run_id is null where there are several runs. An older case_id has no library in it.
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
        interval_level=ok["interval_level"].astype(float),
    )
    totals: dict[str, Any] = {
        "median_s": "median",
        "ci_low_s": "min",
        "ci_high_s": "max",
        "runs": "sum",
    }
    totals |= {"medians": lambda of_runs: list(itertools.chain(*of_runs)), "interval_level": "min"}
    totals |= dict.fromkeys(
        ("algbw_gb_per_s", "busbw_gb_per_s", "efficiency", "limit_gb_per_s", "p99_s"), "median"
    )
    kept = (
        *FAMILY_VARIABLES,
        *FAMILY_COLUMNS,
        "world_size",
        "ranks_per_node",
        "limit_name",
        "run_id",
        "interval_of",
        "visits",
        "visits_s",
        "warnings",
    )
    one_each = ["case_id", "library", "label", "hosts"]
    totals |= {
        name: "first"
        for name in kept
        if name in frame and name not in totals and name not in one_each
    }
    grouped = frame.groupby(one_each, sort=False, dropna=False)
    distinct = grouped.agg(totals).reset_index()
    return distinct.assign(
        run_id=distinct["run_id"].where(distinct["runs"] == 1),
        launches=distinct["medians"].map(len).astype(int),
    )


def best_text(row: Row) -> str:
    """The fastest of a row of Choice.best with its lead, or why none is named."""
    launches = row["launches"]
    factor = format_factor(row["ratio"])
    if row["best"] == UNDECIDED:
        named = zip(row["alike"], row["alike_s"], strict=True)
        times = " and ".join(f"{name} ({format_seconds(time_s)})" for name, time_s in named)
        over = plural(launches, "launch", "launches")
        basis = f"with {over}, too few to be sure" if launches < FEW_LAUNCHES else f"over {over}"
        return f"{times} are {UNDECIDED} {basis}"
    time = f"{format_seconds(row['median_s'])} ({interval_text(row['ci_low_s'], row['ci_high_s'])})"
    if launches < FEW_LAUNCHES:
        return (
            f"{row['best']} was fastest {THIS_RUN}, {time}; {row['second']} took {factor} as long"
        )
    return f"{row['best']} is fastest, {time}; {row['second']} takes {factor} as long"


def _distinguishing(rows: Iterable[Row]) -> list[str]:
    return [name for name in varying(rows) if name not in ("benchmark", "env")]


def size_text(size: float) -> str:
    """A size in bytes, exact where that is short: 40 MB, 16 KiB; else rounded."""
    exact = format_bytes(round(size))
    return exact if len(exact) <= SHORT else about_bytes(size)


def interval_text(
    low: float | None, high: float | None, end_text: Callable[[float], str] = format_seconds
) -> str:
    """Both ends of an interval, by default of seconds, or `no interval` for null or NaN."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "no interval"
    return f"{end_text(low)} .. {end_text(high)}"


def name_of(
    variables: Mapping[str, Any], distinguishing: Sequence[str], first: Sequence[str] = FIRST
) -> str:
    """The values of `first`, then those of `distinguishing`, with the name of the variable unless
    it is in BARE."""
    order = sorted(
        (name for name in distinguishing if name not in FIRST), key=lambda name: name not in BARE
    )
    texts = {
        name: value_text(variables[name]) for name in order if variables.get(name) not in NO_VALUE
    }
    more = [text if name in BARE else f"{name} {text}" for name, text in texts.items()]
    return " ".join([*(str(variables[name]) for name in first), *more])
