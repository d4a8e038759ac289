"""payload=rounding in a run: other values, and what is found out about their sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from commbench.measure.features import Measuring

from .findings import probe
from .rounding import around, check


def of_first(values: Sequence[Any]) -> Any:
    return values[0]


def joined(launches: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(launches))


MEASURING = Measuring(
    check=check,
    around=around,
    probe=probe,
    columns={
        "payload_seed": of_first,
        "error_ulp_max": max,
        "error_ulp_rms": max,
        "other_bits_again": max,
        "other_bits_on_ranks": max,
        "other_bits_in_place": max,
        "other_bits_in_halves": max,
        "other_bits_beside": max,
        "result_hash": of_first,
        "launch_hashes": joined,
    },
)
