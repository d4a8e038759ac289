"""Which backend and layout to use: cases of all runs put together, and the best of them at each size.

Layouts are rivals only where they have the same number of ranks: 1x2 is not better than 1x4 because it has less to do.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.core.units import format_bytes, format_seconds

from .crossover import UNDECIDED, about, best, sentences
from .families import NEEDED, SHARED, Family, families, varying
from .fit import pieces

if TYPE_CHECKING:
    import pandas as pd

MOST_CASES = 20_000  # distinct ones that are compared; the rest is counted
MOST_FITS = 60
FIRST, PLAIN = ("backend", "engine"), ("layout", "dtype", "timing", "reduction")
SHORT = 8  # characters of a size
MATRIX_PAIRS = 4  # from which on the pairs of a case are a picture of their own
PAIRLESS = ["message_bytes", *(name for name in SHARED if name not in ("pair", "env"))]


@dataclass(frozen=True)
class Best:
    """One row of the table of best choices. `alike`: names that can't be told from the best."""

    benchmark: str
    world_size: int
    more: str  # what else tells this table from the others of its benchmark
    size: int
    name: str
    median_s: float
    low_s: float
    high_s: float
    second: str
    ratio: float
    alike: str

    @property
    def decided(self) -> bool:
        return self.name != UNDECIDED


@dataclass(frozen=True)
class Fit:
    """A line of Hockney's model, in words for a table."""

    name: str
    benchmark: str
    sizes: str
    alpha: str
    rate: str
    half: str
    miss: str
    largest_miss: float


@dataclass(frozen=True, eq=False)
class Choice:
    """`cases`: distinct ones that are ok, one pair of each matrix; `left` of them were beyond MOST_CASES."""

    cases: pd.DataFrame
    left: int

    @functools.cached_property
    def families(self) -> list[Family]:
        return families(self.cases)

    @functools.cached_property
    def told(self) -> list[str]:
        """Variables that differ between the families of a benchmark: they belong into the names of all, so that a line
        has one name everywhere."""
        benchmarks = dict.fromkeys(str(one.variables["benchmark"]) for one in self.families)
        apart = [[one.variables for one in self.families if one.variables["benchmark"] == name] for name in benchmarks]
        return list(dict.fromkeys(name for found in apart for name in _told(found)))

    def name(self, variables: Mapping[str, Any], without: Sequence[str] = ()) -> str:
        return name_of(variables, [one for one in self.told if one not in without])

    @functools.cached_property
    def best(self) -> list[Best]:
        """By benchmark, ranks and size; only sizes that at least two have."""
        if not len(self.cases):
            return []
        rows = [
            (world, row)
            for world, cases in self.cases.groupby("world_size", sort=True)
            for row in best(cases, "backend", "layout").to_dict("records")
        ]
        names = dict.fromkeys(row["benchmark"] for _, row in rows)
        more = {one: _told(row for _, row in rows if row["benchmark"] == one) for one in names}
        return [_best(row, world, more[row["benchmark"]]) for world, row in rows]

    def crossings(self) -> list[str]:
        """A sentence for each two backends that were measured at the same sizes, the most telling first."""
        apart = [cases for _, cases in self.cases.groupby("benchmark", sort=True)]  # each tells only what differs in it
        found = [text for cases in apart for text in sentences(cases, "backend")]
        return sorted(found, key=lambda text: (" above " not in text, UNDECIDED in text))

    def fits(self) -> list[Fit]:
        """Of the families with at least three sizes; at most MOST_FITS lines."""
        fitting = [one for one in self.families if one.sizes.size > 2][:MOST_FITS]
        rows = [
            _fit(self.name(family.variables), family, piece)
            for family in fitting
            for piece in pieces(family.sizes, family.median_s)
        ]
        return rows[:MOST_FITS]


def choice_of(cases: pd.DataFrame) -> Choice:
    """Raises CommbenchError where a column is missing."""
    distinct = _distinct(cases[(cases["status"] == "ok") & (cases["median_s"] > 0)])
    single = _one_pair(distinct)
    return Choice(single.head(MOST_CASES), max(len(single) - MOST_CASES, 0))


