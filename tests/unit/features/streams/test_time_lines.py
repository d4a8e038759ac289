"""The intervals of a stream, as iperf3 prints them."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.core.terminal import Terminal
from commbench.core.units import RATES, Unit
from commbench.features.streams.time_lines import StreamLine

WIDE = Terminal(120)
MBIT = Unit("Mb/s", RATES["Mb/s"])
STEP_NS = 100_000_000
SENDER_AHEAD_NS = 10**15  # of the sender's clock


def counters(values: dict[str, list[float]], begin_ns: int) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"t_ns": [], "name": [], "value": []}
    for name, series in values.items():
        columns["t_ns"] += [begin_ns + number * STEP_NS for number in range(len(series))]
        columns["name"] += [name] * len(series)
        columns["value"] += series
    return columns


def line(rates_mbit: list[float], resent: list[float]) -> StreamLine:
    """Intervals of 0.1 s; `resent` is read at their beginnings, and at the last one's end."""
    found = StreamLine(repetition_bytes=1000)
    shares = [rate * 1e6 / 8 * 0.1 / 1000 for rate in rates_mbit]
    received = {"interval.repetitions": shares, "interval.busy_s": [0.1] * len(shares)}
    found.add(counters(received, begin_ns=5))
    sender = {
        "sender.retransmits": resent,
        "sender.cwnd_bytes": [10 * 1024.0] * len(resent),
        "sender.rtt_s": [0.002] * len(resent),
    }
    found.add(counters(sender, SENDER_AHEAD_NS) if resent else {})
    return found


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.endswith("#")]


def test_an_interval_is_a_line_as_iperf3_prints_it() -> None:
    """Whatever the clocks of the two hosts say."""
    text = line([323, 720, 937], resent=[4, 4, 9, 10]).text("0-1", MBIT, WIDE)
    assert text.startswith("0-1: 24.8 MB in 0.30 s, 660 Mb/s")
    assert [row[:7] for row in cells(text)] == [
        ["0.00", "0.10", "4.04", "323", "0", "10", "2"],
        ["0.10", "0.20", "9.00", "720", "5", "10", "2"],
        ["0.20", "0.30", "11.7", "937", "1", "10", "2"],
    ]


@pytest.mark.parametrize(("every", "lines"), [(False, 20), (True, 100)])
def test_many_intervals_share_a_line_unless_each_is_asked_for(every: bool, lines: int) -> None:
    text = line([100.0] * 100, resent=[float(n) for n in range(101)]).text("0-1", MBIT, WIDE, every)
    rows = cells(text)
    assert len(rows) == lines
    assert {row[3] for row in rows} == {"100"}
    assert sum(int(row[4]) for row in rows) == 100


def test_without_the_senders_counters_a_line_has_its_rate() -> None:
    rows = cells(line([323, 720], resent=[]).text("0-1", MBIT, WIDE))
    assert [row[3:7] for row in rows] == [["323", "-", "-", "-"], ["720", "-", "-", "-"]]


def test_the_rate_of_a_line_is_its_transfer_over_its_time() -> None:
    """Also where nothing was measured for a part of it, as between two blocks."""
    found = StreamLine(repetition_bytes=1000)
    received = {"interval.repetitions": [1000.0] * 3, "interval.busy_s": [0.1, 0.08, 0.05]}
    found.add(counters(received, begin_ns=5))
    text = found.text("0-1", MBIT, WIDE)
    assert [row[3] for row in cells(text)] == ["80.0", "80.0", "160"]
    assert text.startswith("0-1: 3.00 MB in 0.25 s, 96.0 Mb/s")


def test_one_interval_is_no_line() -> None:
    assert line([323], resent=[]).text("0-1", MBIT, WIDE) == ""


def test_an_interval_in_which_nothing_was_measured_has_no_rate() -> None:
    """A check of the payload may take longer than a short interval."""
    found = StreamLine(repetition_bytes=1000)
    received = {"interval.repetitions": [10.0, 0.0, 10.0], "interval.busy_s": [0.1, 0.0, 0.1]}
    found.add(counters(received, begin_ns=5))
    text = found.text("0-1", MBIT, WIDE).splitlines()
    assert [row.split()[3] for row in text[-3:]] == ["0.800", "-", "0.800"]
