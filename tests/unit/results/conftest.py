"""A disk of its own for a test that needs one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from small_disk import Disk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ExitStack() as stack:
        try:
            mounted = stack.enter_context(small_disk(tmp_path / "disk"))
        except RuntimeError as error:
            pytest.skip(f"no disk to fill: {error}")
        yield mounted
