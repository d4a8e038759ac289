"""`make figures`: what a reader of the source feels, in figures. They are looked at, not aimed at.

Prints a table and writes it to docs/design.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from source_figures import WIDTH, bare_comparisons, long_lines, saved_lines, token_count

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "design.md"
BEGIN = "<!-- figures: begin -->"
END = "<!-- figures: end -->"
PACKAGE = "commbench"
EVERYWHERE = (PACKAGE, "tests", "tools", "notebooks")


def sources(folders: Iterable[str]) -> list[str]:
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return [file.read_text() for file in files]


def count_of(find: Callable[[str], list[str]], folders: Iterable[str]) -> int:
    return sum(len(find(source)) for source in sources(folders))


def collected(marks: str) -> int:
    """The number of tests with these marks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", marks]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    numbers = re.findall(r"^\S+\.py: (\d+)$", finished.stdout, re.MULTILINE)  # of each file
    return sum(map(int, numbers))


def figures() -> dict[str, int]:
    return {
        f"lines over {WIDTH} columns, all in tables and texts": count_of(long_lines, EVERYWHERE),
        "assignments of the form `a, b = x, y`": count_of(saved_lines, EVERYWHERE),
        "tokens in `commbench/`, without comments": sum(map(token_count, sources([PACKAGE]))),
        "comparisons in `commbench/` of a value of a row or mapping with a bare text": count_of(
            bare_comparisons, [PACKAGE]
        ),
        "tests of `make test`": collected("not long"),
        "tests of `make test-long`": collected("long"),
    }


def main() -> int:
    lines = ["| | |", "|---|---|"]
    lines += [f"| {meaning} | {number:,} |" for meaning, number in figures().items()]
    table = "\n".join(lines)
    print(table)
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
