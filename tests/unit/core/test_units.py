"""Bytes, seconds and rates as text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.errors import ConfigError
from commbench.core.units import (
    about_bytes,
    about_duration,
    format_bytes,
    format_factor,
    format_number,
    format_seconds,
    parse_bytes,
    parse_rate,
)

UNITS = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            (64, 64),
            ("64", 64),
            ("8 B", 8),
            (0, 0),
            (64.0, 64),
            ("1KiB", 1024),
            ("4MB", 4_000_000),
            ("3TiB", 3 * 2**40),
        ),
        *((" 2.5 kB ", 2500), ("0.5KiB", 512), ("1.000MB", 10**6)),
    ],
)
def test_bytes_are_read_exactly(text: object, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "KiB",
        "1 kib",
        "1kb",
        "-4",
        "1e3",
        "1,5kB",
        "1.5",
        "0.3B",
        "1.0001kB",
        True,
        None,
        "nan",
        "9" * 5000,
    ],
)
def test_what_is_no_whole_number_of_bytes_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"number of bytes|ambiguous"):
        parse_bytes(text)


@given(st.integers(0, 10**18), st.sampled_from(sorted(UNITS)))
def test_a_unit_multiplies(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == number * UNITS[unit]


@given(st.one_of(st.integers(0, 10**18), st.integers(0, 2**30).map(lambda n: n * 2**20)))
def test_bytes_survive_the_round_trip(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == value


@given(
    st.one_of(
        st.text(max_size=12),
        st.from_regex(r"\d{1,40}(\.\d{1,40})?\s?[KMGTkiB]{0,3}", fullmatch=True),
    )
)
def test_any_text_gives_a_number_or_a_refusal(text: str) -> None:
    try:
        assert parse_bytes(text) >= 0
    except ConfigError as error:
        assert repr(text) in str(error)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (64, "64 B"),
        (1024, "1 KiB"),
        (40_000, "40 kB"),
        (39_322, "39322 B"),
        (3 * 2**30, "3 GiB"),
    ],
)
def test_bytes_are_written_in_the_shortest_exact_way(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(
            (None, "-"),
            (1.234e-6, "1.23 us"),
            (45.64e-3, "45.6 ms"),
            (7.889, "7.89 s"),
            (2.5e-9, "2.50 ns"),
        ),
        # rounded up into the next unit
        *((9.999e-3, "10.0 ms"), (0.99996, "1.00 s"), (999.7e-6, "1.00 ms")),
        *((3600.0, "3600 s"), (4e-10, "0.400 ns"), (0.0, "0 ns")),
    ],
)
def test_seconds_have_three_digits_and_the_unit_that_fits(value: float | None, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.01234, "0.0123"),
        (1.0, "1.00"),
        (99.96, "100"),
        (363.4, "363"),
        (1234.0, "1234"),
    ],
)
def test_rates_have_three_digits(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.2345, "1.23 x"),
        (0.5, "0.5 x"),
        (99.94, "99.9 x"),
        (100.0, "100 x"),
        (2213.0, "2,210 x"),
        (1e6, "1,000,000 x"),
    ],
)
def test_factors_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert format_factor(value) == text


SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@given(st.floats(1e-9, 999.0))
def test_seconds_lose_less_than_a_digit_of_three(value: float) -> None:
    number, unit = format_seconds(value).split()
    assert float(number) * SECONDS[unit] == pytest.approx(value, rel=0.0051)
    assert 1 <= float(number) < 1000
    assert len(number.replace(".", "")) == 3


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *(
            (24 * 1024, "24 KiB"),
            (26667, "26 KiB"),
            (1.46 * 2**20, "1.46 MiB"),
            (700 * 1024, "700 KiB"),
            (5.2, "5 B"),
        ),
        (999.9 * 2**20, "1000 MiB"),
    ],
)
def test_rounded_bytes_have_no_exponent(size: float, text: str) -> None:
    assert about_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0456, "45.6 ms"),
        (119.0, "119 s"),
        (120.0, "2.0 min"),
        (3600.0, "60 min"),
        (19914.0, "5.5 h"),
        (2 * 86400.0, "2.0 days"),
        (1e9, "11,574 days"),
    ],
)
def test_a_long_time_is_named_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert about_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "gb_per_s"),
    [
        ("100Gb/s", 12.5),
        ("936 Mb/s", 0.117),
        ("12.5GB/s", 12.5),
        ("3.2Tb/s", 400),
        (" 1MB/s ", 1e-3),
    ],
)
def test_rates_are_read_in_bits_and_bytes(text: str, gb_per_s: float) -> None:
    assert parse_rate(text) == pytest.approx(gb_per_s)


@pytest.mark.parametrize(
    "text", ["100", "100Gbps", "Gb/s", "-1Gb/s", "0Gb/s", "1 GiB/s", "1e3Mb/s", ""]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a rate above 0; allowed units are"):
        parse_rate(text)
