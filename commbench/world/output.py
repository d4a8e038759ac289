"""What a person sees of a world: the lines that its ranks print, and a bar that says how far the run is.

A launcher (torchrun, mpirun, srun) may hold back what its ranks print, or mix it with words of its own. Ranks therefore
mark the lines that they print on purpose; whatever arrives without a mark is kept in the run's folder as LOG. Where a
person watches (stderr is a terminal), the parent reads all output of its world from pipes and passes it on, with the
bar always below the last line; rank 0 reports how far the run is, or draws the bar itself where it has no parent.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from commbench.core.case import Case
from commbench.core.columns import UNFINISHED, case_text
from commbench.core.terminal import TERMINAL, Terminal, printable
from commbench.core.units import format_seconds

RELAYED = "COMMBENCH_RELAYED"  # exported to ranks whose output a launcher passes on to their parent
LOG = "launcher.log"
MARKS = {"stdout": b"\x1eo", "stderr": b"\x1ee"}  # record separator: no text holds it (core.terminal.printable)
JOIN_S = 2.0  # for the last lines, where a process that was left behind holds the pipe
PROGRESS = "COMMBENCH_PROGRESS"  # exported by a parent that shows the bar itself
PROGRESS_FILE = ".progress"  # in the run's folder, from rank 0 to its parent; gone after the run
REDRAW_S = 0.25
DRAIN_S = 0.5  # for the last output of a world that has ended
BAR_WIDTH = 10
ERASE = "\r\x1b[2K"


class MarkedLines:
    """A text stream of a rank, whose lines are written whole and with a mark."""

    encoding, errors, newlines = "utf-8", "replace", None

    def __init__(self, stream: TextIO, mark: bytes) -> None:
        self._stream, self._mark, self._begun = stream, mark.decode(), ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._stream.write("".join(f"{self._mark}{line}\n" for line in lines))
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        if self._begun:
            self.write("\n")

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True


def mark_output() -> None:
    """Mark what a rank prints whose parent relays its output; a traceback stays without a mark."""
    if os.environ.pop(RELAYED, None) is None:
        return
    plain = sys.stderr
    streams: dict[str, Any] = {name: MarkedLines(getattr(sys, name), mark) for name, mark in MARKS.items()}
    sys.stdout, sys.stderr = streams["stdout"], streams["stderr"]
    sys.excepthook = lambda *error: traceback.print_exception(*error, file=plain)


class Relay(threading.Thread):
    """Reads a launcher's output to its end."""

    def __init__(self, pipe: IO[bytes], folder: Path) -> None:
        super().__init__(name="commbench-relay", daemon=True)
        self._pipe, self._file = pipe, folder / LOG
        self.start()

    def run(self) -> None:
        marks = {mark: name for name, mark in MARKS.items()}
        with suppress(ValueError):  # closed by `finish`
            for line in self._pipe:
                at = line.find(b"\x1e")
                name = marks.get(line[at : at + 2]) if at >= 0 else None
                if name is None:
                    self._keep(line)
                    continue
                if at > 0:  # a library's text without an end of line
                    self._keep(line[:at] + b"\n")
                with suppress(OSError):  # nobody reads the terminal any more
                    stream = getattr(sys, name)
                    stream.write(line[at + 2 :].decode(errors="replace"))
                    stream.flush()

    def finish(self) -> None:
        """Read the rest after the launcher has ended."""
        self.join(JOIN_S)
        if not self.is_alive():
            self._pipe.close()

    def _keep(self, text: bytes) -> None:
        with suppress(OSError), self._file.open("ab") as file:
            file.write(text)


