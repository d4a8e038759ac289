"""What is quoted of a launcher's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.runtime.launcher_log import LAST_LINES, log_text

HELP = "Sorry!  You were supposed to get help about:\n    mkdir-failed\nBut I couldn't open\n"
MPICH = "MPIDI_CMA_copy_data(54): \ncopy_iovs(201)...: process_vm_readv failed\nabort\n"
THREAD = "sys.c:1545 UCX ERROR pthread_create() failed: Resource temporarily unavailable\n"


@pytest.mark.parametrize(
    ("log", "line", "cure"),
    [
        (HELP, "mkdir-failed", "export TMPDIR=FOLDER"),
        (MPICH, "copy_iovs(201)...: process_vm_readv failed", "--cap-add=SYS_PTRACE"),
        (THREAD, THREAD.strip(), "pids.max"),
        ("    ppr-too-many-procs\n", "ppr-too-many-procs", "backend.library=mpich"),
        (HELP + THREAD, THREAD.strip(), "pids.max"),
    ],
)
@pytest.mark.parametrize("unknown", [False, True])
def test_the_last_known_error_is_quoted_with_its_cure(
    tmp_path: Path, log: str, line: str, cure: str, unknown: bool
) -> None:
    (tmp_path / "log").write_text(log)
    text = log_text(tmp_path / "log", unknown)
    assert text.startswith(f", with: {line}: ") and cure in text


def test_an_error_far_above_the_end_is_not_the_cause(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(THREAD + "started well\n" * LAST_LINES)
    assert log_text(tmp_path / "log", unknown=False) == ""
    assert log_text(tmp_path / "log", unknown=True) == ", the last one: started well"
