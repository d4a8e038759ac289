"""A test that goes through a table names every row that fails, and is no test without rows."""

from __future__ import annotations

import pytest
from loops import for_each


def test_a_loop_calls_the_check_with_every_row_and_names_all_that_fail() -> None:
    seen = list[int]()

    @for_each(("number", "text"), [(1, "a"), (2, "b"), (3, "c"), (4, "d")])
    def check(number: int, text: str) -> None:
        seen.append(number)
        if text == "d":
            raise ValueError("no number")
        assert number % 2, "it is even"

    with pytest.raises(AssertionError) as failed:
        check()
    assert seen == [1, 2, 3, 4]
    first, *rows = str(failed.value).splitlines()
    assert first == "2 of 4 fail:"
    assert any(row.startswith("number=2, text='b', line ") and "it is even" in row for row in rows)
    assert any(row.startswith("number=4, ") and "ValueError: no number" in row for row in rows)


def test_a_loop_over_nothing_is_refused() -> None:
    with pytest.raises(AssertionError, match="a loop over nothing proves nothing"):
        for_each("name", [])


@for_each("name", ["a", "b"])
def test_the_check_of_a_row_may_use_fixtures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, name)
