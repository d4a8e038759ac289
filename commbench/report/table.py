"""A table as people see it: on a terminal, on the page, as Markdown, in columns of fixed width."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commbench.core.terminal import TableColumn, Terminal, printable, table_text

MOST_ROWS = 500  # of a table on the page
LONGEST_CELL = 24  # characters; a longer text may take several lines on a terminal
MARKDOWN_SIGNS = re.compile(r"[\\|*<`\[]")


@dataclass(frozen=True)
class Table:
    """`colors`: of rows on a terminal, by their number."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[str]]
    title: str = ""
    colors: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        title: str = "",
        *,
        priorities: Mapping[str, int] | None = None,
        colors: Mapping[int, str] | None = None,
    ) -> Table:
        """With texts below the heads, and numbers below those with a unit in a second line.
        `priorities`: of the columns that a narrow terminal may lack, the highest first."""
        columns = [
            TableColumn(
                head,
                right="\n" in head,
                priority=(priorities or {}).get(head, 0),
                prose=any(len(row[at]) > LONGEST_CELL for row in rows),
            )
            for at, head in enumerate(heads)
        ]
        return cls(columns, rows, title, colors or {})

    @property
    def heads(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        """The rows on the page."""
        return self.rows[:MOST_ROWS]

    @property
    def markdown(self) -> str:
        """The whole table below its title, as wikis and pull requests take it."""
        rule = ["---"] * len(self.columns)
        lines = (f"| {' | '.join(map(_in_markdown, row))} |" for row in (self.heads, *self.rows))
        heads, *rows = lines
        title = [f"{_in_markdown(self.title)}\n"] if self.title else []
        return "\n".join([*title, heads, f"| {' | '.join(rule)} |", *rows])

    def text(self, terminal: Terminal, top: int | None = None) -> str:
        """The first `top` rows, or all, on a terminal."""
        shown = self.rows[:top]
        rest = len(self.rows) - len(shown)
        more = f"... and {rest} more: --top {len(self.rows)}" if rest else ""
        title = terminal.paragraph(self.title)
        parts = (title, table_text(self.columns, shown, terminal, self.colors), more)
        return "\n".join(filter(None, parts))

    def fixed(self, widths: Sequence[int]) -> list[str]:
        """The rows in columns of fixed widths, for programs that read them."""
        rights = [column.right for column in self.columns]
        return [
            "".join(
                f" {text:>{width - 1}}" if right else f"{text:<{width}}"
                for text, width, right in zip(row, widths, rights, strict=True)
            )
            for row in self.rows
        ]


def _in_markdown(text: str) -> str:
    return MARKDOWN_SIGNS.sub(r"\\\g<0>", printable(text).replace("\n", " "))
