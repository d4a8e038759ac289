"""nccl-tests' text, 2.10 to 2.19: the columns of its table are those that its head names."""

from __future__ import annotations

import re
from typing import ClassVar

from commbench.features.other_tools.experiment import Experiment, Problems, RankPlace
from commbench.features.other_tools.printed import Printed
from commbench.features.other_tools.text_lines import Line

from .nccl_tests import Half, Program, library_text, table_line

VERSION = re.compile(r"#\s*nccl-tests version (\S+)(?:.*nccl-library=([0-9]{1,9}))?")
LOGGED_VERSION = re.compile(r"NCCL version ([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})")
STARTING = re.compile(r"#\s*Collective test starting: (\S+)")
CONCLUDED = re.compile(r"#\s*(?:Avg bus bandwidth|Collective test concluded)")
SETTINGS = re.compile(r"#\s*nThread [0-9]")
SETTING = re.compile(
    r"(nThread|nGpus|minBytes|maxBytes|warmup iters|agg iters|iters|validation|graph|unalign):?"
    r" ([0-9]{1,18})"
)
RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,7})\s+(?:Group\s+([0-9]{1,7})\s+)?Pid\s+[0-9]+\s+on\s+(\S+)\s+device"
    r"\s+[0-9]+\s+\[[^\]]*\]\s*(.*)"
)
CUT_RANKS = re.compile(r"(?:#.*)?\.\.\.$")
HEAD = re.compile(r"#\s+size\s+count\s+type\s")
ABOVE_HEAD = re.compile(r"#\s+(?:out-of-place|in-place)")
BLOCKING = re.compile(r"#\s*Blocking Enabled: (.*)")
OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*([0-9]{1,18})")
NAMED = re.compile(
    r"(?<![A-Za-z])((?:all_reduce|all_gather|alltoallv?|broadcast|gather|hypercube|reduce"
    r"|reduce_scatter|scatter|sendrecv)_perf)(?![A-Za-z])"
)
TIMES = ("time", "cputime")
WRONG = "#wrong"
DEVIATION = "error"
NO_HALF = re.compile(r"\s*\S+(?:\s+\S+){2,4}\s{30}")  # where times out of place would stand
NOT_CHECKED = "N/A"
CALLS = {"i_min": "min_s", "i_max": "max_s", "i_p99": "p99_s"}
US = 1e-6


class NcclTestsText:
    """Each label of a launcher has a program of its own: without MPI each rank runs alone."""

    form: ClassVar[str] = "the text of nccl-tests"

    def __init__(self, name: str, problems: Problems) -> None:
        named = NAMED.search(name.rpartition("/")[2])
        self._by_name = named[1] if named else None
        self._problems = problems
        self._open: dict[str, _Reading] = {}
        self._done: list[_Reading] = []
        self._command: str | None = None  # the last one that a shell has printed
        self._library: str | None = None

    def add(self, line: Line) -> None:
        text = line.text
        if text.startswith("#") or line.label in self._open:
            self._of_program(line)
        elif named := NAMED.search(text):
            self._command = named[1]
        if logged := LOGGED_VERSION.search(text):
            self._library = f"NCCL {logged[1]}"
            if line.label in self._open:
                self._open[line.label].program.library = self._library

    def _of_program(self, line: Line) -> None:
        text = line.text
        reading = self._open.get(line.label)
        begins = VERSION.match(text) or STARTING.match(text) or SETTINGS.match(text)
        if begins and (reading is None or reading.has_begun(text)):
            reading = self._begin(line.label)
        if reading is None:
            return
        if not text.startswith("#") and (named := NAMED.search(text)):
            self._command = named[1]
        reading.add(line, self._problems)

    def _begin(self, label: str) -> _Reading:
        reading = _Reading(Program(library=self._library))
        self._done.append(reading)
        reading.named = self._command
        self._command = None
        self._open[label] = reading
        return reading

    def end(self) -> list[Experiment]:
        experiments = []
        for reading in self._done:
            program = reading.program
            program.program = program.program or reading.named or self._by_name
            if not program.lines:
                continue
            experiment = program.experiment()
            if isinstance(experiment, str):
                self._problems.add(experiment, program.lines[0].number)
            else:
                experiments.append(experiment)
        return experiments


