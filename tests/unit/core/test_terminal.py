"""Tables as text."""

from __future__ import annotations

import pytest

from commbench.core.terminal import TableColumn, Terminal, table_text


def test_a_table_is_text_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There rich would display it, and write nothing."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    columns = [TableColumn("name"), TableColumn("n", right=True)]
    assert table_text(columns, [("one", "1")], Terminal()).splitlines() == ["name  n", "one   1"]
