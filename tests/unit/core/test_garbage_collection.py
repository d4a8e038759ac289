"""Pauses of the garbage collector overlap, and leave it as it was."""

from __future__ import annotations

import gc
from contextlib import ExitStack

import pytest

from commbench.core.garbage_collection import collection_paused


@pytest.mark.parametrize("enabled", [True, False])
def test_the_last_that_leaves_restores_the_collector(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        first = ExitStack()
        second = ExitStack()
        first.enter_context(collection_paused())
        second.enter_context(collection_paused())
        first.close()
        assert not gc.isenabled()
        second.close()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
