"""The figures of `make figures` count what they say."""

from __future__ import annotations

from source_figures import bare_comparisons, long_lines, token_count


def test_a_value_that_is_looked_up_and_compared_with_a_text_is_bare() -> None:
    bare = ['row["status"] == "ok"', 'run.get("status") in ("a", "b")', 'frame["x"] != "y"']
    typed = ["case.device == 'cpu'", "row['visits'] == 3", "words[:1] == ['run']", "a[0] == b"]
    for source in bare:
        assert bare_comparisons(source), source
    for source in typed:
        assert not bare_comparisons(source), source


def test_tokens_are_counted_without_comments_and_layout() -> None:
    assert token_count("# a comment\nif x:\n    y = 1  # another\n\n") == 6


def test_a_line_of_100_columns_is_not_too_long() -> None:
    assert long_lines(f"{'x' * 100}\n{'y' * 101}\n") == ["y" * 101]
