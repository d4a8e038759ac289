"""The bar below a run's output: what it says, and that no other text is lost or overwritten."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import in_terminal
from sample_cases import case_row

from commbench.results.row import Row
from commbench.runtime.output import ERASE, LOG, PROGRESS, Reporter, State

BAR = "[#####-----] 2 of 4 cases"


def on_a_terminal(script: str, columns: int = 100, **environ: str) -> str:
    """What a terminal receives from a Python script."""
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **environ}
    return in_terminal([sys.executable, "-c", script], columns, env)[1]


def visible(text: str) -> list[str]:
    """The lines that stay on the terminal."""
    return [line.rpartition(ERASE)[2] for line in text.split("\n")]


@pytest.mark.parametrize(
    ("width", "end"),
    [
        (20, "2 of 4 cases  1:15,"),
        (50, f"{BAR}  1:15, about 1:15 left"),
        (78, "  last: p2p_l..-1 8 B 52.5 us"),
        (95, "  last: p2p_latency 1x2 0-1 8 B 52.5 us"),
        (200, "  all_reduce 1x2 1 MiB  last: p2p_latency 1x2 0-1 8 B 52.5 us"),
    ],
)
def test_the_progress_line_shortens_its_middle_first(width: int, end: str) -> None:
    state = State(
        cases=4,
        done=2,
        share=0.5,
        current="all_reduce 1x2 1 MiB",
        last="p2p_latency 1x2 0-1 8 B 52.5 us",
    )
    line = state.line(75.0, width)
    assert len(line) < width
    assert line.endswith(end)
    assert ("all_reduce" in line) == (width > 95)


def test_a_line_counts_the_cases_of_each_pass() -> None:
    state = State(cases=4, done=1, number=2, passes=3)
    assert "] pass 2 of 3, 1 of 4 cases  0:00" in state.line(0.0, 80)
    assert "] pass 4, 1 of 4 cases  0:00" in replace(state, number=4).line(0.0, 80), (
        "more than planned"
    )


def test_before_the_first_case_it_says_what_is_started() -> None:
    assert State(current="starting 2 ranks of mpi").line(3.0, 80) == "starting 2 ranks of mpi  0:03"


CHILD = """
import subprocess, sys, time
from commbench.results.row import Measured
from commbench.runtime.output import Reporter, relay_marks
from commbench.runtime.printing import print_safely
safely = print_safely(relay_marks())
safely.__enter__()
reporter = Reporter()
reporter.begin({"cases": 4, "at_most_s": 2.0, "folder": "/results"})
for number in (1, 2):
    case = {"benchmark": "barrier", "backend": "gloo", "layout": "1x2", "engine": "python",
            "message_bytes": 0, "elements": 0, "cache": "warm", "sync": "none", "timing": "quick"}
    result = {"median_s": 5e-6, "visits": 1, "stop_reason": "ci"}
    reporter.finished([Measured(case_id=str(number), **case, **result)])
time.sleep(0.6)
print("no end of line", end="")
subprocess.run(["printf", "of a library\\nwithout an end"])
time.sleep(0.6)
print(" until now, \\u00b5s")
reporter.end()
time.sleep(0.4)
print("table\\nlast line", file=sys.stderr)
safely.__exit__(None, None, None)
"""
PARENT = """
import os, subprocess, sys, time
from pathlib import Path
from commbench.runtime.output import Output
sys.stdout.reconfigure(errors="backslashreplace")  # as the command line does
log = Path({log!r}) if {log!r} else None
output = Output("starting 2 ranks", log)
print(sorted(output.exports().items()), flush=True)
with output:
    time.sleep(0.6)
    end = output.write_end
    environment = os.environ | output.exports()
    subprocess.run([sys.executable, "-c", {child!r}], stdout=end, stderr=end, env=environment)
print("after")
"""


def parent_script(log: object = "") -> str:
    return PARENT.replace("{log!r}", repr(str(log))).replace("{child!r}", repr(CHILD))


PRINTED = [
    "of a library",
    "without an end",
    "no end of line until now, \xb5s",
    "table",
    "last line",
    "after",
]


def test_the_bar_stands_below_all_text_and_erases_nothing_else() -> None:
    text = on_a_terminal(parent_script())
    exports = (
        "[('COMMBENCH_PROGRESS', '1'), ('COMMBENCH_RELAYED', '1'), ('COMMBENCH_TERMINAL',"
        " '100,color')]"
    )
    assert visible(text)[:8] == [exports, "4 cases, about 2.00 s: /results", *PRINTED]
    assert (
        "starting 2 ranks  0:00" in text
        and "[#####-----] 2 of 4" in text
        and "last: barrier 1x2 5.00 us" in text
    )


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}], ids=["dumb"])
def test_there_is_no_bar_where_no_line_can_be_erased(environ: dict[str, str]) -> None:
    text = on_a_terminal(parent_script(), **environ)
    assert "\x1b" not in text and "starting" not in text and "last line\nafter\n" in text


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_what_a_launcher_adds_is_kept_in_the_runs_folder(tmp_path: Path, locale: str) -> None:
    environ = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", parent_script(tmp_path / LOG).replace("time.sleep(0.6)", "")]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert "COMMBENCH_PROGRESS" not in done.stdout and "('COMMBENCH_TERMINAL', '')" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr and "starting" not in done.stdout + done.stderr
    assert (tmp_path / LOG).read_text() == "of a library\nwithout an end\n"
    assert done.stderr.splitlines()[1:] == [
        "[1/4] barrier 1x2: 5.00 us",
        "[2/4] barrier 1x2: 5.00 us",
        *PRINTED[3:5],
    ]
    printed = PRINTED[2].replace("\xb5", "\\xb5") if locale == "C" else PRINTED[2]
    assert done.stdout.splitlines()[1:] == [printed, "after"]


MANY_FILES = """
import os, resource
from commbench.runtime.output import Output
resource.setrlimit(resource.RLIMIT_NOFILE, (1200, 1200))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
with Output("starting", None) as output:
    os.write(output.write_end, b"a line\\n")
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1200, reason="so many files are not allowed"
)
def test_output_is_read_in_a_process_with_many_open_files() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_FILES], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == "a line\n"


