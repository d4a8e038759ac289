"""Draw docs/quickstart.svg, the picture in README.md, from the results beside the notebooks.

python notebooks/readme_picture.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from notebook_figures import curves, figure

from commbench.report.figures import Colours
from commbench.report.plots import SETTINGS
from commbench.results.load import read_rows

HERE = Path(__file__).parent
RESULTS = HERE / "data" / "01_quickstart.parquet"
PICTURE = HERE.parent / "docs" / "quickstart.svg"


def draw(path: Path) -> None:
    """Time and bandwidth of messages between two ranks over their size, by backend. The same data,
    the same file."""
    cases = read_rows([RESULTS]).query("status == 'ok'")
    colours = Colours(sorted(cases["backend"].unique()))
    mpl.use("svg")
    style = {name: SETTINGS[name] for name in ("svg.fonttype", "svg.hashsalt")}
    with (
        mpl.rc_context(style),
        figure("Messages between two ranks on one machine", columns=2) as (made, (left, right)),
    ):
        curves(left, cases[cases["benchmark"] == "p2p_latency"], ["backend"], colours=colours)
        left.set_ylabel("half a round trip")
        curves(
            right,
            cases[cases["benchmark"] == "p2p_bandwidth"],
            ["backend"],
            rate=True,
            colours=colours,
        )
        right.set_ylabel("bandwidth, GB/s")
        made.savefig(path, format="svg", metadata={"Date": None, "Creator": "commbench"})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
