"""Compare two sides of launches case by case, with a verdict for each."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.core.columns import VARIABLES
from commbench.core.errors import ConfigError
from commbench.core.units import format_bytes
from commbench.measure.statistics import effective_size

from .compare_sides import (
    NAMES,
    Difference,
    Row,
    Side,
    check_alike,
    key_of,
    parse_by,
    plain,
    read_side,
    rows_by_key,
    text,
    with_samples,
    without_common_value,
)  # fmt: skip
from .compare_statistics import (
    LEAST_LAUNCHES,
    Launches,
    Series,
    bootstrap,
    holm,
    mann_whitney,
    missing_launches,
    noise,
    ratio,
    verdict,
)

if TYPE_CHECKING:
    import pandas as pd

    Source = str | Path | pd.DataFrame

Times = Mapping[tuple[str, str], Series]  # run_id, case_id -> seconds of each repetition

DELTA = 0.02  # the smallest change that matters
TAILS = ("p95_s", "p99_s")
NUMBERS = (
    "base_median_s", "new_median_s", "ratio", "ratio_low", "ratio_high", "delta", "p_value", "p_holm",
    "p95_ratio", "p99_ratio",
)  # fmt: skip
COUNTS = ("base_launches", "new_launches", "base_unmeasured", "new_unmeasured", "missing_launches")
COLUMNS = (
    *NAMES, "sides", "base_launches", "new_launches", "base_unmeasured", "new_unmeasured", "base_median_s",
    "new_median_s", "ratio", "ratio_low", "ratio_high", "delta", "verdict", "missing_launches", "p_value", "p_holm",
    "p95_ratio", "p99_ratio", "resampled", "reason",
)  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """How two sides are compared. `delta` is the smallest threshold; `noise`: key -> relative noise of A/A launches."""

    by: tuple[Difference, ...] = ()
    paired: bool = False
    delta: float = DELTA
    seed: int = 0
    noise: Mapping[str, float] | None = None

    def threshold(self, key: str) -> float:
        """Of a case: its own noise, or the largest of all A/A cases where it is not among them; at least delta."""
        noise = self.noise or {}
        return max(self.delta, noise.get(key, max(noise.values(), default=0.0)))


def compare(
    base: Source | Sequence[Source],
    new: Source | Sequence[Source],
    *,
    by: str | Iterable[str] = (),
    aa: Source | Sequence[Source] = (),
    delta: float = DELTA,
    paired: bool = False,
    samples: bool = True,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per case of either side: both medians, their ratio with its 95 % interval, and a verdict.

    base, new, aa: folders with runs, parquet files of cases, or data frames from `commbench.load`; each run is one
    launch. by: variables that may differ, `backend` or `backend=gloo:mpi`. aa: launches under identical conditions,
    whose noise raises the threshold `delta` (0.02 is 2 %). paired: launches with the same number ran next to each
    other. samples: also resample repetitions within launches where samples exist. seed: of the bootstrap.

    ratio: time of NEW / time of BASE, above 1 is slower. verdict: FASTER or SLOWER where the interval is beyond
    1 + delta, SAME where it is within, else UNDECIDED; null below 4 launches per side. missing_launches: how many more
    launches per side a verdict needs, null for more than 100. p_value: Mann-Whitney on launch medians; p_holm: the
    same, corrected for all cases. p95_ratio, p99_ratio: median over launches. sides: both, base, new. Raises
    ConfigError for sides that can't be compared.
    """
    differences = parse_by(by.split(",") if isinstance(by, str) else by)
    sides = side("BASE", base, samples), side("NEW", new, samples)
    noise_of = noise_by_key(side("A/A", aa), differences, seed) if _sources(aa) else None
    for problem in (line for each in sides for line in each.problems):
        warnings.warn(problem, stacklevel=2)
    return compare_sides(*sides, Rules(differences, paired, delta, seed, noise_of))


def side(name: str, source: Source | Sequence[Source], samples: bool = False) -> Side:
    """One side, with its samples if asked for; raises ConfigError where nothing can be read."""
    read = read_side(name, _sources(source))
    return with_samples(read) if samples else read


def _sources(source: Any) -> list[Any]:
    return list(source) if isinstance(source, (list, tuple)) else [source]


def compare_sides(base: Side, new: Side, rules: Rules) -> pd.DataFrame:
    """See compare."""
    import pandas as pd

    rows = rows_by_key(base, rules.by), rows_by_key(new, rules.by)
    if not set(rows[0]) & set(rows[1]):
        reasons = "; ".join(without_common_value(base, new)) or "their combinations"
        raise ConfigError(
            f"BASE and NEW have no case in common; they differ in: {reasons}; name what is compared with --by NAME"
        )
    times = {**base.times, **new.times}
    compared = [
        _compare_case(key, rows[0].get(key, []), rows[1].get(key, []), rules, times) for key in {**rows[0], **rows[1]}
    ]
    tested = [row for row in compared if row["p_value"] is not None]
    for row, adjusted in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_holm"] = adjusted
    compared.sort(key=_order)
    texts = {one.name for one in rules.by}  # a variable that is compared is text: BASE -> NEW
    whole = [*COUNTS, *(one.name for one in VARIABLES if one.kind == "integer" and one.name not in texts)]
    types = dict.fromkeys(whole, "Int64") | dict.fromkeys(NUMBERS, "float64") | {"resampled": "boolean"}
    return pd.DataFrame(compared, columns=list(COLUMNS)).astype(types)


