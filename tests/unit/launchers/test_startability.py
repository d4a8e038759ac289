"""How many GPUs this machine shows, asked of a driver that is shown to a real process."""

from __future__ import annotations

from pathlib import Path

import pytest
from shown_gpus import ask, hgx, uuid

IMPORT = "from commbench.launchers.startability import visible_gpus"
CODE = "visible_gpus(os.environ)"


@pytest.mark.parametrize(
    ("machine", "visible", "count"),
    [
        (None, None, None),
        (hgx(8), None, 8),
        (hgx(8), "2,3", 2),
        (hgx(8), "", 0),
        (hgx(2), "0,7,1", 1),
        (hgx(2), uuid(1), 1),
        (hgx(1), "MIG-0e0d,MIG-0e0e", 2),
    ],
)
def test_visible_gpus(tmp_path: Path, machine: str | None, visible: str | None, count: int | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert ask(tmp_path, machine, CODE, IMPORT, **env) == count
