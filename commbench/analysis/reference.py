"""Known values to compare with: ranges per kind of hardware for the report, published values for
the experiments.

data/reference.csv: hardware with a pattern for run.json, backend, benchmark, sizes, range, source.
data/published.csv: the values in the documents that the experiments reproduce, each with its
source.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING

from commbench.analysis.slow_pairs import UNUSABLE
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.states import Row
from commbench.core.units import format_bytes, format_number, format_seconds
from commbench.results.flags import warnings_of
from commbench.results.load import row_dicts
from commbench.stats.thresholds import FAR_FROM_NORMAL

from .fit import WHOSE

if TYPE_CHECKING:
    import pandas as pd

NORMAL = "normal"
FAST = "faster"
SLOW = "slower"
UNPINNED = "ranks that are not pinned, "  # no cause where ranks are bound
CAUSES = {
    ("median_s", SLOW): (
        f"another interface or transport than expected, a loaded or throttled machine, {UNPINNED}"
        "several threads on one core, a virtual network"
    ),
    ("median_s", FAST): "both ranks on one node (shared memory), or a newer library or machine",
    ("rate", SLOW): (
        "one connection where several are needed, a link that is negotiated down (PCIe width,"
        " Ethernet), the wrong interface, small MTU, a message below the steady size, other traffic"
    ),
    ("rate", FAST): (
        "data that stays in a cache, both ranks on one node, NVLink SHARP (bus bandwidth above the"
        " link), or a newer machine"
    ),
}
POINT = ("setting", "message_bytes", "column")  # identifies a published value of an experiment
PUBLISHED_COLUMNS = ("experiment", *POINT, "value", "unit", "source", "place")


@dataclass(frozen=True)
class Judged:
    """A measured case with a known value, a row of references(). `expected`: "published 60 us ..
    160 us"."""

    reference: Row
    case: str
    measured: str
    expected: str
    verdict: str
    causes: str


@functools.cache
def references() -> tuple[Row, ...]:
    """The rows of data/reference.csv.

    Each is the range `low` to `high` of `column` for messages of `least_bytes` to `most_bytes`
    (null: no limit) on `ranks` (null: any number of) ranks, where the message moves `between` nodes
    or `within` one.
    """
    import pandas as pd

    file = files("commbench.analysis") / "data/reference.csv"
    return tuple(row_dicts(pd.read_csv(str(file)).fillna({"note": ""})))


def is_own(reference: Row) -> bool:
    """Whether commbench's own documents are the source."""
    return str(reference["source"]).startswith("commbench ")


def judge(
    cases: pd.DataFrame, hardware: Iterable[str], bound_runs: Collection[str] = ()
) -> list[Judged]:
    """Compare the largest size of each backend, layout and WHOSE with all published values of this
    hardware.

    `hardware`: texts that describe the machines, and the labels of the runs; `bound_runs`: the
    run_id of those whose ranks have cores of their own. Values far from the published range come
    first.
    """
    texts = list(hardware)
    judged = []
    whose = [name for name in WHOSE if name in cases]
    for reference in references():
        if not any(re.search(reference["pattern"], text, re.IGNORECASE) for text in texts):
            continue
        alike = cases[
            (cases["benchmark"] == reference["benchmark"])
            & cases["backend"].str.fullmatch(reference["backend"])
            & cases["message_bytes"].between(
                reference["least_bytes"], reference["most_bytes"] or math.inf
            )
            & cases[reference["column"]].notna()
            & (
                cases["world_size"] == reference["ranks"]
                if reference["ranks"]
                else cases["world_size"] > 1
            )
        ].sort_values("message_bytes", kind="stable")
        last = alike.drop_duplicates(["backend", "engine", "layout", *whose], keep="last")
        differing = [name for name in whose if last[name].nunique(dropna=False) > 1]
        for row in row_dicts(last):
            if _span(row) == reference["where"] and not warnings_of(row) & UNUSABLE:
                case = _judged_case(reference, row, differing)
                if row.get("run_id") in bound_runs:
                    case = replace(case, causes=case.causes.replace(UNPINNED, ""))
                judged.append(case)
    return sorted(judged, key=lambda case: case.verdict == NORMAL)


def _span(row: Row) -> str:
    """`between` where the message leaves the node, else `within`."""
    layout = Layout.parse(row["layout"])
    per_node = layout.ranks_per_node
    pair = row["pair"]
    if not isinstance(pair, str):
        return "between" if layout.nodes > 1 else "within"
    nodes = {int(rank) // per_node for rank in pair.split(" ")[0].split("-")}
    return "between" if len(nodes) > 1 else "within"


def _judged_case(reference: Row, row: Row, differing: Sequence[str]) -> Judged:
    """`differing`: further variables that the name of the case needs."""
    value = float(row[reference["column"]])
    seconds = reference["column"] == "median_s"
    above, below = (SLOW, FAST) if seconds else (FAST, SLOW)
    verdict = NORMAL
    if value > reference["high"] * FAR_FROM_NORMAL:
        verdict = above
    elif value < reference["low"] / FAR_FROM_NORMAL:
        verdict = below
    write = format_seconds if seconds else lambda rate: f"{format_number(rate)} GB/s"
    where = " ".join(
        str(row[name]) for name in ("backend", "engine", "layout", *differing) if row[name]
    )
    case = f"{row['benchmark']} {format_bytes(int(row['message_bytes']))}, {where}"
    causes = "" if verdict == NORMAL else CAUSES["median_s" if seconds else "rate", verdict]
    origin = f"measured by commbench on {reference['date']}:" if is_own(reference) else "published"
    expected = f"{origin} {write(reference['low'])} .. {write(reference['high'])}"
    return Judged(reference, case, write(value), expected, verdict, causes)


# ---------------------------------------------------------------- experiments


def published(experiment: str) -> pd.DataFrame:
    """One row per value that the document behind an experiment published.

    setting (the document's words), message_bytes (null: not given), column (ours), value in the
    unit of that column, source with its date, place in it. Raises ConfigError for an experiment
    without published values.
    """
    import pandas as pd

    frame = pd.read_csv(str(files("commbench.analysis") / "data/published.csv")).astype(
        {"message_bytes": "Int64"}
    )
    chosen = frame[frame["experiment"] == experiment]
    if chosen.empty:
        raise ConfigError(
            f"{experiment} has no published values; it has:"
            f" {', '.join(sorted(set(frame.experiment)))}"
        )
    return chosen[list(PUBLISHED_COLUMNS)].reset_index(drop=True)


def beside(values: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """One row per published value: setting, message_bytes, column, unit, published, ours, ratio
    (ours / published).

    `ours` has the columns setting, message_bytes, column and value, one row per measured setting;
    where a row is missing, ours is null. Raises ConfigError for a point that occurs twice.
    """
    doubled = ours[ours.duplicated(list(POINT))]
    if len(doubled):
        raise ConfigError(
            f"ours has {tuple(doubled.iloc[0][list(POINT)])} twice; take one value of each"
        )
    ours = ours[[*POINT, "value"]].astype({"message_bytes": "Int64"})
    joined = values.merge(ours, on=list(POINT), how="left", suffixes=("", "_ours"))
    joined = joined.rename(columns={"value": "published", "value_ours": "ours"})
    joined["ratio"] = joined["ours"].astype("float64") / joined["published"]
    return joined[[*POINT, "unit", "published", "ours", "ratio"]]