def noise_by_key(aa: Side, by: Sequence[Difference], seed: int) -> dict[str, float]:
    """Key -> relative noise of launches under identical conditions; raises ConfigError where no case has 4 of them."""
    noise_of: dict[str, float] = {}
    for rows in rows_by_key(aa, ()).values():
        measured, key = _measured(rows), key_of(rows[0], (one.name for one in by))
        if len(measured) >= LEAST_LAUNCHES:
            level = math.expm1(noise(_column(measured, "median_s"), _generator(seed, key)))
            noise_of[key] = max(noise_of.get(key, 0.0), level)
    if not noise_of:
        raise ConfigError(f"--aa {aa.label} has no case with {LEAST_LAUNCHES} measured launches: its noise is unknown")
    return noise_of


# ---------------------------------------------------------------- one case


def _compare_case(key: str, base: list[Row], new: list[Row], rules: Rules, times: Times) -> dict[str, Any]:
    """The row of a key; numbers are null where a side has no measured launch."""
    rows = [*base, *new]
    check_alike(case_name(rows[0]), rows)
    measured = _measured(base), _measured(new)
    if rules.paired:
        measured = _matched(*measured)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {name: _shared_value(name, base, new) for name in NAMES}
    row |= {
        "sides": "both" if base and new else "base" if base else "new",
        "base_launches": len(measured[0]),
        "new_launches": len(measured[1]),
        "base_unmeasured": len(base) - len(measured[0]),
        "new_unmeasured": len(new) - len(measured[1]),
        "reason": "; ".join(sorted({str(row["reason"]) for row in rows if isinstance(row["reason"], str)})) or None,
    }
    if measured[0] and measured[1]:
        row |= _numbers(key, *measured, rules, times)
    return row


def _numbers(key: str, base: list[Row], new: list[Row], rules: Rules, times: Times) -> dict[str, Any]:
    """Medians and ratios always; interval, verdict and p with at least 4 launches per side."""
    sides = _launches(base, times), _launches(new, times)
    fewest, delta = min(len(base), len(new)), rules.threshold(key)
    numbers: dict[str, Any] = {
        "base_median_s": float(np.median(sides[0].medians)),
        "new_median_s": float(np.median(sides[1].medians)),
        "ratio": ratio(*sides, rules.paired),
        "delta": delta,
        "missing_launches": max(LEAST_LAUNCHES - fewest, 0),
        **{f"{name[:-2]}_ratio": _tail_ratio(name, base, new) for name in TAILS},
    }
    if fewest < LEAST_LAUNCHES:
        return numbers
    interval = bootstrap(*sides, _generator(rules.seed, key), rules.paired)
    outcome = verdict(interval, delta)
    return numbers | {
        "ratio_low": interval.low,
        "ratio_high": interval.high,
        "verdict": outcome,
        "missing_launches": missing_launches(interval, delta, fewest) if outcome == "UNDECIDED" else 0,
        "p_value": mann_whitney(sides[0].medians, sides[1].medians),
        "resampled": any(one.hierarchical for one in sides),
    }


def _measured(rows: Iterable[Row]) -> list[Row]:
    """Rows that are ok and have a median."""
    return [row for row in rows if row["status"] == "ok" and 0 < row["median_s"] < math.inf]


def _matched(base: list[Row], new: list[Row]) -> tuple[list[Row], list[Row]]:
    """Launches whose number both sides have, by number; raises ConfigError for a number that occurs twice."""
    by_number = [{plain(row["launch"]): row for row in rows} for rows in (base, new)]
    if len(by_number[0]) < len(base) or len(by_number[1]) < len(new):
        where = "BASE" if len(by_number[0]) < len(base) else "NEW"
        raise ConfigError(
            f"--paired: {where} has a launch number twice in {case_name((base or new)[0])}; number them with launch=N"
        )
    both = sorted(set(by_number[0]) & set(by_number[1]))
    return [by_number[0][launch] for launch in both], [by_number[1][launch] for launch in both]


def _launches(rows: list[Row], times: Times) -> Launches:
    series = tuple(times.get((row["run_id"], row["case_id"])) for row in rows)
    effective = tuple(0.0 if one is None else effective_size(one) for one in series)
    return Launches(_column(rows, "median_s"), series, effective)


def _column(rows: Iterable[Row], name: str) -> Series:
    return np.array([row[name] for row in rows], dtype=np.float64)


def _tail_ratio(name: str, base: list[Row], new: list[Row]) -> float | None:
    """The ratio of the medians over the launches that have this percentile."""
    tails = [values[np.isfinite(values)] for values in (_column(base, name), _column(new, name))]
    if not all(values.size for values in tails):
        return None
    return float(np.median(tails[1]) / np.median(tails[0]))


def _shared_value(name: str, base: list[Row], new: list[Row]) -> Any:
    """The value of a variable; `base -> new` where the sides differ."""
    values = [plain(rows[0][name]) for rows in (base, new) if rows]
    if values[0] != values[-1]:
        return f"{text(values[0])} -> {text(values[-1])}"
    return text(values[0]) if name == "env" else values[0]


def _generator(seed: int, key: str) -> np.random.Generator:
    """One generator per case, so that rows do not depend on one another."""
    return np.random.default_rng([seed, int(hashlib.sha256(key.encode()).hexdigest()[:16], 16)])


def case_name(row: Mapping[Any, Any]) -> str:
    """A short name of a case: all_reduce 1x2 1 MiB."""
    words = [row["benchmark"], row["layout"], row["pair"] if isinstance(row["pair"], str) else ""]
    size = plain(row["message_bytes"])
    return " ".join([*(str(word) for word in words if word), *([format_bytes(size)] if size else [])])


def _order(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Sort key: by variables, numbers by size, nulls first."""
    order = [*(name for name in NAMES if name not in ("message_bytes", "count")), "message_bytes", "count"]
    return tuple(f"{row[name]:020d}" if isinstance(row[name], int) else str(row[name] or "") for name in order)
