"""How a report writes sizes."""

from __future__ import annotations

from commbench.core.texts import size_text


def test_a_size_is_exact_where_that_is_short() -> None:
    assert [size_text(size) for size in (8, 16 * 1024, 40e6)] == ["8 B", "16 KiB", "40 MB"]
