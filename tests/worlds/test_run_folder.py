"""The folder of a run that is measured: nobody else measures into it, and closing lines are true
where it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes import until

from commbench.report.load import find_runs
from commbench.world.folder_lock import LOCK_FILE

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
