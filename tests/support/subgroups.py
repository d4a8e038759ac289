"""What every world of equal nodes must say about each layout that was asked of it."""

from __future__ import annotations

from typing import Any

import pandas as pd

LAYOUTS = {"1x1": (1, 1), "1x2": (1, 2), "2x1": (2, 1), "2x2": (2, 2), "4x1": (4, 1)}
ASKED = (f"layout=[{','.join(LAYOUTS)}]", "benchmark=[p2p_latency,all_reduce]")


def check_layouts(cases: pd.DataFrame, nodes: int, each: int) -> None:
    """Every layout that fits into nodes x each was measured, every other one is in the rows with
    its reason."""
    for case in cases.itertuples():
        _check_place(case, nodes, each)
    fitting = {name for name, (wide, deep) in LAYOUTS.items() if wide <= nodes and deep <= each}
    assert set(cases[cases.status == "ok"].layout) == fitting
    assert set(cases.layout) == set(LAYOUTS)


def _check_place(case: Any, nodes: int, each: int) -> None:
    wide, deep = LAYOUTS[case.layout]
    assert (case.nodes, case.ranks_per_node, case.world_size) == (wide, deep, wide * deep)
    if wide > nodes or deep > each:
        have = " + ".join([str(each)] * nodes)
        reason = (
            f"layout {case.layout} does not fit into this world of {nodes} node(s) with {have}"
            " rank(s)"
        )
    elif case.benchmark == "p2p_latency" and case.layout == "1x1" and pd.isna(case.pair):
        reason = "p2p_latency needs 2 ranks, layout 1x1 has 1; a rank with itself: pairs=[[0,0]]"
    else:
        assert (case.status, case.wrong_elements) == ("ok", 0)
        return
    assert (case.status, case.reason) == ("skipped", reason)
