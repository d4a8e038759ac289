"""What launching a call from the host costs: the same case by the host's clock and as a replayed graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.columns import VARIABLES
from commbench.core.units import format_bytes, format_seconds

from .load import load

if TYPE_CHECKING:
    import pandas as pd

WAITED, REPLAYED = "host_sync", "graph"
ALIKE = [column.name for column in VARIABLES if column.name not in ("timing_mode", "env")]
HEADS = ("benchmark", "case", "message", "host waits", "graph", "launch", "share")


@dataclass(frozen=True)
class Launch:
    """Medians in seconds over all runs of both cases; `overhead_s` is their difference (method 2.7)."""

    benchmark: str
    backend: str
    layout: str
    dtype: str
    pair: str | None
    message_bytes: int
    host_sync_s: float
    graph_s: float

    @property
    def overhead_s(self) -> float:
        return self.host_sync_s - self.graph_s

    def cells(self) -> Sequence[str]:
        where = " ".join(filter(None, (self.backend, self.layout, self.pair, self.dtype)))
        return (
            self.benchmark, where, format_bytes(self.message_bytes), format_seconds(self.host_sync_s),
            format_seconds(self.graph_s), format_seconds(self.overhead_s),
            f"{100 * self.overhead_s / self.host_sync_s:.0f} %",
        )  # fmt: skip


def launch_overhead(*paths: str | Path) -> pd.DataFrame:
    """One row a case that was measured with timing_mode=host_sync and graph: host_sync_s, graph_s, overhead_s.

    Raises CommbenchError like load.
    """
    import pandas as pd

    rows = [asdict(one) | {"overhead_s": one.overhead_s} for one in launches(load(*paths))]
    return pd.DataFrame(rows, columns=[*(one.name for one in fields(Launch)), "overhead_s"])


def launches(cases: pd.DataFrame) -> list[Launch]:
    """Of the rows that are ok; by benchmark and size."""
    modes = cases[(cases["status"] == "ok") & cases["timing_mode"].isin([WAITED, REPLAYED])]
    found = list(_both(modes)) if len(modes) else []
    return sorted(found, key=lambda one: (one.benchmark, one.backend, one.layout, one.pair or "", one.message_bytes))


def _both(cases: pd.DataFrame) -> Iterator[Launch]:
    exported = cases["env"].map(lambda env: str(sorted(env.items())) if isinstance(env, dict) else str(env))
    for _, group in cases.groupby([*(cases[name] for name in ALIKE), exported], dropna=False, sort=False):
        medians: dict[Any, Any] = group.groupby("timing_mode")["median_s"].median().to_dict()
        if len(medians) == 2:
            one = group.iloc[0]
            pair = one["pair"] if isinstance(one["pair"], str) else None
            benchmark, backend, layout, dtype = (str(one[name]) for name in ("benchmark", "backend", "layout", "dtype"))
            size = int(one["message_bytes"])
            yield Launch(benchmark, backend, layout, dtype, pair, size, medians[WAITED], medians[REPLAYED])
