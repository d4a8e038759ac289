"""The walk-through of docs/acceptance.md on four virtual hosts, one of which has a slow link.

One rank each: more of them share two cores, and a round of the search takes ten times as long.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_hosts import SEARCH_WORDS, VirtualHosts

HOSTS = 4
PLANTED = 2
RATE_MBIT = 100.0
SLOW_MBIT = 25.0
FOUR_WORLDS_S = 280
pytestmark = [pytest.mark.long, pytest.mark.serial, pytest.mark.timeout(FOUR_WORLDS_S + 10)]
VERDICT = "(?:PASS|FAIL|UNDECIDED)"
ALONE = "UNDECIDED"  # a rank without another one on its node
STAGES = ("machine", "alone", "pairs", "rails", "scaling", "soak")
WORDS = (
    "backend=gloo",
    f"layout={HOSTS}x1",
    "sizes=[32KiB]",
    "timing.duration_s=5",  # of the soak
    "timing.interval_s=1",
    *SEARCH_WORDS,
)


def test_only_the_host_with_a_slow_link_fails_and_only_in_pairs(
    cluster: Callable[..., VirtualHosts], tmp_path: Path
) -> None:
    hosts = cluster(HOSTS, rate_mbit=RATE_MBIT, slow={PLANTED: SLOW_MBIT})
    names = ",".join(host.name for host in hosts.hosts)
    launcher = ("launcher=mpirun", f"launcher.hosts=[{names}]", f"launcher.agent={hosts.agent}")
    program = str(Path(sys.executable).parent / "commbench")
    words = (program, "experiment=acceptance", *WORDS, *launcher, f"interface={hosts.network}")
    run = subprocess.run(
        hosts.hosts[0].command(*words),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=FOUR_WORLDS_S,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert f"Acceptance of {HOSTS} nodes: 0 PASS, 1 FAIL, {HOSTS - 1} UNDECIDED" in run.stdout
    for number, host in enumerate(hosts.hosts):
        (line,) = re.findall(rf"^{host.name}  +({VERDICT}  .*)$", run.stdout, re.MULTILINE)
        verdict, pairs = ("FAIL", "FAIL") if number == PLANTED else (ALONE, "PASS")
        cells = [verdict, "PASS", ALONE, pairs, "-", "PASS", "PASS"]
        assert re.split(" {2,}", line) == cells, run.stdout
    folder = Path(re.findall(r"^results: (\S+)$", run.stdout, re.MULTILINE)[-1])
    assert len(list(folder.glob("*/run.json"))) == len(STAGES) - 2