LEFT_BEHIND = """
import subprocess
from commbench.runtime.output import Output
with Output("starting", None) as output:
    left_behind = subprocess.Popen(["yes"], stdout=output.write_end)
left_behind.kill()
left_behind.wait()
"""


def test_a_process_that_is_left_behind_and_goes_on_writing_does_not_keep_the_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, timeout=30, check=True
    )
    assert set(done.stderr.split()) == {"y"}


def barrier_row(**values: Any) -> Row:
    """A visit that took 2 us."""
    names = {"case_id": "a", "benchmark": "barrier", "layout": "1x2", "message_bytes": 0}
    return case_row(**names | {"status": "ok", "median_s": 2e-6} | values)


def test_a_case_is_finished_after_its_last_visit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(PROGRESS, raising=False)
    reporter = Reporter()
    reporter.begin({"cases": 1, "at_most_s": 2.0, "folder": str(tmp_path)})
    for visits, reason in ((1, "interrupted"), (2, "interrupted"), (3, "ci")):
        reporter.finished([barrier_row(visits=visits, stop_reason=reason)])
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"1 case, about 2.00 s: {tmp_path}", "[1/1] barrier 1x2: 2.00 us"]


def test_a_case_that_is_visited_again_has_another_line_but_a_new_warning_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in further rounds of a search, where the same pairs meet again."""
    monkeypatch.delenv(PROGRESS, raising=False)
    reporter = Reporter()
    reporter.begin({"cases": 1, "at_most_s": 2.0, "folder": str(tmp_path)})
    for visits in (1, 1, 2):
        reporter.finished([barrier_row(visits=visits, stop_reason="ci")])
    assert capsys.readouterr().err.splitlines()[1:] == ["[1/1] barrier 1x2: 2.00 us"] * 2


def test_passes_and_their_cases_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two cases, three passes: the second case is finished after two."""
    monkeypatch.delenv(PROGRESS, raising=False)
    monkeypatch.setattr("commbench.runtime.output.time.monotonic", lambda: 0.0)
    reporter = Reporter()
    timing = {"timing": {"visits": 3}}
    reporter.begin({"cases": 2, "at_most_s": 2.0, "folder": str(tmp_path), "config": timing})
    shown = []
    visits = [("a", 1, ""), ("b", 1, ""), ("b", 2, "ci"), ("a", 2, ""), ("a", 3, "ci")]
    for case_id, number, reason in visits:
        names = {"case_id": case_id, "benchmark": case_id, "message_bytes": 8}
        reason = reason or "interrupted"
        reporter.finished([barrier_row(**names, visits=number, stop_reason=reason)])
        state = reporter._state
        shown.append((state.number, state.done))
    assert shown == [(1, 1), (2, 0), (2, 1), (3, 1), (3, 2)]
    assert capsys.readouterr().err.splitlines()[1:] == [
        "pass 1 of 3: 0 ns; 2 of 2 cases are measured again",
        "[1/2] b 1x2 8 B: 2.00 us",
        "pass 2 of 3: 0 ns; 1 of 2 cases are measured again",
        "[2/2] a 1x2 8 B: 2.00 us",
    ]


def test_a_visit_costs_the_same_among_many_cases(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PROGRESS, "1")
    row = barrier_row(visits=1, stop_reason="interrupted")

    def visit_s(cases: int) -> float:
        reporter = Reporter()
        reporter.begin({"cases": cases, "at_most_s": 2.0, "folder": str(tmp_path)})
        rows = [replace(row, case_id=str(case)) for case in range(cases)]
        for each in rows[:-500]:
            reporter.finished([each])
        begun_s = time.process_time()
        for each in rows[-500:]:
            reporter.finished([each])
        return time.process_time() - begun_s

    assert visit_s(8000) < 4 * min(visit_s(500) for _ in range(3))


DRAFT = r"""
import sys, time
from commbench.runtime.output import Reporter, print_draft, relay_marks
from commbench.runtime.printing import print_safely
safely = print_safely(relay_marks())
safely.__enter__()
reporter = Reporter()
reporter.begin({"cases": 1, "at_most_s": 2.0, "folder": "/results"})
print_draft("a draft\nof two lines")
if sys.argv[1:]:
    print("a warning", file=sys.stderr)
reporter.end()
print("the table")
safely.__exit__(None, None, None)
"""


@pytest.mark.parametrize(
    ("script", "erased"), [(DRAFT, True), (DRAFT.replace("sys.argv[1:]", "True"), False)]
)
def test_a_draft_is_replaced_by_the_results_unless_other_text_stands_below_it(
    script: str, erased: bool
) -> None:
    parent = PARENT.replace("{log!r}", "''").replace("{child!r}", repr(script))
    text = on_a_terminal(parent)
    assert "a draft\nof two lines\n" in text.replace(ERASE, "")
    assert ("\x1b[2A\r\x1b[J" in text) is erased
    assert [line.rpartition("\x1b[J")[2] for line in visible(text)[-3:-1]] == ["the table", "after"]
