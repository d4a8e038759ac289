"""How a report writes sizes and settings."""

from __future__ import annotations

from sample_cases import case_row

from commbench.analysis.case_names import shown_value
from commbench.core.texts import setting_text, size_text


def test_a_size_is_exact_where_that_is_short() -> None:
    assert [size_text(size) for size in (8, 16 * 1024, 40e6)] == ["8 B", "16 KiB", "40 MB"]


def test_an_option_that_is_left_to_the_kernel_has_its_default() -> None:
    options = {"buffer_bytes": "null", "name": "nullable"}
    assert setting_text("backend_options", options).endswith("buffer_bytes=default name=nullable")


def test_the_buffers_of_an_exchange_are_its_own_unless_they_are_shared() -> None:
    for benchmark, value, shown in (
        ("exchange", None, "own"),
        ("exchange", "shared", "shared"),
        ("all_reduce", None, None),
    ):
        assert shown_value(case_row(benchmark=benchmark, buffers=value), "buffers") == shown
