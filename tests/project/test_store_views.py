"""The DuckDB views in docs/acceptance.md, as they are written there, on a store."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from healthy_runs import SUITE, healthy_run
from places import ROOT

from commbench.cluster.baseline.writer import add_runs

duckdb = pytest.importorskip("duckdb")
(SQL,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "acceptance.md").read_text(), re.DOTALL)


def test_the_views_of_the_documentation_read_a_store_as_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [healthy_run(tmp_path, number, day=1 + number) for number in range(4)]
    other = {"name": "gloo", "library": "torch 2.14.0 gloo"}
    runs += [healthy_run(tmp_path, number, backend=other) for number in (7, 8)]
    add_runs(tmp_path / "baselines", runs)
    # what other commands keep in the store is no baseline
    shutil.copytree(runs[0], tmp_path / "baselines" / "set_aside" / runs[0].name)
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        widest = connection.execute(SQL).fetchall()
        assert len(widest) == 10 and widest[0][:2] in {(name, "1x2") for name, _ in SUITE}
        spreads = [row[-1] for row in widest]
        assert spreads == sorted(spreads, reverse=True) and 0 < spreads[0] < 20
        counted = "SELECT software, runs, count(*) FROM healthy GROUP BY ALL ORDER BY ALL"
        assert connection.execute(counted).fetchall() == [
            ("torch-2.13.0-cpu-gloo", 4, 12),
            ("torch-2.14.0-gloo", 2, 12),
        ]
        hardware = connection.execute("SELECT DISTINCT hardware FROM cases").fetchall()
        assert hardware == [("Test-CPU",)]
        days = connection.execute("SELECT count(DISTINCT hosts), count(*) FROM daily").fetchall()
        assert days[0][0] == 1 and days[0][1] > 12
