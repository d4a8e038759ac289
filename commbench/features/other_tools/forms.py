"""The tables of other tools, by the names that `show --as` takes."""

from __future__ import annotations

from .nccl_tests import NcclTests
from .osu import Osu

FORMS = {"osu": Osu(), "osu_strict": Osu(strict=True), "nccl_tests": NcclTests()}
