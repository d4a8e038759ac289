"""Families: what belongs together, over runs, labels and shrinking windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commbench
from commbench.core.columns import CASES
from commbench.core.errors import CommbenchError
from commbench.report.fit import families, ignored


def row(**more: Any) -> dict[str, Any]:
    """A measured case; the interval is -+ 1 % of the median unless told otherwise."""
    case: dict[str, Any] = {column.name: None for column in CASES}
    case |= {"benchmark": "all_reduce", "backend": "gloo", "engine": "python", "dtype": "float32", "layout": "1x2"}
    case |= {"env": {}, "label": "", "run_id": "r", "status": "ok", "world_size": 2, "message_bytes": 8, **more}
    if case["median_s"] is not None:
        case = {**case, "ci_low_s": 0.99 * case["median_s"], "ci_high_s": 1.01 * case["median_s"]} | more
    return case


def test_several_runs_give_their_median_and_the_widest_interval() -> None:
    runs = [row(run_id=f"{n}", label=label, median_s=t) for n, (label, t) in enumerate([("a", 1.0), ("b", 3), ("", 2)])]
    (family,) = families(pd.DataFrame(runs))
    assert (family.median_s.tolist(), family.low_s.tolist(), family.high_s.tolist()) == ([2.0], [0.99], [1.01 * 3])
    assert (family.runs, family.labels) == (3, {"a", "b"})


def test_a_run_without_an_interval_is_inside_the_others() -> None:
    unknown = {"ci_low_s": None, "ci_high_s": None}
    runs = [row(median_s=2.0), row(median_s=5.0, **unknown), row(median_s=1.0, **unknown)]
    (family,) = families(pd.DataFrame(runs))
    assert (family.low_s[0], family.high_s[0]) == (1.0, 5.0)
    (alone,) = families(pd.DataFrame(runs[1:]))
    assert np.isnan([alone.low_s[0], alone.high_s[0]]).all()


def test_what_can_not_be_used_is_counted_by_its_reason() -> None:
    rows = [row(median_s=1.0), row(median_s=float("nan")), row(median_s=0.0), row(median_s=float("inf"))]
    rows += [row(status=status) for status in ("skipped", "skipped", "invalid")]
    assert ignored(pd.DataFrame(rows)) == {"invalid": 1, "ok without a time": 3, "skipped": 2}
    assert [family.runs for family in families(pd.DataFrame(rows))] == [1]


def test_an_operation_without_a_message_has_no_family_and_is_not_called_bad() -> None:
    barrier = pd.DataFrame([row(benchmark="barrier", message_bytes=0, median_s=1e-6)])
    assert (families(barrier), ignored(barrier)) == ([], {})


def test_another_environment_is_another_family() -> None:
    rows = [row(median_s=1.0), row(median_s=2.0, env={"A": "1"}), row(median_s=3.0, message_bytes=16)]
    assert sorted(family.median_s.tolist() for family in families(pd.DataFrame(rows))) == [[1.0, 3.0], [2.0]]


def test_a_shrinking_window_stays_in_its_family() -> None:
    sizes = {8: (1, 16, 64), 1 << 23: (1, 16, 32), 1 << 25: (1, 8), 1 << 28: (1,)}
    rows = [
        row(message_bytes=size, window=one, median_s=one + 0.5) for size, windows in sizes.items() for one in windows
    ]
    found = {family.variables["window"]: family.median_s.tolist() for family in families(pd.DataFrame(rows))}
    assert found == {1: [1.5] * 4, 16: [16.5, 16.5, 8.5, 1.5], 64: [64.5, 32.5, 8.5, 1.5]}


def test_the_rows_order_does_not_matter() -> None:
    rows = [row(backend=name, message_bytes=size, median_s=size * 1.5) for name in "ba" for size in (32, 8, 16)]
    found = [
        [(one.variables, one.sizes.tolist()) for one in families(pd.DataFrame(order))] for order in (rows, rows[::-1])
    ]
    assert found[0] == found[1]
    assert [variables["backend"] for variables, _ in found[0]] == ["a", "b"]


def test_a_frame_without_the_columns_is_refused_in_one_line() -> None:
    with pytest.raises(
        CommbenchError, match=r"the cases have no column ci_low_s, ci_high_s; give what commbench\.load"
    ):
        families(pd.DataFrame([row(median_s=1.0)]).drop(columns=["ci_low_s", "ci_high_s"]))


def test_the_tool_s_own_windows_shrink_into_one_family(tmp_path: Path) -> None:
    words = ("benchmark=p2p_bandwidth", "sizes=[8,1KiB,16MiB]", "window=[4,64]", "timing=fixed", "timing.repetitions=6")
    folder = commbench.run("backend=simulated", "writer=parquet", f"output={tmp_path}", *words)
    cases = commbench.load(folder)
    assert len(set(cases.window)) == 3, "nothing shrank"
    assert [family.sizes.tolist() for family in families(cases)] == [[8, 1024, 1 << 24]] * 2
