"""A report of two backends: where they cross is an answer, the rest stands on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from size_rows import rows_of, size_rows

from commbench.features.crossovers.reporting import all_backends, choices
from commbench.report.summary import MOST_SENTENCES, Results, Summary

SIZES = [8, 16, 32, 64]
CROSS = [1.0, 1.0, 9.0, 9.0]
FASTER = [1.0, 1.0, 1.0, 1.0]
TIE = [1.0, 1.0, 1.0, 3.0]
OTHER = [3.0, 3.0, 3.0, 3.0]


def summary_of(times: Mapping[str, Sequence[float]], other: str = "tcp") -> Summary:
    """Of gloo with these times in each benchmark, and another backend with the same in all."""
    frames = [
        size_rows({"gloo": [*own], other: OTHER}, SIZES, benchmark=benchmark)
        for benchmark, own in times.items()
    ]
    every = pd.concat(frames)
    cases = every.assign(case_id=every.benchmark + every.case_id)
    return Summary(Results(rows_of(cases), (), {}, ()))


def test_those_that_cross_come_first_then_those_that_are_decided() -> None:
    planted = {"a": TIE, "b": FASTER, "c": CROSS, "d": FASTER, "e": CROSS}
    (section,) = all_backends(summary_of(planted))
    told = [text.partition(":")[0] for text in section.sentences]
    assert told == ["c", "e", "b", "d", "a"]
    assert "not distinguishable at 1" in section.sentences[-1]


def test_only_a_crossover_is_a_choice() -> None:
    assert choices(summary_of({"a": FASTER}, other="far above")) == []
    crossed = choices(summary_of({"a": FASTER, "b": CROSS}))
    between = "gloo below 23 B (between 16 B and 32 B), tcp above"
    assert crossed == [f"b: in this run {between} (4 sizes, 8 B .. 64 B)."]


def test_the_choices_are_few() -> None:
    many = dict.fromkeys("abcdefgh", CROSS)
    assert len(choices(summary_of(many))) == MOST_SENTENCES < len(many)
