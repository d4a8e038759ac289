"""What a person sees of a world: the lines that its ranks print, and a bar that says how far the
run is.

A launcher (torchrun, mpirun, srun) may hold back what its ranks print, or mix it with messages of
its own. Ranks therefore mark the lines that they print on purpose, and rank 0 those that say how
far the run is. The parent reads all output of its world from a pipe: it prints the marked lines,
with the bar always below the last one, and keeps the others in the run's folder as LOG. Rank 0
draws the bar itself where it has no parent.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from commbench.core.states import UNFINISHED
from commbench.core.terminal import TERMINAL, Terminal, printable
from commbench.core.texts import span_text
from commbench.core.units import about_duration, format_seconds
from commbench.core.variables import Case
from commbench.results.columns import case_text
from commbench.results.row import Row

from .printing import SafeStream, write_unchanged

RELAYED = "COMMBENCH_RELAYED"  # exported by a parent that reads the output of its ranks
PROGRESS = "COMMBENCH_PROGRESS"  # exported by a parent that shows the bar itself
BUSY = "COMMBENCH_BUSY"  # what the command says of the cores that the ranks share
LOG = "launcher.log"
MOST_LAST_LINES = 40  # of those that are kept for run.json
MARK = b"\x1e"  # record separator: no text holds it (core.terminal.printable)
# what follows MARK
LINE_KINDS = {"stdout": b"o", "stderr": b"e", "progress": b"p", "draft": b"d"}
PIPE_BYTES = 65536  # that a pipe holds
REDRAW_S = 0.25
BAR_WIDTH = 10
LAST = "  last: "
LEAST_LAST = 16  # characters of the last case that say something
ERASE = "\r\x1b[2K"


def relay_marks() -> tuple[bytes, bytes]:
    """The marks of what this process prints on stdout and stderr; empty ones unless a parent reads
    its output."""
    if os.environ.pop(RELAYED, None) is None:
        return b"", b""
    return MARK + LINE_KINDS["stdout"], MARK + LINE_KINDS["stderr"]


@dataclass
class State:
    """How far a run is: it makes passes over its cases, and visits those that are not finished.

    `done` of the `cases` are visited in this pass or finished; `passes` are planned, and more may
    follow. `share` of the run is done.
    """

    cases: int = 0
    done: int = 0
    number: int = 1  # of this pass
    passes: int = 1
    share: float = 0.0
    current: str = "starting"
    last: str = ""

    def line(self, elapsed_s: float, width: int) -> str:
        """One line of less than `width` characters. Where it is too long, the current case goes
        first, then the middle of the last one, then all of it, then the bar."""
        if not self.cases:
            return printable(f"{self.current}  {_clock(elapsed_s)}")[: width - 1]
        bar = f"[{'#' * int(BAR_WIDTH * self.share):-<{BAR_WIDTH}}] "
        left_s = elapsed_s / self.share - elapsed_s if self.share else 0
        clock = _clock(elapsed_s) + (f", about {_clock(left_s)} left" if left_s else "")
        counts = f"{self.pass_text()}{self.done} of {self.cases} cases  {clock}"
        last = printable(self.last)
        whole = f"{bar}{counts}  {printable(self.current)}" + (f"{LAST}{last}" if last else "")
        if len(whole) < width:
            return whole
        room = width - 1 - len(bar) - len(counts)
        if last and room >= len(LAST) + LEAST_LAST:
            return f"{bar}{counts}{LAST}{_without_middle(last, room - len(LAST))}"
        return f"{bar if room >= 0 else ''}{counts}"[: width - 1]

    def pass_text(self) -> str:
        """`pass 2 of 3, `; empty where one is planned."""
        if self.passes == 1:
            return ""
        return f"pass {self.number}{f' of {self.passes}' if self.number <= self.passes else ''}, "


def _without_middle(text: str, width: int) -> str:
    """The text in `width` characters, the last 3 of 4 of them from its end, where the result is."""
    if len(text) <= width:
        return text
    begin = width // 4
    return f"{text[:begin]}..{text[len(text) - (width - begin - 2) :]}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )


class Bar:
    """The last line of a terminal: erase it before another line is printed."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._drawn = ""
        self._starting = True
        self._begun_s = time.monotonic()

    def draw(self, state: State) -> None:
        """Draw it, unless the terminal is stopped."""
        if isinstance(sys.stderr, SafeStream) and not sys.stderr.catches_up():
            return
        # what is left is estimated from the cases, without the start
        if state.cases and self._starting:
            self._starting = False
            self._begun_s = time.monotonic()
        line = state.line(time.monotonic() - self._begun_s, self._width)
        if line != self._drawn:
            self._write(f"{ERASE}{line}")
            self._drawn = line

    def erase(self) -> None:
        if self._drawn:
            self._write(ERASE)
            self._drawn = ""

    def erase_above(self, lines: int) -> None:
        """Erase so many lines above, and what is below them."""
        self._write(f"\x1b[{lines}A\r\x1b[J")

    def height(self) -> int:
        """The lines of the terminal; 0 where it has gone."""
        try:
            return os.get_terminal_size(sys.stderr.fileno()).lines
        except OSError:
            return 0

    def _write(self, text: str) -> None:
        write_unchanged(sys.stderr, text)
        sys.stderr.flush()


