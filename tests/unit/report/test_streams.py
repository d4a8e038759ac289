"""Soaks of streams in bits: the table, the sentences, and the lines of iperf3."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.core.terminal import Terminal
from commbench.report.streams import (
    GIGABITS,
    MEGABITS,
    StreamLine,
    bit_unit,
    stream_sentences,
    streams_text,
)

WIDE = Terminal(120)
GB = 1 / 8e3  # per Mb/s
STEP_NS = 100_000_000
SENDER_AHEAD_NS = 10**15  # of the sender's clock


def soak(pair: str, first: float, end: float, **more: Any) -> dict[str, Any]:
    """Rates in Mb/s."""
    values: dict[str, Any] = {
        "benchmark": "stream",
        "backend": "tcp",
        "pair": pair,
        "message_bytes": 16384,
        "algbw_gb_per_s": (first + end) / 2 * GB,
        "end_gb_per_s": end * GB,
        "first_second_gb_per_s": first * GB,
        "full_speed_s": 1.1,
        "least_gb_per_s": 930 * GB,
        "retransmits": 3,
    }
    return case_row(**values | more)


NOTE = (soak("0-1", 612, 937), soak("1-0", 500, 937), soak("0-0", 1050, 1050, full_speed_s=0.0))


def test_each_stream_has_a_line() -> None:
    text = streams_text(NOTE, WIDE).splitlines()
    (line,) = [line for line in text if "0-1" in line]
    assert line.split()[-6:] == ["774", "937", "612", "1.1", "930", "3"]
    assert [line.split()[0] for line in text[:5]] == ["stream", "1x2", "0-1", "1-0", "0-0"]
    (alone, *_) = [line for line in streams_text(NOTE[:1], WIDE).splitlines() if "0-1" in line]
    assert alone.startswith("1x2 0-1 16 KiB  ")


def test_a_narrow_terminal_still_tells_streams_apart() -> None:
    axes = [(streams, threads) for streams in (1, 4, 36) for threads in ("each", "one")]
    rows = [soak("0-1", 612, 937, streams=count, stream_threads=name) for count, name in axes]
    lines = streams_text(rows, Terminal(80)).splitlines()
    assert lines[1].startswith("1x2 0-1 16 KiB, streams ") and "Retr" in lines[0]
    assert [line.split("  ")[0] for line in lines[2:8]] == [
        f"{count} stream_threads {name}" for count, name in axes
    ]


def test_the_share_of_a_known_line_rate_stands_beside_the_rate() -> None:
    known = streams_text([soak("0-1", 612, 937, efficiency=0.93, layout="2x1")], WIDE)
    assert "of limit" in known and known.splitlines()[2].split()[-7:-5] == ["774", "93.0"]
    assert "of limit" not in streams_text(NOTE, WIDE)
    assert "of limit" not in streams_text([soak("0-1", 612, 937, efficiency=0.01)], WIDE)


def test_what_is_no_soak_of_a_stream_has_none() -> None:
    assert streams_text([case_row(timing="soak", benchmark="p2p_latency")], WIDE) == ""


def test_the_slow_first_seconds_are_a_sentence() -> None:
    assert stream_sentences(NOTE)[0] == (
        "The first second is slower than the end in 2 of 3 streams: their first seconds: 500 to"
        " 612 Mb/s; their ends: 937 Mb/s."
    )
    assert stream_sentences(NOTE)[1] == (
        "stream 1x2 0-1 16 KiB: 937 Mb/s at the end, 612 in the first second, full speed after"
        " 1.1 s."
    )
    assert "no slower than" in stream_sentences(NOTE[2:])[0]
    short = soak("0-1", 0, 937, first_second_gb_per_s=None)
    assert len(stream_sentences([short])) == 1, "one that lasted a second says nothing of it"


def test_a_rate_that_still_rises_has_no_time_to_full_speed() -> None:
    rising = soak("0-1", 612, 937, full_speed_s=None, least_gb_per_s=None)
    assert "may still rise" in stream_sentences([rising])[-1]
    assert streams_text([rising, NOTE[1]], WIDE).splitlines()[2].split()[-3:] == ["-", "-", "3"]
    assert "after" not in streams_text([rising], WIDE).splitlines()[1]


def test_networks_count_bits() -> None:
    assert bit_unit([soak("0-1", 612, 937)]) is MEGABITS
    assert bit_unit([soak("0-1", 612, 937), soak("1-0", 612, 25_400)]) is GIGABITS
    assert MEGABITS.text(937 * GB) == "937" and GIGABITS.text(25_400 * GB) == "25.4"


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
    text = line([323, 720, 937], resent=[4, 4, 9, 10]).text("0-1", MEGABITS, WIDE)
    assert text.startswith("0-1: 24.8 MB in 0.30 s, 660 Mb/s")
    assert [row[:7] for row in cells(text)] == [
        ["0.00", "0.10", "4.04", "323", "0", "10", "2"],
        ["0.10", "0.20", "9.00", "720", "5", "10", "2"],
        ["0.20", "0.30", "11.7", "937", "1", "10", "2"],
    ]


@pytest.mark.parametrize(("every", "lines"), [(False, 20), (True, 100)])
def test_many_intervals_share_a_line_unless_each_is_asked_for(every: bool, lines: int) -> None:
    text = line([100.0] * 100, resent=[float(n) for n in range(101)]).text(
        "0-1", MEGABITS, WIDE, every
    )
    rows = cells(text)
    assert len(rows) == lines
    assert {row[3] for row in rows} == {"100"}
    assert sum(int(row[4]) for row in rows) == 100


def test_without_the_senders_counters_a_line_has_its_rate() -> None:
    rows = cells(line([323, 720], resent=[]).text("0-1", MEGABITS, WIDE))
    assert [row[3:7] for row in rows] == [["323", "-", "-", "-"], ["720", "-", "-", "-"]]


def test_the_rate_of_a_line_is_its_transfer_over_its_time() -> None:
    """Also where nothing was measured for a part of it, as between two blocks."""
    found = StreamLine(repetition_bytes=1000)
    received = {"interval.repetitions": [1000.0] * 3, "interval.busy_s": [0.1, 0.08, 0.05]}
    found.add(counters(received, begin_ns=5))
    text = found.text("0-1", MEGABITS, WIDE)
    assert [row[3] for row in cells(text)] == ["80.0", "80.0", "160"]
    assert text.startswith("0-1: 3.00 MB in 0.25 s, 96.0 Mb/s")


def test_one_interval_is_no_line() -> None:
    assert line([323], resent=[]).text("0-1", MEGABITS, WIDE) == ""


def test_an_interval_in_which_nothing_was_measured_has_no_rate() -> None:
    """A check of the payload may take longer than a short interval."""
    found = StreamLine(repetition_bytes=1000)
    received = {"interval.repetitions": [10.0, 0.0, 10.0], "interval.busy_s": [0.1, 0.0, 0.1]}
    found.add(counters(received, begin_ns=5))
    text = found.text("0-1", MEGABITS, WIDE).splitlines()
    assert [row.split()[3] for row in text[-3:]] == ["0.800", "-", "0.800"]
