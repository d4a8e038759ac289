"""Compare two sides of launches case by case: what each side is, which rows belong together, and
the verdict of each case."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from commbench.core.errors import ConfigError
from commbench.core.terminal import first_line
from commbench.core.units import natural_key, value_text
from commbench.core.variables import (
    BY_NAME,
    MAPS,
    NAMES,
    NO_DTYPE,
    SIZES,
    Options,
    Variables,
    brought_along,
    is_required,
)
from commbench.results.columns import SCHEMA_VERSION, VARIABLES, arrow_schema, case_text, grouped
from commbench.results.load import RUNS, find_runs, newest_rows, plain, read_cases
from commbench.results.row import Measured, Row
from commbench.results.run_folder import publish
from commbench.results.table_files import Damaged, table_of
from commbench.stats import difference
from commbench.stats.difference import ALPHA, NOISE_LAUNCHES
from commbench.stats.interval import Interval
from commbench.stats.launch_groups import launch_groups
from commbench.stats.launches import launch_medians
from commbench.stats.levels import GroupedLaunches, level_test
from commbench.stats.series import Series
from commbench.stats.thresholds import SMALLEST_CHANGE
from commbench.stats.verdict import Comparison, Verdict, adjusted_p, compare_launches, verdict

from .case_names import OF_BACKEND, OF_LABEL, without_shared

Key = tuple[Any, ...]  # the values of the variables, of those that are compared None

if TYPE_CHECKING:
    import pandas as pd

    Source = str | Path | pd.DataFrame

# what was moved: must be equal on both sides
PAYLOAD = ("benchmark", "dtype", *SIZES)
COMPARABLE = (*(name for name in NAMES if name not in PAYLOAD), "label")
NO_VALUES = ("none", "null")  # a backend's options are texts
BYTES_TOLERANCE = 1e-6
MOST_NEAREST = 50  # cases among which the nearest is looked for
COMPARISON_COLUMNS = (
    *NAMES,
    "sides",
    "base_launches",
    "new_launches",
    "base_unmeasured",
    "new_unmeasured",
    "base_median_s",
    "new_median_s",
    "base_gb_per_s",
    "new_gb_per_s",
    "ratio",
    "ratio_low",
    "ratio_high",
    "delta",
    "verdict",
    "p_value",
    "p_holm",
    "p95_ratio",
    "p99_ratio",
    "base_groups",
    "new_groups",
    "day_ratio",
    "reason",
)
NUMBER_TYPES = {  # of the columns that are numbers
    name: "Int64" if name.endswith(("_launches", "_unmeasured")) else "float64"
    for name in COMPARISON_COLUMNS[len(NAMES) :]
    if name not in ("sides", "verdict", "base_groups", "new_groups", "reason")
}


# ---------------------------------------------------------------- the sides


@dataclass(frozen=True)
class Side:
    """BASE, NEW or A/A. `runs`: the records (run.json); `problems`: a line for each source that was
    left out."""

    name: str
    rows: tuple[Row, ...]
    runs: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class ComparedVariable:
    """A variable in which BASE and NEW may differ, or an entry of a map (`env.NAME`); the values,
    where given, select the rows of each side."""

    name: str
    base: str | None = None
    new: str | None = None

    @property
    def entry(self) -> tuple[str, str] | None:
        """The map and the name in it; None for a whole variable."""
        column, dot, name = self.name.partition(".")
        return (column, name) if dot else None

    @property
    def is_given(self) -> bool:
        """Whether the values are: that of a missing label is empty."""
        return self.base is not None

    @property
    def texts(self) -> tuple[str, str]:
        """Both values, `no label` for an empty one."""
        alone = f"no {self.name}"
        return self.base or alone, self.new or alone


def parse_by(words: Iterable[str]) -> tuple[ComparedVariable, ...]:
    """`backend`, `backend=gloo:mpi` or `env.NAME=1:36`; raises ConfigError for unknown variables
    and for the payload."""
    variables = []
    for word in filter(None, map(str.strip, words)):
        name, given, values = word.partition("=")
        allowed = ", ".join(COMPARABLE)
        if name in PAYLOAD:
            raise ConfigError(
                f"--by {name}: different payloads can't be compared; allowed: {allowed}"
            )
        column, _, entry = name.partition(".")
        if name not in COMPARABLE and not (column in MAPS and entry):
            raise ConfigError(f"--by {name} is not a variable; allowed: {allowed}")
        base, colon, new = values.partition(":")
        if given and not (base and colon and new):
            raise ConfigError(
                f"--by {word} is not NAME or NAME=BASE:NEW, e.g. --by backend=gloo:mpi"
            )
        variables.append(ComparedVariable(name, base or None, new or None))
    return tuple(variables)


def sources_of(source: Any) -> list[Any]:
    return list(source) if isinstance(source, (list, tuple)) else [source]


def read_side(name: str, source: Source | Sequence[Source]) -> Side:
    """Read all sources of a side; raises ConfigError if none can be used."""
    tables: list[Any] = []
    runs: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    sources = sources_of(source)
    for given in sources:
        if not isinstance(given, (str, Path)):
            try:
                tables.append(table_of(given))
            except Damaged as error:
                problems.append(str(error))
            continue
        path = Path(given)
        if not path.is_file() and not (path.is_dir() and find_runs(path)):
            raise ConfigError(
                f"{name}={path} is neither a folder with runs (run.json) nor a parquet file of"
                " cases"
            )
        parts, unreadable = read_cases([path])
        problems += unreadable
        for part in parts:
            if not part.has_version:
                problems.append(f"{path} names no schema version: taken as {SCHEMA_VERSION}")
            runs |= {str(record.get("run_id")): record for record in part.records}
            tables.append(part.cases)
    if not tables:
        raise ConfigError(
            f"{name} has nothing to compare: {'; '.join(problems) or 'no cases in it'}"
        )
    label = ", ".join(
        str(given) if isinstance(given, (str, Path)) else "a data frame" for given in sources
    )
    return Side(name, tuple(newest_rows(tables)), tuple(runs.values()), tuple(problems), label)


def select_rows(side: Side, by: Sequence[ComparedVariable]) -> Side:
    """The rows with the values that `by` names for this side, and the records of their runs; raises
    ConfigError where there are none."""
    rows = side.rows
    for variable in by:
        wanted = getattr(variable, side.name.lower())
        if wanted is not None:
            values = _values(rows, variable)
            if wanted not in values:
                listed = ", ".join(sorted(set(values), key=natural_key))
                raise ConfigError(
                    f"{side.name} has no case with {variable.name}={wanted}; it has {listed}"
                )
            rows = tuple(row for row, value in zip(rows, values, strict=True) if value == wanted)
        if variable.entry:
            rows = tuple(_without_entry(row, *variable.entry) for row in rows)
    if len(rows) == len(side.rows):
        return replace(side, rows=rows)
    own = {row.run_id for row in rows}
    runs = tuple(run for run in side.runs if run.get("run_id") in own)
    given = [(each.name, getattr(each, side.name.lower())) for each in by if each.is_given]
    chosen = [f"{name} {value}" if value else f"no {name}" for name, value in given]
    label = ", ".join([side.label, *chosen])
    return replace(side, rows=rows, runs=runs, label=label)


def _without_entry(row: Row, column: str, entry: str) -> Row:
    """The row with the rest of a map, which must be the same on both sides."""
    options: Options = getattr(row, column)
    rest: dict[str, Any] = {column: tuple(pair for pair in options if pair[0] != entry)}
    return replace(row, **rest)


def _values(rows: Sequence[Row], variable: ComparedVariable) -> list[str]:
    """The values of a variable as texts, those of a map without what all rows of a backend have."""
    if variable.entry:
        column, entry = variable.entry
        return [variable_text(dict(getattr(row, column)).get(entry)) for row in rows]
    name = variable.name
    reduced = without_shared(rows) if name in MAPS else rows
    return [variable_text(getattr(row, name)) for row in reduced]


def by_each_value(
    source: Side, by: Sequence[ComparedVariable]
) -> list[tuple[ComparedVariable, ...]]:
    """`by` once for each value that its first variable has in one source but one, which is BASE:
    no value, else the first. Raises ConfigError for a single value."""
    first, *others = by
    order = sorted(set(_values(source.rows, first)), key=natural_key)
    base, *settings = sorted(order, key=lambda value: value not in NO_VALUES)
    if not settings:
        raise ConfigError(
            f"--by {first.name} takes two values or more in {source.label}; it has {base}"
        )
    return [(replace(first, base=base, new=new), *others) for new in settings]


def save(side: Side, target: str | Path) -> None:
    """Write the side's cases and run records as one parquet file, a later BASE, without
    samples."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {b"schema_version": str(SCHEMA_VERSION), RUNS: json.dumps(side.runs)}
    schema = arrow_schema("cases")
    path = Path(target)
    aside = path.with_name(f".{path.name}.tmp")
    try:
        table = pa.Table.from_pylist([vars(row) for row in side.rows], schema)
        pq.write_table(
            table.replace_schema_metadata(metadata),
            aside,
            compression="zstd",
            write_page_checksum=True,
        )
        publish(aside, path)
    except OSError as error:
        raise ConfigError(f"--save {target} can't be written: {first_line(error)}") from error