def bar_or_none() -> Bar | None:
    """A bar where stderr is a terminal that can erase a line."""
    terminal = Terminal.of(
        sys.stderr, {name: value for name, value in os.environ.items() if name != TERMINAL}
    )
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    return None if terminal.width is None or dumb else Bar(terminal.width)


# ---------------------------------------------------------------- on rank 0


def print_draft(text: str) -> None:
    """Have the parent show lines that it erases once this rank prints its results; nothing where no
    parent shows a bar."""
    _send_to_parent("draft", text.split("\n"))


def _send_to_parent(kind: str, value: Any) -> None:
    """Send it to a parent that shows a bar."""
    if PROGRESS in os.environ and isinstance(sys.stderr, SafeStream):
        line = json.dumps(value).encode()
        sys.stderr.write_bytes(MARK + LINE_KINDS[kind] + line + b"\n")


class Reporter:
    """Reports how far the run is: to a parent that shows the bar, else in its own bar, else in a
    line per case and one per pass."""

    def __init__(self) -> None:
        self._state = State()
        self._finished = dict[str, int | None]()  # visits of each such case
        self._unfinished = dict[str, int]()  # visits of each case that has been begun
        self._left = Counter[int]()  # these cases by their visits
        self._has_parent = PROGRESS in os.environ
        self._bar: Bar | None = None
        self._pass_begun_s = time.monotonic()

    def begin(self, run: Mapping[str, Any]) -> None:
        self._state.cases = int(run.get("cases") or 0)
        timing = run.get("config", {}).get("timing", {})
        self._state.passes = int(timing.get("visits") or 1)
        bound = about_duration(run["at_most_s"])
        cases = f"{self._state.cases} case{'' if self._state.cases == 1 else 's'}"
        launches = run.get("launches", {})
        if launches.get("planned", 1) > 1:
            cases = f"launch {len(launches['began'])} of {launches['planned']}: {cases}"
        # how long so many repetitions take is not known yet
        word = "up to about" if timing.get("repetitions") else "about"
        texts = filter(None, (f"{word} {bound}", os.environ.get(BUSY)))
        line = f"{cases}, {', '.join(texts)}: {run['folder']}"
        print(printable(line), file=sys.stderr, flush=True)
        self._bar = None if self._has_parent else bar_or_none()
        self._pass_begun_s = time.monotonic()
        self._show()

    def plan_more(self, cases: int) -> None:
        """The run has so many cases now."""
        self._state.cases = cases

    def starts(self, case: Case) -> None:
        self._state.current = case_text(case)
        self._show()

    def finished(self, rows: Sequence[Row]) -> None:
        """A visit of a case has ended; a round of pairs and nodes at once have several rows."""
        ended = []
        for row in rows:
            case_id = row.case_id
            if case_id in self._unfinished:
                self._left -= Counter([self._unfinished.pop(case_id)])  # drops counts of 0
            if row.stop_reason in UNFINISHED:
                self._finished.pop(case_id, None)
                visits = row.visits or 1
                self._unfinished[case_id] = visits
                self._left[visits] += 1
                continue
            # with as many visits as before only a warning is new
            if row.visits != self._finished.get(case_id):
                ended.append(row)
            self._finished[case_id] = row.visits
        self._count()
        slowest = max(rows, key=lambda row: row.median_s or 0.0)
        number = format_seconds(slowest.median_s)
        result = number if slowest.status == "ok" else slowest.status
        self._state.last = f"{case_text(slowest)} {result}"
        if ended and not self._has_parent and self._bar is None:
            line = f"[{len(self._finished)}/{self._state.cases}] {_ended_text(ended)}"
            print(printable(line).replace("\n", " "), file=sys.stderr, flush=True)
        self._show()

    def _count(self) -> None:
        """Find which pass this is, how many cases it has visited, and the share that is done."""
        state = self._state
        left = self._left
        begun = len(self._finished) + len(self._unfinished)
        cases = max(state.cases, begun)
        before = state.number
        if begun < cases:
            state.number = 1
            state.done = begun
        else:
            # a case that is in no pass any more is finished
            state.number = min(left, default=before - 1) + 1
            state.done = cases - left[state.number - 1]
        missing = sum(count / (visits + 1) for visits, count in left.items())
        state.share = (begun - missing) / cases
        if state.number > before and left and state.passes > 1:
            self._print_pass(before)

    def _print_pass(self, number: int) -> None:
        """In a file, say that a pass is over."""
        now_s = time.monotonic()
        if not self._has_parent and self._bar is None:
            of_all = f" of {self._state.passes}" if number <= self._state.passes else ""
            spent = format_seconds(now_s - self._pass_begun_s)
            left = len(self._unfinished)
            rest = f"{left} of {left + len(self._finished)} cases are measured again"
            print(f"pass {number}{of_all}: {spent}; {rest}", file=sys.stderr, flush=True)
        self._pass_begun_s = now_s

    def end(self) -> None:
        """Remove the bar before anything else is printed."""
        if self._bar is not None:
            self._bar.erase()
        _send_to_parent("progress", None)

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.draw(self._state)
        _send_to_parent("progress", asdict(self._state))


