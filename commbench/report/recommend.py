"""Which backend and layout to use: the cases of all runs combined, and the best of them at each size.

Layouts are compared only where they have the same number of ranks: 1x2 has less work to do than 1x4.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.core.units import format_bytes, format_seconds

from .crossover import UNDECIDED, about, best, sentences
from .fit import FAMILY_COLUMNS, SHARED, Family, Piece, families, pieces, varying

if TYPE_CHECKING:
    import pandas as pd

MOST_CASES = 20_000  # distinct cases that are compared; the others are only counted
MOST_FITS = 60
FIRST, PLAIN = ("backend", "engine"), ("layout", "dtype", "timing", "reduction")
SHORT = 8  # characters of an exact size
MATRIX_PAIRS = 4  # from this number on the pairs of a case are shown as a matrix
PAIRLESS = ["message_bytes", *(name for name in SHARED if name not in ("pair", "env"))]


@dataclass(frozen=True)
class Best:
    """One row of the table of best choices. `alike`: names that are not distinguishable from the best."""

    benchmark: str
    world_size: int
    more: str  # variables that distinguish this table from the others of its benchmark
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
    """A piece of Hockney's model as text for a table."""

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
    """`cases`: one row per distinct case that is ok, one pair of each matrix; `left`: how many exceeded MOST_CASES."""

    cases: pd.DataFrame
    left: int

    @functools.cached_property
    def families(self) -> list[Family]:
        return families(self.cases)

    @functools.cached_property
    def distinguishing(self) -> list[str]:
        """Variables that differ within some benchmark: part of every name, so that a line has one name everywhere."""
        by_benchmark: dict[str, list[Mapping[str, Any]]] = {}
        for family in self.families:
            by_benchmark.setdefault(str(family.variables["benchmark"]), []).append(family.variables)
        return list(dict.fromkeys(name for variables in by_benchmark.values() for name in _differing(variables)))

    def name(self, variables: Mapping[str, Any], without: Sequence[str] = ()) -> str:
        """The name of a line: backend and engine, then what distinguishes it from the others."""
        return name_of(variables, [one for one in self.distinguishing if one not in without])

    @functools.cached_property
    def best(self) -> list[Best]:
        """By benchmark, ranks and size, for the sizes that at least two have."""
        if not len(self.cases):
            return []
        rows = [
            (world, row)
            for world, cases in self.cases.groupby("world_size", sort=True)
            for row in best(cases, "backend", "layout").to_dict("records")
        ]
        names = dict.fromkeys(row["benchmark"] for _, row in rows)
        more = {one: _differing(row for _, row in rows if row["benchmark"] == one) for one in names}
        return [_best(row, world, more[row["benchmark"]]) for world, row in rows]

    def crossings(self) -> list[str]:
        """One sentence per two backends that were measured at the same sizes, crossovers first."""
        by_benchmark = [cases for _, cases in self.cases.groupby("benchmark", sort=True)]
        texts = [text for cases in by_benchmark for text in sentences(cases, "backend")]
        return sorted(texts, key=lambda text: (" above " not in text, UNDECIDED in text))

    def fits(self) -> list[Fit]:
        """The fits of the families with at least three sizes; at most MOST_FITS."""
        fitting = [one for one in self.families if one.sizes.size > 2][:MOST_FITS]
        rows = [
            _fit(self.name(family.variables), family, piece)
            for family in fitting
            for piece in pieces(family.sizes, family.median_s)
        ]
        return rows[:MOST_FITS]


def choice_of(cases: pd.DataFrame) -> Choice:
    """Combine the cases of all runs; raises CommbenchError where a column is missing."""
    distinct = _distinct(cases[(cases["status"] == "ok") & (cases["median_s"] > 0)])
    single = _one_pair(distinct)
    return Choice(single.head(MOST_CASES), max(len(single) - MOST_CASES, 0))


