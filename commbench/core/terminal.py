"""Text for a terminal, a file or a pipe: what is safe to print, tables that fit, paragraphs,
colors.

The one place that renders tables.
"""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

# what the parent of a world knows about its stdout, for the ranks: `80` or `80,color`
TERMINAL = "COMMBENCH_TERMINAL"
PLAIN = "\x1b[0m"
LEAST_TEXT = 8  # columns that a shortened text keeps
GAP = 2  # between two columns
COLORS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_CODE = "|".join(("0", *COLORS.values()))
STYLE = re.compile(rf"(\x1b\[(?:{_CODE})(?:;(?:{_CODE}))*m)")  # what COLORS are sent as
UNLIMITED_WIDTH = 100_000
PROSE_WIDTH = 100  # of paragraphs in a file or a pipe
LONGEST_LINE = 1600  # characters; the end of a message says what is allowed
# control characters (C0 except the newline, DEL, C1), bidirectional controls, unpaired surrogates
UNPRINTABLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with each character that a terminal would act on escaped, as \x1b or \u202e;
    newlines stay."""
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_with_colors(text: str) -> str:
    """The same, with commbench's own colors as they are."""
    return "".join(part if STYLE.fullmatch(part) else printable(part) for part in STYLE.split(text))


def one_line(text: str) -> str:
    """The text as one printable line; of one that is longer than LONGEST_LINE the middle is left
    out."""
    line = " ".join(part for part in printable(text.replace("\t", " ")).split("\n") if part.strip())
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"


def first_line(source: str | BaseException) -> str:
    """The first non-empty line of a text or of an exception's message; the exception's type if
    there is none."""
    nothing = "" if isinstance(source, str) else type(source).__name__
    return next(iter(str(source).strip().splitlines()), nothing)


@dataclass(frozen=True)
class Terminal:
    """The destination of text. `width` is None for a file or a pipe: tables are then as wide as
    they have to be."""

    width: int | None = None
    color: bool = False

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Terminal:
        """The terminal behind a stream: as the parent of this rank describes it (TERMINAL), else as
        the stream does.

        mpirun gives its ranks terminals of no width, whatever it writes to itself.
        """
        if TERMINAL in environ:
            width_text, _, colored = environ[TERMINAL].partition(",")
            return cls(int(width_text), bool(colored)) if width_text.isdecimal() else cls()
        if not stream.isatty():
            return cls()
        given = environ.get("COLUMNS", "")
        width = int(given) if given.isdecimal() else _terminal_columns(stream)
        color = not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
        return cls(width, color) if width else cls()

    def __str__(self) -> str:
        """The value of TERMINAL; empty for a file or a pipe."""
        return "" if self.width is None else f"{self.width}{',color' if self.color else ''}"

    def styled(self, text: str, color: str) -> str:
        """The text in a color (COLORS) where there are colors."""
        return f"\x1b[{COLORS[color]}m{text}{PLAIN}" if self.color and text else text

    def paragraph(self, text: str, indent: str = "    ") -> str:
        """The printable text, wrapped to the terminal's width, else to PROSE_WIDTH, with further
        lines indented. A word, such as a path, is never broken."""
        return textwrap.fill(
            printable(text),
            max(self.width or PROSE_WIDTH, 2 * LEAST_TEXT),
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )


def _terminal_columns(stream: TextIO) -> int:
    """The columns of the terminal behind a stream; 0 where it has none, or is gone."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return 0


@dataclass(frozen=True)
class TableColumn:
    """`heading` has a second line for the unit. Columns of priority 0 are always shown, the others
    as far as they fit, lowest priority first, all of a priority or none; of these, columns without
    any value are left out. `prose` may be wrapped to several lines on a terminal."""

    heading: str
    right: bool = False
    priority: int = 0
    prose: bool = False
    style: str = ""


def table_text(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[str]],
    terminal: Terminal,
    styles: Mapping[int, str] | None = None,
) -> str:
    """A table, without the columns that the terminal is too narrow for; in a file nothing is left
    out or shortened.

    `styles` colors rows by their number. Texts that are still too long end in `..`.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = [replace(column, heading=printable(column.heading)) for column in columns]
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = _fitting_widths(columns, cells, terminal.width or UNLIMITED_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index, width in widths.items():
        column = columns[index]
        table.add_column(
            Text(column.heading),
            justify="right" if column.right else "left",
            no_wrap=not column.prose or terminal.width is None,
            style=column.style or None,
            width=None if column.prose and terminal.width is not None else width,
        )
    for number, row in enumerate(cells):
        texts = [
            (
                row[index]
                if columns[index].prose or cell_len(row[index]) <= width
                else f"{set_cell_size(row[index], width - 2)}.."
            )
            for index, width in widths.items()
        ]
        table.add_row(*map(Text, texts), style=(styles or {}).get(number))
    output: Any = io.StringIO()
    Console(
        file=output,
        width=terminal.width or UNLIMITED_WIDTH,
        force_terminal=terminal.color,
        force_jupyter=False,  # which displays the table, and writes nothing
        legacy_windows=False,
        color_system="standard" if terminal.color else None,
        no_color=not terminal.color,
        highlight=False,
        markup=False,
        emoji=False,
    ).print(table)
    return "\n".join(map(_without_spaces, output.getvalue().splitlines()))


def _without_spaces(line: str) -> str:
    """Without spaces at the end, also where a color ends after them."""
    text = line.removesuffix(PLAIN)
    return f"{text.rstrip()}{PLAIN}" if text != line else line.rstrip()


def _fitting_widths(
    columns: Sequence[TableColumn], cells: Sequence[Sequence[str]], available: int
) -> dict[int, int]:
    """The width of each column that is shown, by its index."""
    from rich.cells import cell_len

    widths = {}
    for index, column in enumerate(columns):
        lines = [*column.heading.split("\n"), *(row[index] for row in cells)]
        if column.priority == 0 or any(row[index] not in ("", "-") for row in cells):
            # of a wider one nothing would remain but what is available
            widths[index] = min(max(map(cell_len, lines)), available)
    shown = dict[int, int]()
    for priority in sorted({columns[index].priority for index in widths}):
        group = [index for index in widths if columns[index].priority == priority]
        least = {
            index: min(widths[index], 3 * LEAST_TEXT) if columns[index].prose else widths[index]
            for index in group
        }
        if (
            priority == 0
            or sum({**shown, **least}.values()) + GAP * (len(shown) + len(group) - 1) <= available
        ):
            shown |= least
    while sum(shown.values()) + GAP * (len(shown) - 1) > available:
        texts = [index for index in shown if not columns[index].right and shown[index] > LEAST_TEXT]
        if not texts:
            break
        shown[max(texts, key=lambda index: shown[index])] -= 1
    return {
        index: shown[index] if not columns[index].prose else widths[index]
        for index in sorted(shown)
    }


def paragraphs(texts: Iterable[str], terminal: Terminal, indent: str = "    ") -> str:
    """Each text as a paragraph on a line of its own."""
    return "\n".join(terminal.paragraph(text, indent) for text in texts)


def print_error(text: str, below: Sequence[str] = ()) -> None:
    """Print a line on stderr as commbench's own, and what belongs below it."""
    lines = [f"commbench: {printable(text)}", *(f"  {printable(line)}" for line in below)]
    print("\n".join(lines), file=sys.stderr, flush=True)
