"""Soaks of streams in bits: the table and the sentences."""

from __future__ import annotations

from typing import Any

from sample_cases import case_row

from commbench.core.terminal import Terminal
from commbench.features.streams.rates import (
    bit_unit,
    stream_sentences,
    streams_text,
)

WIDE = Terminal(120)
GB = 1 / 8e3  # per Mb/s


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


def test_streams_of_two_operations_share_no_name() -> None:
    lines = streams_text([*NOTE, soak("0-1", 612, 937, benchmark="other")], WIDE).splitlines()
    assert lines[1].split()[:2] == ["Mb/s", "Mb/s"] and lines[-5].startswith("other 1x2 0-1 16 KiB")


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


def test_fresh_connections_are_compared_with_reused_ones_in_a_sentence() -> None:
    assert stream_sentences(NOTE)[0] == (
        "A fresh connection is slower than a reused one in 2 of 2 streams: its first second has"
        " 0.534 to 0.653 x the rate at the end (500 to 612 of 937 Mb/s)."
    )
    assert stream_sentences(NOTE)[1] == (
        "stream 1x2 0-1 16 KiB: 937 Mb/s at the end, 612 in the first second, full speed after"
        " 1.1 s."
    )
    assert "no slower than a reused" in stream_sentences([soak("0-1", 1050, 1050)])[0]
    slow_self = soak("0-0", 500, 1050)
    assert "fresh connection" not in " ".join(stream_sentences([slow_self])), "no network between"
    short = soak("0-1", 0, 937, first_second_gb_per_s=None)
    assert len(stream_sentences([short])) == 1, "one that lasted a second says nothing of it"


def test_a_rate_that_still_rises_has_no_time_to_full_speed() -> None:
    rising = soak("0-1", 612, 937, full_speed_s=None, least_gb_per_s=None)
    assert "may still rise" in stream_sentences([rising])[-1]
    assert streams_text([rising, NOTE[1]], WIDE).splitlines()[2].split()[-3:] == ["-", "-", "3"]
    assert "after" not in streams_text([rising], WIDE).splitlines()[1]


def test_the_table_says_at_which_end_of_an_interval_full_speed_is() -> None:
    text = " ".join(streams_text(NOTE, WIDE).split())
    assert "full speed: the end of the first of two intervals" in text


def test_networks_count_bits() -> None:
    assert bit_unit([soak("0-1", 612, 937)]).name == "Mb/s"
    assert bit_unit([soak("0-1", 612, 25_400)]).name == "Gb/s"
    assert bit_unit([*NOTE, soak("0-0", 612, 25_400)]).name == "Mb/s", "which fits most"


def test_runs_of_one_stream_have_numbers_where_their_trials_do_not_tell_them_apart() -> None:
    twice = [soak("0-1", 612, 937, trial=0), soak("0-1", 612, 938, trial=0)]
    assert [line.split()[0] for line in streams_text(twice, WIDE).splitlines()[2:4]] == ["1", "2"]
    trials = [soak("0-1", 612, 937, trial=number) for number in (4, 7)]
    assert [line.split()[0] for line in streams_text(trials, WIDE).splitlines()[2:4]] == ["4", "7"]
