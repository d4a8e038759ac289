"""Whether a combination ended as it must, and its row of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from combination import CAUSES, FINISHED, FULL_STDOUT, OUTPUT, PARENT, RENAMED, SIGNALS, Combination
from scene import Scene

from commbench.core.errors import CommbenchError
from commbench.results.load import find_runs, read_rows

PREFIX = "commbench: "
PROGRESS = re.compile(r"(launch \d+ of \d+: )?\d+ cases?, (?:about|up to about) |\[\d+/\d+\] ")
# a rank with its host, or a launcher
NAMED = re.compile(r"ranks? [\d, ]+ (on|at|did)|(server|torchrun|mpirun) \(pid")
PATH = re.compile(
    r"; (finished cases are in|the launcher's own messages are in|finish it with: commbench resume)"
    r" [^\s;]+"
)
# messages of torchrun, prterun and hydra about a rank that was ended by a signal
LAUNCHERS = re.compile(
    r"prun:\S+|prterun:\S+|rank\s+: \d+ \(local_rank|with PID \d+ on node|RUNNING AT \w+|exited on"
    r" signal"
)
SHORT = 240  # characters of a message in the table


@dataclass(frozen=True)
class Verdict:
    """`lost`: finished cases that are missing from the results; `wrong`: everything that is not as
    it must be."""

    combination: Combination
    times: int
    finished: int
    lost: int
    seconds: float
    whole_s: float
    status: int | str | None
    message: str
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        end = f"exit {self.status}, gone after {self.seconds:.1f} s, all of it {self.whole_s:.0f} s"
        return (
            f"{'BAD' if self.wrong else 'ok '} {self.combination!s:58} {end} "
            f" {self.message[:SHORT]}"
        )


def judge(scene: Scene) -> Verdict:
    combination = scene.combination
    status_of = _statuses(scene)
    ended = scene.sizes[: combination.finished]
    lost = [size for size in ended if status_of.get(size) != "ok"]
    seconds = _seconds(scene)
    message = _message(scene)
    wrong = [f"lost: {size} B is {status_of.get(size, 'nowhere')}" for size in lost]
    wrong += (
        _wrong_end(scene, seconds) + _wrong_words(scene, message) + _wrong_rest(scene, status_of)
    )
    wrong += [f"left over: {what}" for what in scene.left if not combination.library_leaves(what)]
    whole_s = scene.ended - scene.begun
    status = "launcher waits" if scene.stays else scene.status
    return Verdict(
        combination,
        len(scene.marks),
        len(ended),
        len(lost),
        seconds,
        whole_s,
        status,
        message,
        wrong,
    )


def _statuses(scene: Scene) -> dict[int, str]:
    """The status of each case by its message size in bytes."""
    if not find_runs(scene.output):
        return {}
    try:
        cases = read_rows([scene.output])
    except CommbenchError:  # a folder without any row yet
        return {}
    return dict(zip(cases.message_bytes.astype(int), cases.status.astype(str), strict=True))


def _seconds(scene: Scene) -> float:
    """Seconds from the fault until its world was gone: a fresh one is announced, or the command
    ends."""
    longest = 0.0
    for mark in scene.marks:
        announced = [at for at, line in scene.lines if at > mark and "fresh ranks measure" in line]
        longest = max(longest, min([*announced, scene.ended]) - mark)
    return longest


def _message(scene: Scene) -> str:
    """The first line that names a rank and its host, or the case, else the first line of commbench.

    If a launcher that was started by hand ended all ranks before one could print a line, it is the
    launcher's line.
    """
    after = [PATH.sub("", line) for at, line in scene.lines if scene.marks and at >= scene.marks[0]]
    messages = [line.removeprefix(PREFIX) for line in after if line.startswith(PREFIX)]
    theirs = (
        []
        if scene.combination.own
        else [*after, *(line.strip(" =|") for line in scene.stdout.splitlines())]
    )
    launchers = [f"(launcher) {line}" for line in theirs if LAUNCHERS.search(line)]
    return next(
        (line for line in messages if NAMED.search(line)), next(iter([*messages, *launchers]), "")
    )


def _wrong_end(scene: Scene, seconds: float) -> list[str]:
    combination = scene.combination
    wrong = []
    if len(scene.marks) != combination.times:
        wrong.append(f"happened {len(scene.marks)} times, planned were {combination.times}")
    if scene.status is None and not scene.stays:
        wrong.append("did not end by itself")
    elif not scene.stays and scene.status not in combination.statuses:
        wrong.append(
            f"exit status {scene.status}, allowed are {combination.statuses[0]} .."
            f" {combination.statuses[-1]}"
        )
    # the case goes on
    goes_on = not combination.ends_world or combination.fault == RENAMED
    if seconds > combination.bound_s and not goes_on:
        wrong.append(f"took {seconds:.1f} s, allowed {combination.bound_s:g} s")
    return wrong


def _wrong_words(scene: Scene, message: str) -> list[str]:
    combination = scene.combination
    wrong = []
    if (
        not combination.silent
        and not NAMED.search(message)
        and (combination.own or not LAUNCHERS.search(message))
    ):
        wrong.append("no line names a rank and its host, or its launcher")
    if (
        combination.own
        and not combination.silent
        and re.search(CAUSES[combination.fault], message) is None
    ):
        wrong.append(f"the line does not say {CAUSES[combination.fault]!r}")
    if (
        combination.fault in SIGNALS
        and combination.fault != "SIGHUP"
        and str(scene.output) not in scene.stderr + scene.stdout
    ):
        wrong.append("no line names the folder of the results")
    if "Traceback" in scene.stderr and "commbench/" in scene.stderr:
        wrong.append("a traceback")
    return wrong + (
        _wrong_lines(scene)
        if combination.own and combination.fault not in ("SIGHUP", *PARENT)
        else []
    )


def _wrong_lines(scene: Scene) -> list[str]:
    """Where commbench is the parent: one line for each fault, nothing else but the progress, and
    the results' place."""
    combination = scene.combination
    wrong = []
    lines = [line for _, line in scene.lines if line and not PROGRESS.match(line)]
    messages = [line for line in lines if line.startswith(PREFIX)]
    wrong += [f"stderr also says {line[:80]!r}" for line in lines if line not in messages]
    if combination.fault in SIGNALS:
        expected = 1
        if not any(
            "commbench resume" in line or "before anything was measured" in line
            for line in messages
        ):
            wrong.append("no line says how to resume")
    elif combination.fault == RENAMED:
        expected = 3  # it can't be written, where the results are, it is gone
        if not any("is gone: it was removed or renamed" in line for line in messages):
            wrong.append("no line says that the folder is gone")
    else:
        says_nothing = not combination.ends_world and combination.fault != FULL_STDOUT
        expected = 0 if says_nothing else combination.times
    closes = combination.phase == "closing"  # the run may be over, then there is nothing to say
    if len(messages) > expected or (len(messages) < expected and not closes):
        wrong.append(f"{len(messages)} lines of commbench, must be {expected}")
    named = "\n".join([*messages, scene.stdout])
    lost_text = combination.fault in OUTPUT  # the line with the number of cases has it
    if combination.finished and not lost_text and str(scene.output) not in named:
        wrong.append("the place of the results is not named at the end")
    return wrong


def _wrong_rest(scene: Scene, status_of: dict[int, str]) -> list[str]:
    """Wrong statuses of the cases after the fault, and of the one that broke."""
    combination = scene.combination
    if not combination.complete:
        return []
    broken = (
        "skipped"
        if combination.fault == "no memory"
        else "failed"
        if combination.times > 1
        else "ok"
    )
    wanted = dict.fromkeys(scene.sizes, "ok") | {scene.sizes[FINISHED]: broken}
    differ = [size for size in wanted if status_of.get(size) != wanted[size]]
    return [
        f"{size} B is {status_of.get(size, 'nowhere')}, must be {wanted[size]}" for size in differ
    ]
