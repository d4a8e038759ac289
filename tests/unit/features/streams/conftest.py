"""Soaks that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_cases import SOAK

import commbench


@pytest.fixture(scope="package")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Soaks with two labels, which alone tell them apart; one of them twice."""
    folder = tmp_path_factory.mktemp("soaks")
    for words in (("label=A",), ("label=B", "trial=0"), ("label=B", "trial=1")):
        commbench.run(*SOAK, *words, f"output={folder}")
    return folder