# ---------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class Rules:
    """How two sides are compared. `delta` is the smallest threshold; `noise`: key -> relative noise
    of A/A launches; `settings`: how many are compared with BASE, one after the other."""

    by: tuple[ComparedVariable, ...] = ()
    paired: bool = False
    delta: float = SMALLEST_CHANGE
    seed: int = 0
    noise: Mapping[Key, float] | None = None
    settings: int = 1

    def tests(self, cases: int) -> int:
        """For how many p is corrected, where each setting has so many cases."""
        return self.settings * cases

    def threshold(self, key: Key) -> float:
        """The threshold of a case: its own noise, else the largest of all A/A cases; at least
        delta."""
        noise = self.noise or {}
        return max(self.delta, noise.get(key, max(noise.values(), default=0.0)))


def compare(
    base: Source | Sequence[Source],
    new: Source | Sequence[Source],
    *,
    by: str | Iterable[str] = (),
    aa: Source | Sequence[Source] = (),
    delta: float = SMALLEST_CHANGE,
    paired: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per case of either side: both medians, their ratio with its 95 % interval, and a
    verdict.

        commbench.compare("results/before", "results/after").query("verdict == 'SLOWER'")

    base, new, aa: folders with runs, parquet files of cases, or data frames from `commbench.load`.
    Each run is one launch, except that timing=rigorous makes several (paired: one). by: variables
    that may differ, `backend` or `backend=gloo:mpi`. aa: launches under identical conditions, whose
    noise raises the threshold `delta` (0.02 is 2 %). paired: launches with the same number ran next
    to each other. seed: for the random halves of `aa`.

    ratio: time of NEW / time of BASE, above 1 is slower. verdict: SLOWER, FASTER, SUSPECT (slower,
    but not for certain), SAME or UNDECIDED; the rule is in commbench/stats/verdict.py.
    p_value: Mann-Whitney on launch medians, paired the signed-rank test; null with too few
    launches. p_holm: the same, corrected for all cases. p95_ratio, p99_ratio: median over launches.
    day_ratio: up to which days alone may differ (95 %), where both sides are of other days.
    sides: both, base, new. Raises ConfigError for sides that can't be compared.
    """
    variables = parse_by(by.split(",") if isinstance(by, str) else by)
    sides = (
        select_rows(read_side("BASE", base), variables),
        select_rows(read_side("NEW", new), variables),
    )
    noise_of = noise_by_key(read_side("A/A", aa), variables, seed) if sources_of(aa) else None
    for problem in (line for side in sides for line in side.problems):
        warnings.warn(problem, stacklevel=2)
    return _frame(compare_sides(*sides, Rules(variables, paired, delta, seed, noise_of)))


@dataclass(frozen=True)
class SideOfCase:
    """What one side has of a case: the launches that count, and how many rows do not."""

    launches: tuple[Measured, ...] = ()
    unmeasured: int = 0

    @property
    def has_rows(self) -> bool:
        return bool(self.launches) or self.unmeasured > 0

    @property
    def medians_s(self) -> Series:
        return _numbers(row.median_s for row in self.launches)

    @property
    def groups(self) -> str | None:
        """The two groups into which the launches fall; None for one."""
        groups = launch_groups(self.medians_s.tolist())
        return None if groups is None else groups.text

    def gb_per_s(self, median_s: float) -> float | None:
        """The bandwidth at that time; None where the rows have none."""
        sizes = _finite(_gb(self.launches))
        return float(sizes[0]) / median_s if sizes.size else None


@dataclass(frozen=True)
class Judged:
    """What the launches of both sides show. `delta`: the threshold; `p_holm`: corrected for all
    cases; the ratios of percentiles are None where a side has none."""

    comparison: Comparison
    delta: float
    p_holm: float
    verdict: Verdict
    p95_ratio: float | None = None
    p99_ratio: float | None = None
    day_ratio: float | None = None

    @property
    def ratio(self) -> Interval:
        """Time of NEW / time of BASE; without an interval where the launches are too few."""
        return self.comparison.ratio


@dataclass(frozen=True)
class ComparedCase:
    """A case of either side. `variables`: a Row without results, `BASE -> NEW` for one in which
    the sides differ; `judged` is None where a side has no measured launch."""

    variables: Row
    base: SideOfCase
    new: SideOfCase
    judged: Judged | None = None
    reason: str | None = None

    @property
    def sides(self) -> Literal["both", "base", "new"]:
        if self.base.has_rows and self.new.has_rows:
            return "both"
        return "base" if self.base.has_rows else "new"

    @property
    def launches(self) -> tuple[int, int]:
        """Of BASE and of NEW."""
        return len(self.base.launches), len(self.new.launches)

    @property
    def verdict(self) -> Verdict | None:
        return None if self.judged is None else self.judged.verdict


def compare_sides(base: Side, new: Side, rules: Rules) -> list[ComparedCase]:
    """The cases of either side in the order of tables, of the rows that `select_rows` has
    chosen."""
    joined = _joined(base, new, rules.by)
    apart = reasons_apart(joined.base, joined.new, "NEW")
    apart |= reasons_apart(joined.new, joined.base, "BASE")
    cases = {
        key: _case(joined.base.get(key, []), joined.new.get(key, []), apart.get(key), rules.paired)
        for key in {**joined.base, **joined.new}
    }
    comparisons = {
        key: compare_launches(
            case.base.medians_s, case.new.medians_s, rules.threshold(key), rules.paired
        )
        for key, case in cases.items()
        if all(case.launches)
    }
    adjusted = adjusted_p(list(comparisons.values()))
    for (key, comparison), p_holm in zip(comparisons.items(), adjusted, strict=True):
        case = cases[key]
        p_adjusted = min(1.0, rules.settings * p_holm)
        judged = _judged(case, comparison, p_adjusted, rules.threshold(key))
        cases[key] = replace(case, judged=judged)
    return sorted(cases.values(), key=_place_in_table)


def _place_in_table(case: ComparedCase) -> list[str]:
    """The values of the variables, the size last; numbers by size, nulls first."""
    order = sorted(NAMES, key=lambda name: name in SIZES)
    values = [_table_value(getattr(case.variables, name)) for name in order]
    return [f"{value:020d}" if isinstance(value, int) else str(value or "") for value in values]


# ---------------------------------------------------------------- the data frame


def _frame(cases: Iterable[ComparedCase]) -> pd.DataFrame:
    """The columns COMPARISON_COLUMNS of the cases."""
    import pandas as pd

    frame = pd.DataFrame(map(_columns, cases), columns=list(COMPARISON_COLUMNS))
    # a variable that is compared is text: BASE -> NEW
    whole = [
        column.name
        for column in VARIABLES
        if column.kind == "integer" and not frame[column.name].map(_is_text).any()
    ]
    return frame.astype(NUMBER_TYPES | dict.fromkeys(whole, "Int64"))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _columns(case: ComparedCase) -> dict[str, Any]:
    values = {name: _table_value(getattr(case.variables, name)) for name in NAMES}
    values |= {
        "sides": case.sides,
        "base_launches": len(case.base.launches),
        "new_launches": len(case.new.launches),
        "base_unmeasured": case.base.unmeasured,
        "new_unmeasured": case.new.unmeasured,
        "reason": case.reason,
    }
    judged = case.judged
    if judged is None:
        return values
    comparison = judged.comparison
    values |= {
        "base_median_s": comparison.base_s,
        "new_median_s": comparison.new_s,
        "base_gb_per_s": case.base.gb_per_s(comparison.base_s),
        "new_gb_per_s": case.new.gb_per_s(comparison.new_s),
        "ratio": judged.ratio.value,
        "delta": judged.delta,
        "verdict": judged.verdict,
        "p95_ratio": judged.p95_ratio,
        "p99_ratio": judged.p99_ratio,
        "base_groups": case.base.groups,
        "new_groups": case.new.groups,
        "day_ratio": judged.day_ratio,
    }
    if comparison.is_decidable:
        values |= {"ratio_low": judged.ratio.low, "ratio_high": judged.ratio.high}
        values |= {"p_value": comparison.p_value, "p_holm": judged.p_holm}
    return values


def _table_value(value: Any) -> Any:
    """The value of a variable in a table: a map as text."""
    return variable_text(value) if isinstance(value, tuple) else plain(value)


# ---------------------------------------------------------------- which cases are compared


class Joined(NamedTuple):
    """Key -> rows of each side."""

    base: dict[Key, list[Row]]
    new: dict[Key, list[Row]]


def _joined(base: Side, new: Side, by: Sequence[ComparedVariable]) -> Joined:
    """The rows that belong together; raises ConfigError where both sides have no case in common."""
    changed = changed_backends(base, new)
    given = [variable.name for variable in by if not variable.entry]
    names = (*given, *_unsaid(base), *_unsaid(new))
    # gloo has no native engine, mpi has: where nothing is in common without it, a backend brings
    # its engine
    brought = dict.fromkeys(
        more
        for name in names
        for more in (OF_LABEL if name == "label" else brought_along(name))
        if more in NAMES
    )
    for compared in (names, tuple(dict.fromkeys((*names, *brought)))):
        base_rows = rows_by_key(base, compared, changed)
        new_rows = rows_by_key(new, compared, changed)
        if base_rows.keys() & new_rows.keys():
            return Joined(base_rows, new_rows)
    reasons = []
    for name in NAMES:
        before = sorted({variable_text(getattr(row, name)) for row in base.rows})
        after = sorted({variable_text(getattr(row, name)) for row in new.rows})
        if not set(before) & set(after):
            reasons.append(f"{name} ({', '.join(before[:4])} / {', '.join(after[:4])})")
    apart = reasons_apart(base_rows, new_rows, "NEW")
    differing = "; ".join(reasons) or next(iter(apart.values()), "their combinations")
    raise ConfigError(
        f"BASE and NEW have no case in common; they differ in: {differing}; name what is"
        " compared with --by NAME"
    )


def _unsaid(side: Side) -> list[str]:
    """The variables of every case that no row of a side has, as in the results of another tool."""
    have = {name for name in NAMES for row in side.rows if getattr(row, name) is not None}
    is_typed = any(row.dtype != NO_DTYPE or not row.message_bytes for row in side.rows)
    required = [name for name in NAMES if is_required(name) and name not in have]
    return required if is_typed else [*required, "dtype"]


def noise_by_key(aa: Side, by: Sequence[ComparedVariable], seed: int) -> dict[Key, float]:
    """Key -> relative noise of launches under identical conditions; raises ConfigError if no case
    has NOISE_LAUNCHES of them."""
    noise_of: dict[Key, float] = {}
    for rows in rows_by_key(aa, ()).values():
        measured = _by_launch(_measured(rows))
        key = key_of(rows[0], (variable.name for variable in by))
        if len(measured) >= NOISE_LAUNCHES:
            # no case depends on the others
            generator = np.random.default_rng([seed, _seed_of(key)])
            medians_s = _numbers(row.median_s for row in measured)
            level = math.expm1(difference.noise(medians_s, generator))
            noise_of[key] = max(noise_of.get(key, 0.0), level)
    if not noise_of:
        raise ConfigError(
            f"--aa {aa.label} has no case with {NOISE_LAUNCHES} measured launches: its noise is"
            " unknown"
        )
    return noise_of


def _seed_of(key: Key) -> int:
    """Of the variables that differ from their default, so that a new variable changes no seed."""
    own = {
        name: dict(value) if isinstance(value, tuple) else plain(value)
        for name, value in zip(NAMES, key, strict=True)
        if value != BY_NAME[name].default
    }
    text = json.dumps(own, sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


# ---------------------------------------------------------------- one case


def _case(base: list[Row], new: list[Row], apart: str | None, paired: bool) -> ComparedCase:
    """What both sides have of a case, not yet judged; `apart`: why it is on one side only."""
    rows = [*base, *new]
    _check_alike(rows)
    base_used = _measured(base)
    new_used = _measured(new)
    if paired:
        base_used, new_used = _matched(base_used, new_used)
    # each of timing=rigorous makes several; in pairs only whole runs have a counterpart
    base_launches = base_used if paired else _by_launch(base_used)
    new_launches = new_used if paired else _by_launch(new_used)
    reasons = sorted({row.reason for row in rows if row.reason is not None})
    return ComparedCase(
        _common_case((base or new)[0], (new or base)[0]),
        SideOfCase(tuple(base_launches), len(base) - len(base_used)),
        SideOfCase(tuple(new_launches), len(new) - len(new_used)),
        reason="; ".join(filter(None, ("; ".join(reasons), apart))) or None,
    )


def _common_case(base: Row, new: Row) -> Row:
    """The variables of a case; `BASE -> NEW` of one in which the sides differ."""
    values: dict[str, Any] = {}
    for name in NAMES:
        before, after = getattr(base, name), getattr(new, name)
        differs = before != after
        values[name] = f"{variable_text(before)} -> {variable_text(after)}" if differs else before
    return Row(**values)


def _judged(case: ComparedCase, comparison: Comparison, p_holm: float, delta: float) -> Judged:
    base, new = case.base.launches, case.new.launches
    return Judged(
        comparison,
        delta,
        p_holm,
        verdict(comparison, p_holm, delta),
        _tail_ratio((row.p95_s for row in base), (row.p95_s for row in new)),
        _tail_ratio((row.p99_s for row in base), (row.p99_s for row in new)),
        _day_ratio(case.base, case.new),
    )


def _tail_ratio(base: Iterable[float | None], new: Iterable[float | None]) -> float | None:
    """Of the launches that have this percentile."""
    base_s, new_s = _finite(_numbers(base)), _finite(_numbers(new))
    if not base_s.size or not new_s.size or np.median(base_s) <= 0:
        return None
    return float(np.median(new_s) / np.median(base_s))


def _day_ratio(base: SideOfCase, new: SideOfCase) -> float | None:
    """None where both sides have the same days, or these are unknown."""
    if any(row.started_at is None for row in (*base.launches, *new.launches)):
        return None
    base_launches, new_launches = (
        GroupedLaunches(side.medians_s, [str(row.started_at)[:10] for row in side.launches])
        for side in (base, new)
    )
    test = level_test(base_launches, new_launches)
    return None if test is None else math.exp(test.distance(ALPHA))


def _gb(rows: Sequence[Row]) -> Series:
    """10^9 B of an operation of each row; NaN where unknown."""
    return _numbers(row.algbw_gb_per_s for row in rows) * _numbers(row.median_s for row in rows)


def _numbers(values: Iterable[float | None]) -> Series:
    return np.array(list(values), dtype=np.float64)


def _finite(values: Series) -> Series:
    return values[np.isfinite(values)]


def _check_alike(rows: Sequence[Row]) -> None:
    """Raises ConfigError where rows of one key moved different payloads or were timed by different
    clocks."""
    clocks = {row.clock for row in rows if row.clock is not None}
    if len(clocks) > 1:
        listed = ", ".join(sorted(clocks))
        raise ConfigError(
            f"{case_text(rows[0])}: seconds of different clocks ({listed}) can't be compared"
        )
    known = _finite(1e9 * _gb(rows))
    if known.size and known.max() > known.min() * (1 + BYTES_TOLERANCE):
        seen = f"{known.min():.0f} B and {known.max():.0f} B per operation"
        raise ConfigError(f"{case_text(rows[0])}: different payloads, {seen}, can't be compared")


def _measured(rows: Iterable[Row]) -> list[Measured]:
    """Rows that are ok and have a median."""
    return [row for row in rows if isinstance(row, Measured) and 0 < row.median_s < math.inf]


def _by_launch(rows: Iterable[Measured]) -> list[Measured]:
    """A row per launch: a run of timing=rigorous has several."""
    return [
        replace(row, median_s=seconds)
        for row in rows
        for seconds in launch_medians(row.median_s, row.visit_medians_s, row.visit_launches)
    ]


def _matched(base: list[Measured], new: list[Measured]) -> tuple[list[Measured], list[Measured]]:
    """The launches whose number occurs on both sides, by number. Raises ConfigError for a number
    that occurs twice on a side."""
    base_of = _by_trial("BASE", base)
    new_of = _by_trial("NEW", new)
    both = sorted(base_of.keys() & new_of.keys())
    return [base_of[trial] for trial in both], [new_of[trial] for trial in both]


def _by_trial(side: str, rows: Sequence[Measured]) -> dict[int, Measured]:
    numbered = {row.trial: row for row in rows if row.trial is not None}
    if len(numbered) < len(rows):
        raise ConfigError(
            f"--paired: {side} has a trial twice in {case_text(rows[0])}; number them with trial=N"
        )
    return numbered


# ---------------------------------------------------------------- which rows belong together


def variable_text(value: Any) -> str:
    """The value of a variable as text: none, false, A=1 B=2."""
    if value in (None, ()):
        return NO_VALUES[0]
    return str(value).lower() if isinstance(value, bool) else value_text(plain(value))


def key_of(row: Variables, by: Iterable[str], changed: Container[tuple[str, str]] = ()) -> Key:
    """The values of all variables, None for those of `by`; rows with equal keys are compared.

    A compared backend implies its library and options. `changed`: see changed_backends.
    """
    excluded = set(by)
    excluded |= {
        name for name in OF_BACKEND if "backend" in excluded or (row.backend, name) in changed
    }
    return tuple(None if name in excluded else getattr(row, name) for name in NAMES)


def reasons_apart(own: Iterable[Key], others: Iterable[Key], name_of_others: str) -> dict[Key, str]:
    """Key of `own` that is not in `others` -> the variables that keep it from the nearest of them
    with the same payload: `engine native, in NEW python`."""
    other_keys = set(others)
    unmatched = [key for key in own if key not in other_keys]
    if not unmatched:
        return {}
    by_payload = grouped(sorted(map(_point, other_keys)), _payload)
    reasons = {}
    for key in unmatched:
        point = _point(key)
        alike = by_payload.get(_payload(point), [])[:MOST_NEAREST]
        if not alike:
            continue
        differing = min((_differing(point, other) for other in alike), key=len)
        reasons[key] = ", ".join(
            f"{name} {value}, in {name_of_others} {other}" for name, value, other in differing
        )
    return reasons


def _point(key: Key) -> tuple[str, ...]:
    """The values of a key as texts, in the order of NAMES."""
    return tuple(map(variable_text, key))


def _payload(point: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(value for name, value in zip(NAMES, point, strict=True) if name in PAYLOAD)


def _differing(point: tuple[str, ...], other: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Name and both values of each variable in which they differ."""
    return [
        (name, value, other_value)
        for name, value, other_value in zip(NAMES, point, other, strict=True)
        if value != other_value
    ]


def changed_backends(base: Side, new: Side) -> set[tuple[str, str]]:
    """(backend, library or backend_options) with no value in common, as after an upgrade, and so
    not part of a key."""
    changed = set()
    for name in OF_BACKEND:
        before = _values_by_backend(base, name)
        after = _values_by_backend(new, name)
        changed |= {
            (backend, name)
            for backend in before.keys() & after.keys()
            if not before[backend] & after[backend]
        }
    return changed


def _values_by_backend(side: Side, name: str) -> dict[str, set[str]]:
    by_backend = grouped(side.rows, lambda row: row.backend)
    return {
        backend: {variable_text(getattr(row, name)) for row in rows}
        for backend, rows in by_backend.items()
    }


def rows_by_key(
    side: Side, by: Sequence[str], changed: Container[tuple[str, str]] = ()
) -> dict[Key, list[Row]]:
    """Key -> the rows of a side in the order of their runs, of two attempts in a run the later.

    Raises ConfigError if rows with the same key differ in what is compared.
    """
    by_key: dict[Key, dict[str, Row]] = {}
    for row in side.rows:
        runs = by_key.setdefault(key_of(row, by, changed), {})
        first_row = next(iter(runs.values()), row)
        for name in dict.fromkeys((*by, *OF_BACKEND)):
            first = variable_text(getattr(first_row, name))
            last = variable_text(getattr(row, name))
            if first != last:
                raise ConfigError(
                    f"{side.name} has {name} {first} and {last} for the same case; select with --by"
                    f" {name}=BASE:NEW"
                )
        runs[row.run_id] = row
    return {key: [runs[run_id] for run_id in sorted(runs)] for key, runs in by_key.items()}
