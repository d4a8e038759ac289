"""A job's log: the text of any of the programs that print tables, several of them one after the
other, and the lines of launchers and libraries between them."""

from __future__ import annotations

from commbench.features.other_tools.experiment import FileContent, Problems
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import NotRecognised
from commbench.features.other_tools.text_lines import text_lines

from .all_reduce_bench import AllReduceBench
from .nccl_tests_text import NcclTestsText
from .osu_text import OsuText
from .protocol import LogParser

PARSERS: tuple[type[LogParser], ...] = (NcclTestsText, OsuText, AllReduceBench)
NO_FORMAT = "no results that commbench knows"


class TextLog:
    """The last reader: it takes any text."""

    form = ", ".join(parser.form for parser in PARSERS)

    def recognises(self, file: ForeignFile) -> bool:
        return bool(file.head.strip()) and b"\0" not in file.head

    def read(self, file: ForeignFile) -> FileContent:
        problems = Problems()
        parsers = [parser(file.name, problems) for parser in PARSERS]
        for line in text_lines(file):
            for parser in parsers:
                parser.add(line)
        experiments = [experiment for parser in parsers for experiment in parser.end()]
        if not experiments and not problems.count:
            raise NotRecognised(NO_FORMAT)
        return FileContent(experiments, problems)
