"""Soaks below the table of a run: a line for each stream, and intervals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sample_cases import case_row

from commbench.core.terminal import Terminal
from commbench.features.streams.run_texts import SoakTexts, apart_texts

WIDE = Terminal(120)
STEP_NS = 10**8
INTERVALS = {
    "t_ns": [number * STEP_NS for number in range(3) for _ in range(2)],
    "name": ["interval.repetitions", "interval.busy_s"] * 3,
    "value": [0.1] * 6,
}
STREAM: dict[str, Any] = {
    "benchmark": "stream",
    "run_id": "r",
    "layout": "1x8",
    "message_bytes": 16384,
    "timing": "soak",
    "headline": "receiver",
    "operations_per_sample": 1,
    "end_gb_per_s": 1.0,
    "first_second_gb_per_s": 1.0,
    "full_speed_s": 1.0,
    "least_gb_per_s": 1.0,
    "retransmits": 1,
}


def test_a_stream_is_at_full_speed_at_the_end_of_its_first_interval_there() -> None:
    run = {"run_id": "r", "config": {"timing": {"interval_s": 0.1}}}
    rows = [case_row(**STREAM, pair="0-1")]
    (below, *_) = SoakTexts().below(run, rows, WIDE, every=False)
    *_, beside = apart_texts(rows, [run], WIDE)
    for text in (below, beside):
        (line,) = [line for line in text.splitlines() if line.startswith("1x8 0-1 ")]
        assert line.split()[-3] == "1.1"


@pytest.mark.parametrize(("streams", "every"), [(1, False), (2, False), (2, True)])
def test_the_intervals_of_several_streams_are_shown_on_request(streams: int, every: bool) -> None:
    texts = SoakTexts()
    rows = [case_row(**STREAM, case_id=str(at), pair=f"{at}-1") for at in range(streams)]
    for row in rows:
        texts.add(row, partial(iter, (INTERVALS,)))
    text = "\n".join(texts.below({}, rows, WIDE, every))
    assert text.count("\n0.20  0.30 ") == (streams if streams == 1 or every else 0)
    assert ("show RUN --intervals" in text) is (streams > 1 and not every)


def test_counters_of_what_is_no_soak_are_not_read() -> None:
    def unread() -> list[Any]:
        raise AssertionError

    SoakTexts().add(case_row(timing="quick"), unread)
