"""What the documents behind the experiments have published, as data with its source, and ours beside it."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from commbench.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

FILE = "data/published.csv"
POINT = ("setting", "message_bytes", "column")  # what a published value is the value of
COLUMNS = ("experiment", *POINT, "value", "unit", "source", "place")


def published(experiment: str) -> pd.DataFrame:
    """A row a published value: setting (the document's own words), message_bytes (null: not said), column (ours),
    value in the unit of that column, source with its date, place in it. Raises ConfigError for a name without one.
    """
    import pandas as pd

    frame = pd.read_csv(str(files("commbench.report") / FILE)).astype({"message_bytes": "Int64"})
    found = frame[frame["experiment"] == experiment]
    if found.empty:
        raise ConfigError(f"{experiment} has no published values; it has: {', '.join(sorted(set(frame.experiment)))}")
    return found[list(COLUMNS)].reset_index(drop=True)


def beside(values: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """A row a published value: setting, message_bytes, column, unit, published, ours, ratio (ours / published).

    `ours` has setting, message_bytes, column, value, as many rows as there are settings that were measured; where it
    has none, ours is null. Raises ConfigError for a point that comes twice in it.
    """
    doubled = ours[ours.duplicated(list(POINT))]
    if len(doubled):
        raise ConfigError(f"ours has {tuple(doubled.iloc[0][list(POINT)])} twice; take one value of each")
    ours = ours[[*POINT, "value"]].astype({"message_bytes": "Int64"})
    joined = values.merge(ours, on=list(POINT), how="left", suffixes=("", "_ours"))
    joined = joined.rename(columns={"value": "published", "value_ours": "ours"})
    joined["ratio"] = joined["ours"].astype("float64") / joined["published"]
    return joined[[*POINT, "unit", "published", "ours", "ratio"]]
