"""`make certainty`: do numbers with a narrow interval, and numbers without a flag, repeat better?
Rewrites the tables in docs/trust.md.

Each world is measured twice in a row (A/A), on the machine as it is and beside a process that keeps
a core busy. A number repeats well if both runs give nearly the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import rewrite

import commbench
from commbench.results.flags import FLAGS, shared_flags
from commbench.results.intervals import interval_of
from commbench.results.load import rows_of_frame

WORLDS = {
    "gloo": ("backend=gloo",),
    "tcp": ("backend=tcp", "benchmark=[p2p_latency,p2p_bandwidth]"),
    "mpi": ("backend=mpi",),
}
BUSY = "while True: pass"
WIDTHS = {"": "to 5 %", "~": "to 30 %", "?": "wider, or none"}
LEAST = 5  # numbers of a share


@contextmanager
def load(busy: bool) -> Iterator[None]:
    """A process beside the measurement that keeps a core busy."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measured(words: tuple[str, ...], folder: Path) -> pd.DataFrame:
    command = [sys.executable, "-m", "commbench", *words, "timing=quick", f"output={folder}"]
    subprocess.run(command, check=True, capture_output=True)
    return commbench.load(folder)


def pairs(world: str, busy: bool) -> Iterator[dict[str, Any]]:
    """A record for each number of the first run that the second has, too, with the flags that not
    all numbers have."""
    with tempfile.TemporaryDirectory(prefix="commbench-certainty-") as name, load(busy):
        first, second = (measured(WORLDS[world], Path(name) / side) for side in ("a", "b"))
    rows = rows_of_frame(first)
    shared = shared_flags(rows)
    again_s = dict(zip(second["case_id"], second["median_s"], strict=True))
    for row in rows:
        number = interval_of(row)
        other_s = again_s.get(row.case_id)
        if number is not None and number.value and other_s:
            yield {
                "world": world,
                "busy": busy,
                "certainty": number.certainty,
                "flags": set(row.warnings) - shared,
                "moved": abs(np.log(other_s / number.value)),
            }


def repeated(numbers: pd.DataFrame) -> str:
    """How far apart both runs are: the median, and what 9 of 10 stay below."""
    if len(numbers) < LEAST:
        return "-"
    middle, most = (100 * np.expm1(np.quantile(numbers["moved"], share)) for share in (0.5, 0.9))
    return f"{middle:.0f} %, {most:.0f} %"


def by_width(numbers: pd.DataFrame) -> Iterator[str]:
    yield "| world | machine | width | numbers | with a flag | the second run differs by |"
    yield "|---|---|---|---|---|---|"
    for (world, busy), own in numbers.groupby(["world", "busy"], sort=False):
        for certainty, text in WIDTHS.items():
            part = own[own["certainty"] == certainty]
            flagged = f"{part['flags'].map(bool).mean():.0%}" if len(part) else "-"
            machine = "a core busy" if busy else "as it is"
            yield f"| {world} | {machine} | {text} | {len(part)} | {flagged} | {repeated(part)} |"


def by_flag(numbers: pd.DataFrame) -> Iterator[str]:
    yield "| flag | numbers with it | they differ by | others of the same worlds and widths |"
    yield "|---|---|---|---|"
    alike = numbers[["world", "busy", "certainty"]].apply(tuple, axis=1)
    for flag in FLAGS:
        has = numbers["flags"].map(lambda flags, flag=flag: flag in flags)
        others = numbers[~has & alike.isin(set(alike[has]))]
        if has.any():
            yield f"| {flag} | {has.sum()} | {repeated(numbers[has])} | {repeated(others)} |"


def main() -> int:
    records = [
        record for busy in (False, True) for world in WORLDS for record in pairs(world, busy)
    ]
    numbers = pd.DataFrame(records)
    text = "\n".join([*by_width(numbers), "", *by_flag(numbers), ""])
    print(text)
    rewrite("trust.md", "certainty", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
