"""A user who may start few processes or open few files gets one line, and no empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import need

USER = 54_321  # the limit counts the processes of a user: nobody else has this number
CAPABILITIES = "+dac_override,+dac_read_search"  # to read this checkout, whose owner is root


@pytest.mark.parametrize("words", [("doctor",), ("backend=gloo", "layout=1x2", "sizes=[8]")])
def test_a_limit_on_processes_is_one_line_and_leaves_no_folder(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    user = [
        "setpriv",
        f"--reuid={USER}",
        f"--regid={USER}",
        "--clear-groups",
        f"--inh-caps={CAPABILITIES}",
        f"--ambient-caps={CAPABILITIES}",
    ]
    need(*user)
    command = [
        *user,
        "bash",
        "-c",
        'ulimit -u 2; exec "$@"',
        "limited",
        sys.executable,
        "-m",
        "commbench",
        *words,
    ]
    # OpenBLAS, which numpy loads, must not fail before commbench begins
    environment = os.environ | {"HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("commbench: no more threads or processes can be started ("), (
        done.stderr
    )
    assert "(ulimit -u, here 2)" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


def test_a_limit_on_open_files_is_one_line_and_leaves_no_folder(tmp_path: Path) -> None:
    """With so few, gloo tried to connect for two minutes."""
    words = ["backend=gloo", "layout=1x2", "sizes=[8]", f"output={tmp_path / 'results'}"]
    done = subprocess.run(
        [
            "bash",
            "-c",
            'ulimit -n 22; exec "$@"',
            "limited",
            sys.executable,
            "-m",
            "commbench",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr == (
        "commbench: a process of this user may open 22 files, and a rank needs at least 64; raise"
        " the limit: ulimit -n 1024\n"
    )
    assert not list(tmp_path.glob("results/*"))
