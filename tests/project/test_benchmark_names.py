"""What a row is, its facts say: no code decides by the name of its benchmark."""

from __future__ import annotations

from places import BENCHMARKS, PACKAGES
from source_texts import compared_texts

PACKAGE = PACKAGES[0]
# where operations have names: their own files, and the programs and files of others
OWN = (PACKAGE / "benchmarks", PACKAGE / "features" / "other_tools")
OTHERWISE = {
    "analysis/case_names.py": "the case of an exchange names no buffers: no fact of its row does",
    "engines/lowered.py": "sync=barrier, which is none",
    "features/documents/quiz.py": "what the quiz is about",
    "features/guidelines/rules.py": "what a rule is about",
    "results/row.py": "is_stream, which others ask, of an imported row",
}


def decisions(source: str) -> list[str]:
    """Comparisons with a name, or with what the names of a family begin with."""
    families = {f"{name.partition('_')[0]}_" for name in BENCHMARKS}
    return [text for text in compared_texts(source) if text in families | {*BENCHMARKS}]


def test_no_benchmark_is_decided_by() -> None:
    files = (file for file in sorted(PACKAGE.rglob("*.py")) if not {*OWN} & {*file.parents})
    found = {str(file.relative_to(PACKAGE)) for file in files if decisions(file.read_text())}
    assert found == {*OTHERWISE}, "ask a fact of the row: Row in results/row.py"


def test_decisions_are_found() -> None:
    assert decisions('x == "all_reduce"') == ["all_reduce"]
    assert decisions('x not in ("gather", other)') == ["gather"]
    assert decisions('x.startswith("p2p_")') == ["p2p_"]
    assert decisions('names = {"all_reduce": 1}; x = ["gather"]') == []
