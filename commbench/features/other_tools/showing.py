"""The tables of a run as other tools print them."""

from __future__ import annotations

from commbench.report.showing import Showing

from .nccl_tests import NcclTests
from .osu import Osu

SHOWING = Showing(
    forms={"osu": Osu().text, "osu_strict": Osu(strict=True).text, "nccl_tests": NcclTests().text}
)
