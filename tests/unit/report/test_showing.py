"""What features print below the tables of runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sample_cases import RUN, measured_row

from commbench.core.terminal import Terminal
from commbench.report import showing
from commbench.report.run_text import run_text
from commbench.report.showing import Showing
from commbench.report.side_by_side import side_by_side

WIDE = Terminal(120)
ROWS = [measured_row("p2p_latency", message_bytes=size, pair="0-1") for size in (8, 32)]


class Counted:
    """Prints what it has seen; rows of 32 B are apart."""

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def add(self, row: Any, counters: Any) -> None:
        self._seen += counters()

    def below(self, run: Any, rows: Any, terminal: Any, every: bool) -> Iterator[str]:
        yield f"{len(rows)} rows, seen {self._seen}"


PART = Showing(
    texts_below=(Counted,),
    is_apart=lambda row: row.message_bytes == 32,
    apart_texts=lambda rows, records, terminal: [f"apart: {len(rows)}"],
)


def parts(monkeypatch: pytest.MonkeyPatch, *found: Showing) -> None:
    monkeypatch.setattr(showing, "registered", lambda kind: found)


def test_a_feature_sees_the_counters_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    parts(monkeypatch, PART)
    texts = showing.new_texts()
    for each in texts:
        each.add(ROWS[0], partial(iter, ({"name": "a"}, {"name": "b"})))
    text = run_text(RUN, ROWS, WIDE, texts)
    assert "\n2 rows, seen [{'name': 'a'}, {'name': 'b'}]\n" in text
    assert "\n1 rows, seen []\n" in run_text(RUN, ROWS, WIDE, tables=False), "the others come later"


@pytest.mark.parametrize(("found", "sizes"), [((PART,), ["8 B"]), ((), ["8 B", "32 B"])])
def test_what_is_apart_is_in_no_table_of_runs_side_by_side(
    found: tuple[Showing, ...], sizes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the feature it is a row like any other."""
    parts(monkeypatch, *found)
    lines = side_by_side(ROWS, WIDE).splitlines()
    heads = [line.lstrip()[:4].strip() for line in lines]
    assert [head for head in heads if head in ("8 B", "32 B")] == sizes
    assert ("apart: 1" in lines) is bool(found)