class _Reading:
    """One start of a program, line by line. `named`: its name by the command that started it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.named: str | None = None
        self._columns: list[str] = []
        self._is_in_place_alone = False

    def has_begun(self, text: str) -> bool:
        """Whether such a line can't be of this start any more."""
        program = self.program
        if VERSION.match(text):
            return bool(program.version or program.settings)
        if STARTING.match(text):
            return bool(program.program or program.settings)
        return bool(program.settings)

    def add(self, line: Line, problems: Problems) -> None:
        text = line.text
        if text.startswith("#"):
            self._comment(text)
        elif self._columns and text.lstrip()[:1].isdigit():
            try:
                self._row(line)
            except (ValueError, KeyError, OverflowError):
                problems.add(f"not a line of the table: {text.strip():.60}", line.number)

    def _comment(self, text: str) -> None:
        program = self.program
        if match := VERSION.match(text):
            program.version = match[1]
            program.library = library_text(int(match[2] or 0)) or program.library
        elif match := STARTING.match(text):
            program.program = match[1].rpartition("/")[2]
        elif SETTINGS.match(text):
            program.settings = {name: int(value) for name, value in SETTING.findall(text)}
        elif match := RANK.match(text):
            rank, group, host, gpu = match.groups()
            program.places.append(RankPlace(int(rank), host, gpu.strip() or None, int(group or 0)))
        elif HEAD.match(text):
            self._columns = text.lstrip("# ").split()
        elif ABOVE_HEAD.match(text):
            self._is_in_place_alone = "out-of-place" not in text
        elif match := BLOCKING.match(text):
            program.blocking = match[1].strip()
        elif match := OUT_OF_BOUNDS.match(text):
            program.out_of_bounds = int(match[1])
        elif CONCLUDED.match(text):
            program.is_complete = True
            self._columns = []
        elif program.places and CUT_RANKS.match(text):
            program.are_places_cut = True

    def _row(self, line: Line) -> None:
        """Raises ValueError and KeyError."""
        names = [name for name in self._columns if name != "timestamp"]
        starts = [at for at, name in enumerate(names) if name in TIMES]
        tokens = line.text.split()
        first = names[: starts[0]] if starts else names
        halves = [names[at:to] for at, to in zip(starts, [*starts[1:], len(names)], strict=True)]
        has_stamp = len(names) < len(self._columns)
        rest = tokens[len(first) :]
        rest = rest[:-2] if has_stamp and len(rest) > 2 and ":" in rest[-1] else rest
        if not halves or len(rest) not in (sum(map(len, halves)), len(halves[-1])):
            raise ValueError("another number of columns")
        is_alone = len(rest) == len(halves[-1]) and len(halves) > 1
        if is_alone and not NO_HALF.match(line.text):
            raise ValueError("its end is missing")
        shown = halves[-1:] if is_alone else halves
        read = []
        for number, columns in enumerate(shown):
            own = dict(zip(columns, rest, strict=False))
            rest = rest[len(columns) :]
            in_place = is_alone or number == 1 or self._is_in_place_alone
            read.append(_half(own, in_place))
        values = dict(zip(first, tokens, strict=False))
        self.program.lines.append(table_line(line.number, values, read))


def _half(texts: dict[str, str], in_place: bool) -> Half:
    """Raises ValueError and KeyError."""
    time = next(texts[name] for name in TIMES if name in texts)
    wrong = texts.get(WRONG, NOT_CHECKED)
    deviation = texts.get(DEVIATION, NOT_CHECKED)
    calls = {
        column: Printed.parse(texts[name]).value * US
        for name, column in CALLS.items()
        if name in texts
    }
    return Half(
        in_place,
        Printed.parse(time).times(US),
        Printed.parse(texts["algbw"]),
        Printed.parse(texts["busbw"]),
        None if wrong == NOT_CHECKED else int(Printed.parse(wrong).value),
        0.0 if deviation == NOT_CHECKED else Printed.parse(deviation).value,
        calls,
    )
