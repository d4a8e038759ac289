"""The folder of a run that is measured: nobody else measures into it, and closing lines are true
where it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import until

import commbench
from commbench.results.load import find_runs
from commbench.runtime.folder_lock import LOCK_FILE
from commbench.runtime.supervisor import UNRECORDED_POLL_S

LONG = (
    "benchmark=all_reduce",
    "sizes=[8,64,512]",
    "timing=fixed",
    "timing.repetitions=300",
    "timing.case_s=100",
    "timing.warmup_s=0.3",
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.parametrize("launcher", [(), pytest.param(TORCHRUN, marks=pytest.mark.long)])
def test_a_run_that_goes_on_is_not_resumed(
    tmp_path: Path, warm_executable: Path, launcher: tuple[str, ...]
) -> None:
    command = [str(warm_executable), *launcher, "-m", "commbench"]
    words = ["layout=1x2", "timing.repetitions=1000000", f"output={tmp_path / 'results'}"]
    with subprocess.Popen(
        [*command, *LONG, *words], stdout=-3, stderr=-3, start_new_session=True
    ) as process:
        until(lambda: list((tmp_path / "results").glob("*/run.json")))
        (folder,) = find_runs(tmp_path / "results")
        refused = subprocess.run(
            [*command, "resume", str(folder)], capture_output=True, text=True, timeout=60
        )
        assert process.poll() is None
        host, pid = (folder / LOCK_FILE).read_text().split()
        os.killpg(process.pid, signal.SIGTERM)
    assert refused.returncode == (1 if launcher else 2), refused.stderr
    lines = [line for line in refused.stderr.splitlines() if "commbench: " in line]
    assert len(lines) == 1, refused.stderr
    assert f"process {pid} on {host} is measuring into {folder}; wait for its end" in lines[0]


@pytest.mark.parametrize("ending", ["removed", "renamed and interrupted"])
def test_closing_lines_name_the_folder_that_is_gone_and_blame_no_rank(
    tmp_path: Path, warm_executable: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where results that can't be stored go
    words = ["layout=1x2", "benchmark=all_reduce", "sizes=[8,64]", f"output={tmp_path / 'results'}"]
    words += ["timing.visits=10", "timing.case_s=2", "timing.target=1e-9", "timing.pass_s=0"]
    with subprocess.Popen(
        [str(warm_executable), "-m", "commbench", *words], stdout=-1, stderr=-1, text=True
    ) as process:
        until(lambda: list((tmp_path / "results").glob("*/parts/*.cases.parquet")))
        (folder,) = find_runs(tmp_path / "results")
        time.sleep(2 * UNRECORDED_POLL_S)  # until the parent has seen run.json
        folder.rename(tmp_path / "elsewhere")
        if ending != "removed":
            process.terminate()
        stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == (3 if ending == "removed" else 143), stderr
    assert f"\n{folder} is gone: it was removed or renamed\n" in stdout
    assert "not stored" not in stdout
    lines = stderr.splitlines()
    assert lines[-1] == f"commbench: {folder} is gone: it was removed or renamed"
    assert "finish it with" not in stderr and "rank " not in stderr
    (refuge,) = tmp_path.glob("commbench-*")
    assert f"they are in {refuge}: commbench.load('{refuge}') reads them" in stderr
    assert set(commbench.load(refuge).status) == {"ok"}