def _distinct(ok: pd.DataFrame) -> pd.DataFrame:
    """One row per case_id: the median over runs and the widest interval, as in a Family."""
    ends = {
        "ci_low_s": ok[["ci_low_s", "median_s"]].min(axis=1),
        "ci_high_s": ok[["ci_high_s", "median_s"]].max(axis=1),
    }
    ends = {name: values.where(ok[name].notna()) for name, values in ends.items()}
    frame = ok.assign(**ends, runs=1)
    totals = {"median_s": "median", "ci_low_s": "min", "ci_high_s": "max", "runs": "sum"}
    numbers = ("algbw_gb_per_s", "busbw_gb_per_s", "efficiency", "limit_gb_per_s", "p99_s", "overhead_s")
    totals |= dict.fromkeys(numbers, "median")
    kept = (*SHARED, *FAMILY_COLUMNS, "world_size", "ranks_per_node", "limit_name", "label")
    totals |= {name: "first" for name in kept if name not in totals}
    return frame.groupby("case_id", sort=False).agg(totals).reset_index()


def _one_pair(cases: pd.DataFrame) -> pd.DataFrame:
    """Of cases with many pairs the first pair of two ranks. env is not compared: maps can't be hashed."""
    grouped = cases.groupby(PAIRLESS, dropna=False, sort=False)["pair"]
    many = grouped.transform("nunique") >= MATRIX_PAIRS
    pairs = cases["pair"].astype("string")  # all null they would be numbers
    ends = pairs.str.split(" ").str[0].str.split("-")
    apart = ends.str[0] != ends.str[1]
    first = pairs.where(apart).groupby([cases[name] for name in PAIRLESS], dropna=False).transform("min")
    return cases[~many | (pairs == first).fillna(False)].reset_index(drop=True)


def _differing(rows: Iterable[Mapping[Any, Any]]) -> list[str]:
    return [name for name in varying(rows) if name not in ("benchmark", "env")]


def size_text(size: float) -> str:
    """A size in bytes, exact where that is short: 40 MB, 16 KiB; else rounded."""
    exact = format_bytes(round(size))
    return exact if len(exact) <= SHORT else about(size)


def name_of(variables: Mapping[str, Any], distinguishing: Sequence[str]) -> str:
    """Backend and engine, then the distinguishing variables: a plain word alone, any other value with its name."""
    order = sorted((name for name in distinguishing if name not in FIRST), key=lambda name: name not in PLAIN)
    more = [(name, variables.get(name)) for name in order]
    rest = [
        str(value) if name in PLAIN else f"{name} {_as_integer(value)}" for name, value in more if not _is_null(value)
    ]
    return " ".join([*(str(variables[name]) for name in FIRST), *rest])


def _is_null(value: Any) -> bool:
    return value is None or value != value


def _as_integer(value: Any) -> Any:
    """Undo that pandas turns integers beside nulls into floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _best(row: Mapping[Any, Any], world: Any, more: Sequence[str]) -> Best:
    words = ", ".join(f"{name} {_as_integer(row[name])}" for name in more if not _is_null(row[name]))
    return Best(
        str(row["benchmark"]), int(world), words, int(row["message_bytes"]), _plain_name(str(row["best"])),
        float(row["median_s"]), float(row["ci_low_s"]), float(row["ci_high_s"]), _plain_name(str(row["second"])),
        float(row["ratio"]), _plain_name(str(row["alike"])),
    )  # fmt: skip


def _plain_name(text: str) -> str:
    """gloo 1x2 instead of gloo layout 1x2."""
    return text.replace("layout ", "")


def _fit(name: str, family: Family, piece: Piece) -> Fit:
    sizes = [size_text(float(family.sizes[place])) for place in (piece.first, piece.last - 1)]
    rate, half = piece.asymptotic_gb_per_s, piece.n_half_bytes
    return Fit(
        name, str(family.variables["benchmark"]), " .. ".join(sizes), format_seconds(piece.alpha_s),
        "not seen" if rate is None else f"{rate:.3g} GB/s", "-" if half is None else about(half),
        f"{100 * piece.largest_residual:.2g} %", piece.largest_residual,
    )  # fmt: skip
