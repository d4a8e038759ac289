"""Published values beside measured ones: ranges per kind of hardware for the report, tables for the experiments.

data/reference.csv: hardware with a pattern for run.json, backend, benchmark, sizes, range, source.
data/published.csv: the values in the documents that the experiments reproduce, each with its source.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from commbench.core.errors import ConfigError
from commbench.core.units import format_bytes, format_rate, format_seconds

from .fit import Row

if TYPE_CHECKING:
    import pandas as pd

FAR = 1.5  # a factor beyond the published range
NORMAL, FAST, SLOW = "normal", "faster than published", "slower than published"
CAUSES = {
    ("median_s", SLOW): "another interface or transport than expected, a loaded or throttled machine, ranks that are "
    "not pinned, several threads on one core, a virtual network",
    ("median_s", FAST): "both ranks on one node (shared memory), or a newer library or machine",
    ("rate", SLOW): "one connection where several are needed, a link that is negotiated down (PCIe width, Ethernet), "
    "the wrong interface, small MTU, a message below the steady size, other traffic",
    ("rate", FAST): "data that stays in a cache, both ranks on one node, NVLink SHARP (bus bandwidth above the link), "
    "or a newer machine",
}


POINT = ("setting", "message_bytes", "column")  # identifies a published value of an experiment
PUBLISHED_COLUMNS = ("experiment", *POINT, "value", "unit", "source", "place")


@dataclass(frozen=True)
class Reference:
    """A published range of `column` for messages between two sizes (None: no bound)."""

    hardware: str
    pattern: str
    backend: str
    benchmark: str
    where: str  # `between` nodes or `within` one
    ranks: int | None
    least_bytes: int
    most_bytes: int | None
    column: str
    low: float
    high: float
    source: str
    date: str
    note: str


@dataclass(frozen=True)
class Judged:
    """A measured case beside a published value. `texts`: the measured and the published number with units."""

    reference: Reference
    case: str
    measured: str
    published: str
    verdict: str
    causes: str


@functools.cache
def references() -> tuple[Reference, ...]:
    """All published values."""
    text = (files("commbench.report") / "data" / "reference.csv").read_text(encoding="utf-8")
    return tuple(_reference(row) for row in csv.DictReader(io.StringIO(text)))


def judge(cases: pd.DataFrame, hardware: Iterable[str]) -> list[Judged]:
    """Compare the largest size of each backend and layout with all published values of this hardware.

    `hardware`: texts that describe the machines, and the labels of the runs. Values far from the published range come
    first.
    """
    texts = list(hardware)
    judged = [
        one
        for reference in references()
        if any(re.search(reference.pattern, text, re.IGNORECASE) for text in texts)
        for one in _judged_cases(reference, cases)
    ]
    return sorted(judged, key=lambda one: one.verdict == NORMAL)


def _reference(row: dict[str, str]) -> Reference:
    return Reference(
        row["hardware"], row["pattern"], row["backend"], row["benchmark"], row["where"], _whole(row["ranks"]),
        _whole(row["least_bytes"]) or 0, _whole(row["most_bytes"]), row["column"], float(row["low"]),
        float(row["high"]), row["source"], row["date"], row["note"],
    )  # fmt: skip


def _whole(text: str) -> int | None:
    return int(text) if text else None


def _judged_cases(reference: Reference, cases: pd.DataFrame) -> list[Judged]:
    alike = cases[
        (cases["benchmark"] == reference.benchmark)
        & cases["backend"].str.fullmatch(reference.backend)
        & (cases["message_bytes"] >= reference.least_bytes)
        & (cases["message_bytes"] <= (reference.most_bytes or math.inf))
        & cases[reference.column].notna()
        & (cases["world_size"] == reference.ranks if reference.ranks else cases["world_size"] > 1)
    ]
    last = alike.sort_values("message_bytes", kind="stable").drop_duplicates(
        ["backend", "engine", "layout"], keep="last"
    )
    rows: list[Row] = [{str(name): value for name, value in row.items()} for row in last.to_dict("records")]
    return [_judged_case(reference, row) for row in rows if _span(row) == reference.where]


def _span(row: Row) -> str:
    """`between` where the message leaves the node, else `within`."""
    per_node, pair = int(row["ranks_per_node"]), row["pair"]
    if not isinstance(pair, str):
        return "between" if per_node < int(row["world_size"]) else "within"
    nodes = {int(rank) // per_node for rank in pair.split(" ")[0].split("-")}
    return "between" if len(nodes) > 1 else "within"


def _judged_case(reference: Reference, row: Row) -> Judged:
    value, seconds = float(row[reference.column]), reference.column == "median_s"
    verdict = NORMAL
    if value > reference.high * FAR:
        verdict = SLOW if seconds else FAST
    elif value < reference.low / FAR:
        verdict = FAST if seconds else SLOW
    write = format_seconds if seconds else _rate
    where = f"{row['backend']} {row['engine']} {row['layout']}"
    case = f"{row['benchmark']} {format_bytes(int(row['message_bytes']))}, {where}"
    causes = "" if verdict == NORMAL else CAUSES["median_s" if seconds else "rate", verdict]
    return Judged(reference, case, write(value), f"{write(reference.low)} .. {write(reference.high)}", verdict, causes)


def _rate(value: Any) -> str:
    return f"{format_rate(value)} GB/s"


# ---------------------------------------------------------------- experiments


def published(experiment: str) -> pd.DataFrame:
    """One row per value that the document behind an experiment published.

    setting (the document's words), message_bytes (null: not given), column (ours), value in the unit of that column,
    source with its date, place in it. Raises ConfigError for an experiment without published values.
    """
    import pandas as pd

    frame = pd.read_csv(str(files("commbench.report") / "data/published.csv")).astype({"message_bytes": "Int64"})
    found = frame[frame["experiment"] == experiment]
    if found.empty:
        raise ConfigError(f"{experiment} has no published values; it has: {', '.join(sorted(set(frame.experiment)))}")
    return found[list(PUBLISHED_COLUMNS)].reset_index(drop=True)


def beside(values: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """One row per published value: setting, message_bytes, column, unit, published, ours, ratio (ours / published).

    `ours` has the columns setting, message_bytes, column and value, one row per measured setting; where a row is
    missing, ours is null. Raises ConfigError for a point that occurs twice.
    """
    doubled = ours[ours.duplicated(list(POINT))]
    if len(doubled):
        raise ConfigError(f"ours has {tuple(doubled.iloc[0][list(POINT)])} twice; take one value of each")
    ours = ours[[*POINT, "value"]].astype({"message_bytes": "Int64"})
    joined = values.merge(ours, on=list(POINT), how="left", suffixes=("", "_ours"))
    joined = joined.rename(columns={"value": "published", "value_ours": "ours"})
    joined["ratio"] = joined["ours"].astype("float64") / joined["published"]
    return joined[[*POINT, "unit", "published", "ours", "ratio"]]
