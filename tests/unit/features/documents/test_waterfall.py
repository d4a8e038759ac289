"""The figure of what each layer adds."""

from __future__ import annotations

from commbench.features.documents.waterfall import waterfall


def test_a_waterfall_says_what_each_layer_adds() -> None:
    (figure,) = waterfall("t", [("fast", 1e-6), ("slow", 3e-6)])
    assert b"3.00 us  (+2.00 us)" in figure.svg


def test_a_name_stays_text() -> None:
    (figure,) = waterfall("t", [("<script>", 1e-6), ("b", 3e-6)])
    assert b"<script" not in figure.svg