@dataclass
class State:
    """Cases of a run, how many are finished, which is being measured, and what the last one took.

    `share` of the run is done: a case is measured several times, and finished after its last visit.
    """

    cases: int = 0
    done: int = 0
    share: float = 0.0
    current: str = "starting"
    last: str = ""

    def line(self, elapsed_s: float, width: int) -> str:
        """One line of less than `width` characters."""
        if not self.cases:
            return printable(f"{self.current}  {_clock(elapsed_s)}")[: width - 1]
        bar = "#" * int(BAR_WIDTH * self.share)
        left_s = elapsed_s / self.share - elapsed_s if self.share else 0
        time_text = _clock(elapsed_s) + (f" + {_clock(left_s)}" if left_s else "")
        parts = [f"[{bar:-<{BAR_WIDTH}}] {self.done}/{self.cases}", time_text, self.current]
        parts += [f"last: {self.last}"] if self.last else []
        return printable("  ".join(parts))[: width - 1]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


class Bar:
    """The last line of a terminal; `write` what has to stand above it."""

    def __init__(self, width: int, descriptor: int = 2) -> None:
        self.width, self._descriptor = width, descriptor
        self._drawn = ""
        self._starting, self._begun_s = True, time.monotonic()

    def draw(self, state: State) -> None:
        if state.cases and self._starting:  # what is left is estimated from the cases, without the start
            self._starting, self._begun_s = False, time.monotonic()
        line = state.line(time.monotonic() - self._begun_s, self.width)
        if line != self._drawn:
            self._write(f"{ERASE}{line}")
            self._drawn = line

    def erase(self) -> None:
        if self._drawn:
            self._write(ERASE)
            self._drawn = ""

    def _write(self, text: str) -> None:
        with suppress(OSError):
            os.write(self._descriptor, text.encode(errors="replace"))


def bar_or_none() -> Bar | None:
    """A bar where stderr is a terminal that can erase a line."""
    terminal = Terminal.of(sys.stderr, {name: value for name, value in os.environ.items() if name != TERMINAL})
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    return None if terminal.width is None or dumb else Bar(terminal.width)


def print_error(text: str, below: Sequence[str] = ()) -> None:
    """A line on stderr as commbench's own, and what belongs below it; the terminal may be gone."""
    with suppress(OSError):
        lines = [f"commbench: {printable(text)}", *(f"  {printable(line)}" for line in below)]
        print("\n".join(lines), file=sys.stderr, flush=True)


