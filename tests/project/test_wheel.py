"""What a user installs: a wheel brings conf/ along as commbench.conf, and runs from any
directory."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from places import ROOT


@pytest.mark.long
def test_a_wheel_runs_from_any_directory(tmp_path: Path) -> None:
    # --wheel-dir keeps the tree clean but for build/, so it is built from a copy of what git knows
    source = tmp_path / "source"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in files.stdout.splitlines():
        if name.startswith(("commbench/", "conf/")) or "/" not in name:
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    words = [
        sys.executable,
        "-m",
        "commbench",
        "backend=simulated",
        "sizes=[8]",
        "timing=quick",
        f"output={tmp_path}/results",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        words, cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    where = subprocess.run(
        [
            sys.executable,
            "-c",
            "import commbench, commbench.conf; print(commbench.__file__, commbench.conf.__file__)",
        ],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.count(str(tmp_path / "site")) == 2
