"""A broken part is one line, not a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

import commbench
from commbench.errors import CommbenchError


def test_a_broken_part_is_named(tmp_path: Path) -> None:
    folder = commbench.run("backend=simulated", "writer=parquet", "sizes=[8]", "timing=quick", f"output={tmp_path}")
    (folder / "parts").mkdir(exist_ok=True)
    (folder / "parts" / "000099.cases.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(CommbenchError, match=r"a cases part of .* can't be read"):
        commbench.load(tmp_path)