def _ended_text(rows: Sequence[Row]) -> str:
    """A case and its result; of rows that were measured at once how many there are, the fastest and
    the slowest."""
    failed = next((row for row in rows if row.status != "ok"), None)
    first = failed or rows[0]
    if failed is not None:
        result = f"{first.status}: {first.reason}"
    else:
        result = span_text([row.median_s or 0.0 for row in rows], format_seconds)
    rest = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{case_text(first)}{rest}: {result}"


# ---------------------------------------------------------------- in the parent


class Output:
    """What a world writes to `write_end`: a thread prints it, with the bar always below the last
    line.

    Lines without a mark are kept in the file `log`, or go to stderr where there is none.
    """

    def __init__(self, starting: str, log: Path | None) -> None:
        self._bar = bar_or_none()
        self._log = log
        self._ended = threading.Event()
        self._state: State | None = State(current=starting)  # None while rank 0 prints results
        self._draft_lines = 0  # of a draft that nothing has been printed below
        # lines without a mark since the last one with a mark: what libraries print at their end
        self.last_lines = deque[str](maxlen=MOST_LAST_LINES)
        self._read_end, self.write_end = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="commbench-output", daemon=True)

    def exports(self) -> dict[str, str]:
        """What ranks need to know of their output."""
        return {
            TERMINAL: str(Terminal.of(sys.stdout)),
            RELAYED: "1",
            **({PROGRESS: "1"} if self._bar else {}),
        }

    def __enter__(self) -> Output:
        self._draw()  # at once: imports in this thread may keep the other from drawing for seconds
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Print what the world has left in the pipe, and erase the bar."""
        os.close(self.write_end)
        self._ended.set()
        self._thread.join()
        os.close(self._read_end)

    def _copy(self) -> None:
        begun = b""
        poll = select.poll()  # select refuses descriptors above 1023
        poll.register(self._read_end, select.POLLIN)
        left_bytes = PIPE_BYTES  # to read once the world has ended
        while left_bytes > 0:
            ended = self._ended.is_set()
            if poll.poll(1000 * REDRAW_S):
                data = os.read(self._read_end, PIPE_BYTES)
                if not data:  # all processes that had the pipe have ended
                    break
                # a process that was left behind may never stop writing
                left_bytes -= len(data) if ended else 0
                *lines, begun = (begun + data).split(b"\n")
                for line in lines:
                    self._take(line)
            elif ended:  # a process that was left behind holds the pipe
                break
            self._draw()
        if begun:
            self._take(begun)
        if self._bar is not None:
            self._bar.erase()

    def _take(self, line: bytes) -> None:
        """Print or keep a line, or take the progress that it reports."""
        unmarked, mark, text = line.partition(MARK)
        if unmarked or not mark:  # also a library's text without an end of line
            self._keep(unmarked)
        kind = text[:1]
        text = text[1:]
        if kind == LINE_KINDS["progress"]:
            with suppress(ValueError, TypeError):  # of a rank that was killed while it wrote
                values = json.loads(text)
                self._state = None if values is None else State(**values)
        elif kind == LINE_KINDS["draft"]:
            with suppress(ValueError, TypeError):
                self._show_draft(json.loads(text))
        elif mark:
            self.last_lines.clear()
            self._print(sys.stdout if kind == LINE_KINDS["stdout"] else sys.stderr, text)

    def _show_draft(self, lines: Sequence[str]) -> None:
        """Print lines that can be erased: where the terminal has room for all of them."""
        if self._bar is None or len(lines) >= self._bar.height():
            return
        for line in lines:
            self._print(sys.stderr, line.encode())
        self._draft_lines = len(lines)

    def _erase_draft(self) -> None:
        """Erase a draft that the results replace; one with other text below it stays."""
        if self._bar is not None and self._draft_lines and self._state is None:
            self._bar.erase_above(self._draft_lines)
        self._draft_lines = 0

    def _keep(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            self.last_lines.append(printable(text))
        if self._log is None:
            self._print(sys.stderr, line)
            return
        with suppress(OSError), self._log.open("ab") as file:
            file.write(line + b"\n")

    def _print(self, stream: TextIO, line: bytes) -> None:
        if self._bar is not None:
            self._bar.erase()
        self._erase_draft()
        # nobody reads the terminal any more, or its encoding lacks a letter
        with suppress(OSError, ValueError):
            stream.write(line.decode(errors="replace") + "\n")
            stream.flush()

    def _draw(self) -> None:
        if self._bar is not None and self._state is not None:
            self._bar.draw(self._state)
