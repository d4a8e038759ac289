"""The lines of a job's log, without what launchers put before them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from commbench.core.foreign import check_size

from .foreign_files import ForeignFile

LONGEST_CHARACTERS = 4096  # of a line that a benchmark prints
COLORS = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
# mpirun --tag-output: [1,0]<stdout>:  srun -l: 0:  mpiexec -l: [0]  torchrun --tee: [default0]:
LABEL = re.compile(
    r"\s{0,8}(\[[^\]\s<>]{1,80},[0-9]{1,7}\]<std[a-z]{3,4}[^>\s]{0,40}>:?"
    r"|[0-9]{1,7}:(?=\s|#|$)|\[[0-9]{1,7}\](?=\s)|\[[\w.:-]{1,80}\]:) ?"
)


@dataclass(frozen=True)
class Line:
    """`label`: what a launcher has put before it, empty for nothing. `is_whole`: it has an end."""

    number: int
    label: str
    text: str
    is_whole: bool = True


def text_lines(file: ForeignFile) -> Iterator[Line]:
    """Those that a benchmark could have printed; raises Unreadable."""
    lines = file.lines()
    last = next(lines)
    number = 0
    for number, line in enumerate(lines, 1):
        check_size(file.name, file.read_bytes)
        if len(last) <= LONGEST_CHARACTERS:
            yield _line(number, last, is_whole=True)
        last = line
    if last and len(last) <= LONGEST_CHARACTERS:
        yield _line(number + 1, last, is_whole=False)


def _line(number: int, content: bytes, is_whole: bool) -> Line:
    text = COLORS.sub("", content.decode("utf-8", "replace")).rstrip()
    text = text.rpartition("\r")[2]  # what a terminal would show
    match = LABEL.match(text)
    label = match[1] if match else ""
    return Line(number, label, text[match.end() :] if match else text, is_whole)