def _distinct(ok: pd.DataFrame) -> pd.DataFrame:
    """One row a case_id: the median over runs and the widest interval, as in a Family. A soak has its own picture."""
    ends = {
        "ci_low_s": ok[["ci_low_s", "median_s"]].min(axis=1),
        "ci_high_s": ok[["ci_high_s", "median_s"]].max(axis=1),
    }
    ends = {name: values.where(ok[name].notna()) for name, values in ends.items()}
    frame = ok.assign(**ends, runs=1)
    totals = {"median_s": "median", "ci_low_s": "min", "ci_high_s": "max", "runs": "sum"}
    numbers = ("algbw_gb_per_s", "busbw_gb_per_s", "efficiency", "limit_gb_per_s", "p99_s", "overhead_s")
    totals |= dict.fromkeys(numbers, "median")
    kept = (*SHARED, *NEEDED, "world_size", "ranks_per_node", "limit_name", "label")
    totals |= {name: "first" for name in kept if name not in totals}
    return frame.groupby("case_id", sort=False).agg(totals).reset_index()


def _one_pair(cases: pd.DataFrame) -> pd.DataFrame:
    """Of many pairs of one case the first between two ranks; maps do not hash, so env is left to case_id."""
    grouped = cases.groupby(PAIRLESS, dropna=False, sort=False)["pair"]
    many = grouped.transform("nunique") >= MATRIX_PAIRS
    pairs = cases["pair"].astype("string")  # all null they would be numbers
    ends = pairs.str.split(" ").str[0].str.split("-")
    apart = ends.str[0] != ends.str[1]
    first = pairs.where(apart).groupby([cases[name] for name in PAIRLESS], dropna=False).transform("min")
    return cases[~many | (pairs == first).fillna(False)].reset_index(drop=True)


def _told(found: Iterable[Mapping[Any, Any]]) -> list[str]:
    return [name for name in varying(found) if name not in ("benchmark", "env")]


def size_text(size: float) -> str:
    """Exact where that is short: 40 MB, 16 KiB; else about."""
    exact = format_bytes(round(size))
    return exact if len(exact) <= SHORT else about(size)


def name_of(variables: Mapping[str, Any], told: Sequence[str]) -> str:
    """gloo python, then what tells it from the others: a plain word as it is, anything else with its name."""
    order = sorted((name for name in told if name not in FIRST), key=lambda name: name not in PLAIN)
    more = [(name, variables.get(name)) for name in order]
    rest = [str(value) if name in PLAIN else f"{name} {_whole(value)}" for name, value in more if not _null(value)]
    return " ".join([*(str(variables[name]) for name in FIRST), *rest])


def _null(value: Any) -> bool:
    return value is None or value != value


def _whole(value: Any) -> Any:
    """Pandas turns integers beside nulls into floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _best(row: Mapping[Any, Any], world: Any, more: Sequence[str]) -> Best:
    words = ", ".join(f"{name} {_whole(row[name])}" for name in more if not _null(row[name]))
    return Best(
        str(row["benchmark"]), int(world), words, int(row["message_bytes"]), plain_name(str(row["best"])),
        float(row["median_s"]), float(row["ci_low_s"]), float(row["ci_high_s"]), plain_name(str(row["second"])),
        float(row["ratio"]), plain_name(str(row["alike"])),
    )  # fmt: skip


def plain_name(text: str) -> str:
    return text.replace("layout ", "")


def _fit(name: str, family: Family, piece: Any) -> Fit:
    sizes = [size_text(float(family.sizes[place])) for place in (piece.first, piece.last - 1)]
    beta = piece.beta_s_per_byte
    return Fit(
        name, str(family.variables["benchmark"]), " .. ".join(sizes), format_seconds(piece.alpha_s),
        f"{1e-9 / beta:.3g} GB/s" if beta else "not seen", about(piece.alpha_s / beta) if beta else "-",
        f"{100 * piece.largest_residual:.2g} %", piece.largest_residual,
    )  # fmt: skip
