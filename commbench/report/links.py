"""Links: slow pairs of stored runs as a data frame; all pairs of a run and those of a machine as
coloured tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING

from commbench.analysis.slow_pairs import CLASSES, Finding, Matrix, findings
from commbench.core.layout import Pair
from commbench.core.states import case_status
from commbench.core.texts import interval_text, microseconds_text
from commbench.core.units import format_bytes, format_number, format_seconds
from commbench.hardware.topology import parse_topo
from commbench.results.load import Paths, read_rows, row_dicts

from .figures import ramp

if TYPE_CHECKING:
    import pandas as pd

# a class whose slowest pair takes this times as long as its fastest uses the whole colour scale
FULL_SCALE = 2.0
LIGHTEST = 0.15
LARGEST_MATRIX = 64  # ranks per side; of a larger matrix only the classes are shown
LARGEST_WITH_NUMBERS = 16  # ranks per side; a larger matrix has colours only, to be seen as a whole
# grey: a rank with itself, green: within a node, orange: between nodes; from fast to slow
CLASS_RAMPS = {
    "self": ((249, 250, 251), (209, 213, 219), (107, 114, 128), (31, 41, 55)),
    "same node": ((236, 253, 245), (140, 214, 190), (0, 158, 115), (0, 68, 50)),
    "other node": ((255, 247, 236), (253, 205, 140), (230, 130, 30), (110, 50, 0)),
}
LINKS = {  # of the topology matrix: fill and text colour, near is green, far is red; meaning
    "X": ("#E5E7EB", "#374151", "the device itself"),
    "NV": ("#009E73", "#FFFFFF", "NVLink, with the number of links"),
    "PIX": ("#56B4E9", "#000000", "one PCIe switch"),
    "PXB": ("#0072B2", "#FFFFFF", "several PCIe switches, no host bridge"),
    "PHB": ("#F0E442", "#000000", "a PCIe host bridge (the CPU)"),
    "NODE": ("#E69F00", "#000000", "several host bridges of one NUMA node"),
    "SYS": ("#D55E00", "#FFFFFF", "the link between NUMA nodes"),
    "NET": ("#CC79A7", "#000000", "a network"),
}
UNKNOWN_LINK = ("#FFFFFF", "#374151", "")


def slow_pairs(*paths: Paths) -> pd.DataFrame:
    """One row per finding, each run by itself; raises CommbenchError like load.

        commbench.slow_pairs("results").query("kind == 'slow'")

    Columns: kind (rank, slow, asymmetric), run_id, benchmark, message_bytes, pair, rank, ratio,
    text. The rule is in commbench/analysis/slow_pairs.py.
    """
    import pandas as pd

    rows = [asdict(finding) for finding in findings(row_dicts(read_rows(paths)))]
    frame = pd.DataFrame(rows, columns=[field.name for field in fields(Finding)])
    return frame.astype({"rank": "Int64", "message_bytes": "int64", "ratio": "float64"})


# ---------------------------------------------------------------- coloured tables of the page


@dataclass(frozen=True)
class ColouredCell:
    """A cell of a coloured table; without `fill` it was not measured. `slow`: gets a ring."""

    text: str
    fill: str = ""
    ink: str = ""
    tip: str = ""
    slow: bool = False


@dataclass(frozen=True)
class ColouredTable:
    """A matrix with the same names down and across; `legend`: (fill, key, text); `is_dense`: its
    cells have no room for numbers."""

    title: str
    corner: str
    names: Sequence[str]
    rows: Sequence[Sequence[ColouredCell]]
    legend: Sequence[tuple[str, str, str]]
    is_dense: bool = False


def pairs_table(matrix: Matrix) -> ColouredTable:
    """Senders down, receivers across; one colour per class of links, dark is slow, a ring marks
    slow pairs.

    Without cells where there are more than LARGEST_MATRIX ranks.
    """
    shared = matrix.shared
    ranks = matrix.ranks
    size = format_bytes(int(shared["message_bytes"]))
    unit = "median in us" if shared["window"] is None else "algbw in GB/s"
    title = f"{shared['benchmark']} {size}, {shared['backend']} {shared['layout']}: {unit}"
    is_dense = len(ranks) > LARGEST_WITH_NUMBERS
    if len(ranks) > LARGEST_MATRIX or not matrix.classes:
        ranks = []
    class_of = {pair: name for name, times in matrix.classes.items() for pair in times}
    rows = [[_pair_cell(matrix, (first, second), class_of) for second in ranks] for first in ranks]
    if is_dense:
        rows = [[replace(cell, text="" if cell.fill else "x") for cell in row] for row in rows]
    legend = []
    for name, times in matrix.classes.items():
        fastest, middle, slowest = matrix.extremes(name)
        ends = [
            f"{format_seconds(times[pair])} ({pair[0]}-{pair[1]})" for pair in (fastest, slowest)
        ]
        text = (
            f"{len(times)} pairs {CLASSES[name]}: {format_seconds(times[middle])}, {ends[0]} to"
            f" {ends[1]}"
        )
        legend.append((ramp(LIGHTEST, CLASS_RAMPS[name])[0], "", text))
    return ColouredTable(title, "from \\ to", [str(rank) for rank in ranks], rows, legend, is_dense)


def _pair_cell(matrix: Matrix, pair: Pair, class_of: Mapping[Pair, str]) -> ColouredCell:
    row = matrix.rows.get(pair)
    if row is None:
        return ColouredCell("·", tip="not measured")
    if case_status(row) != "ok":
        return ColouredCell(str(row["status"])[:4], tip=f"{row['status']}: {row['reason']}")
    time_s = float(row["median_s"])
    rate = row["algbw_gb_per_s"]
    name = class_of[pair]
    share = 0.0
    least_s = min(matrix.classes[name].values())
    most_s = max(matrix.classes[name].values())
    if most_s > least_s:  # pairs with nearly equal times stay light
        share = math.log(time_s / least_s) / max(math.log(most_s / least_s), math.log(FULL_SCALE))
    fill, ink = ramp(LIGHTEST + (1 - LIGHTEST) * share, CLASS_RAMPS[name])
    interval = interval_text(row["ci_low_s"], row["ci_high_s"])
    tip = (
        f"{pair[0]} to {pair[1]}: {format_seconds(time_s)} ({interval}), {format_number(rate)} GB/s"
    )
    tip += f", {name}{', slow for its class' if pair in matrix.slow else ''}"
    text = microseconds_text(time_s) if matrix.shared["window"] is None else format_number(rate)
    return ColouredCell(text, fill, ink, tip, slow=pair in matrix.slow)


def wiring_table(text: str | None) -> ColouredTable | None:
    """The table of `nvidia-smi topo -m`, coloured by kind of link; None where the text is not a
    whole one."""
    links = parse_topo(text or "")
    devices = list(dict.fromkeys(pair.split()[0] for pair in links))
    rows = [[f"{row} {column}" for column in devices] for row in devices]
    if not devices or set(links) != set(chain.from_iterable(rows)):
        return None
    kinds = {link: link.rstrip("0123456789") for link in links.values()}
    cell_of = {
        link: ColouredCell(link, *LINKS.get(kind, UNKNOWN_LINK)[:2]) for link, kind in kinds.items()
    }
    cells = [[cell_of[links[pair]] for pair in row] for row in rows]
    legend = [
        (fill, kind, meaning)
        for kind, (fill, _, meaning) in LINKS.items()
        if kind in kinds.values()
    ]
    return ColouredTable("", "", devices, cells, legend)
