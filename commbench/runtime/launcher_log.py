"""What the log of a launcher tells of the end of a world: its last error, and the first known
cure."""

from __future__ import annotations

import re
from pathlib import Path

from commbench.core.terminal import one_line

LAST_LINES = 40  # in which an error counts as the last one
# where Open MPI lacks its help files it names only the topic
HELP_TOPIC = re.compile(r"supposed to get help about:\s*(\S.*)")
# what libraries and launchers write -> what helps
CURES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(words, re.IGNORECASE), cure)
    for words, cure in (
        (
            r"mkdir-failed|session director|Read-only file system",
            "the folder for temporary files can't be written: export TMPDIR=FOLDER with one that"
            " can, on each host",
        ),
        (
            r"process_vm_(?:read|write)v|\bCMA\b",
            "processes may not read each other's memory (CMA): allow ptrace (docker run"
            " --cap-add=SYS_PTRACE)",
        ),
        (
            r"can't start new thread|Resource temporarily unavailable|fork failed",
            "no more processes can be started: raise ulimit -u or pids.max of the control group",
        ),
        (
            r"ppr-too-many-procs|not enough slots",
            "fewer slots than ranks; to Open MPI 5 hosts whose names differ only behind the first"
            " dot are one: use backend.library=mpich there",
        ),
        (
            r"No space left on device",
            "a disk or /dev/shm is full: make room, or export TMPDIR=FOLDER on another disk",
        ),
    )
)


def log_text(log: Path, unknown: bool) -> str:
    """The error in the last lines of the log for which there is a cure, with it. Without one, and
    where the cause is otherwise `unknown`: the first topic that Open MPI names, else the last line
    with words. Empty where there is nothing to tell."""
    text = log.read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if re.search(r"[^\W\d_]{2}", line)]
    for line in reversed(lines[-LAST_LINES:]):
        for words, cure in CURES:
            if words.search(line):
                return f", with: {one_line(line)}: {cure}"
    if not unknown or not lines:
        return ""
    if (topic := HELP_TOPIC.search(text)) is not None:
        return f", the first one: {one_line(topic[1])}"
    return f", the last one: {one_line(lines[-1])}"
