"""Lanes with bars: SVG in which names stay text."""

from __future__ import annotations

from xml.etree import ElementTree

from commbench_replay.figures import Bar, time_line

EVIL = '<script>alert("x")</script> $x_{$ & \x00'


def test_whatever_a_name_is_its_bar_is_drawn() -> None:
    (figure,) = time_line(EVIL, [EVIL], [Bar(0, 0.0, 1e-3, EVIL)], "time")
    ElementTree.fromstring(figure.svg)
    assert b"<script" not in figure.svg and "\x00" not in figure.title
