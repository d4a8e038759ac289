"""What a soak can't be measured with."""

from __future__ import annotations

import pytest
from composed import settings_of

from commbench.core.errors import ConfigError


def test_a_soak_keeps_no_stamps_of_the_ranks_of_each_node() -> None:
    words = ("backend=simulated", "benchmark=[all_reduce]", "layout=2x2", "timing=soak")
    with pytest.raises(ConfigError, match="a soak does not keep"):
        settings_of(*words, "nodes=each")