def drop_unread_output() -> None:
    """Flush before the interpreter ends: output that nobody reads any more must not change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nobody = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nobody, stream.fileno())
            os.close(nobody)


# ---------------------------------------------------------------- on rank 0


class Reporter:
    """Tells how far the run is: the parent, or a terminal, else a line on stderr for each case."""

    def __init__(self) -> None:
        self._state, self._shares = State(), dict[str, float]()  # by case: how much of it is done
        self._file: Path | None = None
        self._bar: Bar | None = None

    def begin(self, run: Mapping[str, Any]) -> None:
        self._state.cases = int(run.get("cases") or 0)
        bound = format_seconds(run.get("at_most_s"))
        cases, launches = f"{self._state.cases} case{'' if self._state.cases == 1 else 's'}", run.get("launches", {})
        if launches.get("planned", 1) > 1:
            cases = f"launch {len(launches['began'])} of {launches['planned']}: {cases}"
        print(printable(f"{cases}, at most {bound}: {run['folder']}"), file=sys.stderr, flush=True)
        if PROGRESS in os.environ:
            self._file = Path(run["folder"]) / PROGRESS_FILE
        else:
            self._bar = bar_or_none()
        self._show()

    def starts(self, case: Case) -> None:
        self._state.current = case_text(vars(case))
        self._show()

    def finished(self, row: Mapping[str, Any]) -> None:
        """A visit of a case has ended."""
        finished, visits = row["stop_reason"] not in UNFINISHED, row.get("visits") or 1
        again = self._shares.get(row["case_id"]) == 1.0  # written with another warning
        self._shares[row["case_id"]] = 1.0 if finished else visits / (visits + 1)
        text, ok = case_text(row), row["status"] == "ok"
        self._state.done = sum(share == 1.0 for share in self._shares.values())
        self._state.share = sum(self._shares.values()) / max(self._state.cases, len(self._shares))
        self._state.last = f"{text} {format_seconds(row['median_s']) if ok else row['status']}"
        if self._file is None and self._bar is None and finished and not again:
            result = format_seconds(row["median_s"]) if ok else f"{row['status']}: {row['reason']}"
            line = f"[{self._state.done}/{self._state.cases}] {text}: {result}"
            print(printable(line).replace("\n", " "), file=sys.stderr, flush=True)
        self._show()

    def end(self) -> None:
        """Remove the bar before anything else is printed."""
        if self._bar is not None:
            self._bar.erase()
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()
            self._file = None

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.draw(self._state)
        if self._file is not None:
            temporary = self._file.with_suffix(".tmp")
            with suppress(OSError):
                temporary.write_text(json.dumps(asdict(self._state)))
                temporary.replace(self._file)


# ---------------------------------------------------------------- in the parent


class Output:
    """While a world runs: where a person watches, stdout and stderr of this process and of what it starts are pipes,
    which a thread copies to the terminal; the bar is always below the last line."""

    def __init__(self, folder: Path, starting: str) -> None:
        self._bar, self._file = bar_or_none(), folder / PROGRESS_FILE
        self._starting, self._ended = State(current=starting), threading.Event()
        self._terminals: dict[int, int] = {}  # 1 and 2 where they are pipes now -> the terminal
        self._pipes: dict[int, int] = {}  # our end of a pipe -> the terminal
        self._thread: threading.Thread | None = None

    def exports(self) -> dict[str, str]:
        """What ranks need to know of the terminal."""
        return {TERMINAL: self._terminal, **({} if self._bar is None else {PROGRESS: "1"})}

    def __enter__(self) -> Output:
        self._terminal = str(Terminal.of(sys.stdout))
        if self._bar is not None:
            sys.stdout.flush()
            for number in (1, 2):
                if os.isatty(number):
                    self._terminals[number] = os.dup(number)
                    ours, theirs = os.pipe()
                    self._pipes[ours] = self._terminals[number]
                    os.dup2(theirs, number)
                    os.close(theirs)
            bar = Bar(self._bar.width, self._terminals[2])
            bar.draw(self._starting)  # at once: imports in this thread may keep the other from drawing for seconds
            self._thread = threading.Thread(target=self._copy_all, args=(bar,), name="output", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Copy what the world has left in the pipes after its end, and erase the bar."""
        if self._thread is None:
            return
        sys.stdout.flush()
        for number, terminal in self._terminals.items():
            os.dup2(terminal, number)
        self._ended.set()
        self._thread.join()
        for descriptor in (*self._terminals.values(), *self._pipes):
            os.close(descriptor)
        with suppress(OSError):
            self._file.unlink()

    def _copy_all(self, bar: Bar) -> None:
        last_s, state = time.monotonic(), self._starting
        unfinished = False  # the last line has no newline yet: no bar in it
        while self._pipes and not (self._ended.is_set() and time.monotonic() - last_s > DRAIN_S):
            ready, _, _ = select.select(list(self._pipes), [], [], 0.05 if self._ended.is_set() else REDRAW_S)
            for descriptor in ready:
                last_s = time.monotonic()
                data = os.read(descriptor, 65536)
                if not data:  # all that had it have ended
                    del self._pipes[descriptor]
                    os.close(descriptor)
                    continue
                bar.erase()
                unfinished = not data.endswith(b"\n")
                with suppress(OSError):
                    while data:
                        data = data[os.write(self._pipes[descriptor], data) :]
            if unfinished or self._ended.is_set():
                continue
            try:
                state = State(**json.loads(self._file.read_text()))
            except (OSError, ValueError, TypeError):
                if state.cases:  # rank 0 has removed it: now it prints, and the bar would stand in between
                    continue
            bar.draw(state)
        bar.erase()
