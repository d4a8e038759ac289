"""Soaks below the tables of runs."""

from __future__ import annotations

from commbench.report.quantities import is_stream_soak
from commbench.report.showing import Showing

from .gaps import gaps
from .run_texts import SoakTexts, apart_texts

SHOWING = Showing(
    texts_below=(SoakTexts,),
    is_apart=is_stream_soak,
    apart_texts=apart_texts,
    disturbances=gaps,
)
