"""A run at its end, the same run without its end, and a disk of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_disk import Disk, small_disk

import commbench

FIXED = ("timing=fixed", "timing.repetitions=5", "timing.warmup_repetitions=1", "timing.warmup_s=0")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run at its end."""
    output = tmp_path_factory.mktemp("finished")
    words = (
        "backend=simulated",
        "writer=parquet",
        "benchmark=all_reduce",
        "sizes=[8,16,24]",
        *FIXED,
    )
    return commbench.run(*words, f"output={output}")


@pytest.fixture(scope="session")
def killed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run as it would be without its end: a part a case, and half a file aside."""
    folder = tmp_path_factory.mktemp("killed") / finished.name
    (folder / "parts").mkdir(parents=True)
    shutil.copy(finished / "run.json", folder)
    cases = pq.read_table(finished / "cases.parquet")
    samples = pq.read_table(finished / "samples.parquet")
    for index, case_id in enumerate(cases["case_id"].to_pylist()):
        chosen = samples.filter(pa.compute.equal(samples["case_id"], case_id))
        pq.write_table(chosen, folder / "parts" / f"{index:06d}.samples.parquet")
        pq.write_table(cases.slice(index, 1), folder / "parts" / f"{index:06d}.cases.parquet")
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted
