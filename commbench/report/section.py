"""What a report consists of: sections, which the terminal and the page show alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from commbench.core.terminal import TableColumn, Terminal, paragraphs, printable, table_text

MOST_ROWS = 500  # of a table on the page
LONGEST_CELL = 24  # characters; a longer text may take several lines on a terminal
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
MARKDOWN_SIGNS = re.compile(r"[\\|*<`\[]")


def clean(text: object) -> str:
    """The text with the characters that HTML and XML forbid shown as the replacement sign."""
    return FORBIDDEN.sub("\ufffd", str(text))


@dataclass(frozen=True)
class Table:
    """`priorities`: of the columns that a narrow terminal may lack, the highest first. `colors`: of
    rows on a terminal, by their number."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    priorities: Mapping[str, int] = field(default_factory=dict)
    colors: Mapping[int, str] = field(default_factory=dict)

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        """The rows on the page."""
        return self.rows[:MOST_ROWS]

    @property
    def markdown(self) -> str:
        """The whole table below its title, as wikis and pull requests take it."""
        rule = ["---"] * len(self.heads)
        lines = (f"| {' | '.join(map(_in_markdown, row))} |" for row in (self.heads, *self.rows))
        heads, *rows = lines
        title = [f"{_in_markdown(self.title)}\n"] if self.title else []
        return "\n".join([*title, heads, f"| {' | '.join(rule)} |", *rows])

    def text(self, terminal: Terminal, top: int | None = None) -> str:
        """The first `top` rows, or all, on a terminal."""
        longest = [max(map(len, cells)) for cells in zip(*self.rows, strict=True)]
        columns = [
            TableColumn(
                head,
                right="\n" in head,
                priority=self.priorities.get(head, 0),
                prose=length > LONGEST_CELL,
            )
            for head, length in zip(self.heads, longest, strict=True)
        ]
        shown = self.rows[:top]
        rest = len(self.rows) - len(shown)
        more = f"... and {rest} more: --top {len(self.rows)}" if rest else ""
        parts = (self.title, table_text(columns, shown, terminal, self.colors), more)
        return "\n".join(filter(None, parts))


def _in_markdown(text: str) -> str:
    return MARKDOWN_SIGNS.sub(r"\\\g<0>", printable(text).replace("\n", " "))


@dataclass(frozen=True)
class Figure:
    """A drawing as an SVG document. `file`: an image with the title in it, in the format svg or
    png."""

    title: str
    svg: bytes
    is_wide: bool
    file: Callable[[str], bytes] = field(compare=False, repr=False)


def no_figures() -> Sequence[Figure]:
    """Of a section without any."""
    return ()


@dataclass(frozen=True)
class Section:
    """Sentences, tables, texts and notes; the page has the figures, too.

    `headline`: tables above the sentences. `figures` draws them. `texts` are shown as they are. On
    the page a folded section is opened by a click. `is_on_terminal`: whether the terminal has it.
    """

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Callable[[], Sequence[Figure]] = no_figures
    notes: Sequence[str] = ()
    texts: Sequence[str] = ()
    is_folded: bool = False
    is_on_terminal: bool = True
    headline: Sequence[Table] = ()

    def text(self, top: int, terminal: Terminal) -> str:
        """The section on a terminal, with the first `top` rows of each table and sentences of each
        list."""
        rest = len(self.sentences) - top
        more = [f"  ... and {rest} more: --top {len(self.sentences)}"] if rest > 0 else []
        listed = [*(f"  * {text}" for text in self.sentences[:top]), *more]
        parts = [
            terminal.styled(terminal.paragraph(self.title), "bold"),
            *(table.text(terminal, top) for table in self.headline),
            paragraphs(listed, terminal),
            *(table.text(terminal, top) for table in self.tables),
            *map(printable, self.texts),
            paragraphs(self.notes, terminal),
        ]
        return "\n".join(filter(None, parts))


def report_text(sections: Sequence[Section], top: int, terminal: Terminal) -> str:
    """The sections of the terminal, with an empty line between them."""
    texts = [section.text(top, terminal) for section in sections if section.is_on_terminal]
    lines = "\n\n".join(texts).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"
