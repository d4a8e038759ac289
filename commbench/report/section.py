"""What a report consists of: sections, which the terminal and the page show alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from commbench.core.terminal import Terminal, paragraphs, printable

from .table import Table

FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: object) -> str:
    """The text with the characters that HTML and XML forbid shown as the replacement sign."""
    return FORBIDDEN.sub("\ufffd", str(text))


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
