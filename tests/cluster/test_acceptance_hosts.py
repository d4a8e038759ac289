"""The walk-through of docs/acceptance.md on six virtual hosts, one of which has a slow link."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.long, pytest.mark.serial]
HOSTS = 6
PLANTED = 4
RATE_MBIT = 100.0
SLOW_MBIT = 25.0
STAGES = ("machine", "alone", "pairs", "rails", "scaling", "soak")
# a doubled time: the hosts share the cores of this machine
WORDS = (
    "backend=gloo",
    f"layout={HOSTS}x2",
    "bind=none",
    "sizes=[1KiB,64KiB]",
    "window=4",
    "search.slowdown=1",
    "timing=fixed",
    "timing.repetitions=5",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
)


def test_only_the_host_with_a_slow_link_fails_and_only_in_pairs(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    hosts = cluster(HOSTS, rate_mbit=RATE_MBIT, slow={PLANTED: SLOW_MBIT})
    names = ",".join(host.name for host in hosts.hosts)
    launcher = ("launcher=mpirun", f"launcher.hosts=[{names}]", f"launcher.agent={hosts.agent}")
    words = ("commbench", "experiment=acceptance", *WORDS, *launcher, f"interface={hosts.network}")
    run = world(*hosts.hosts[0].command(*words), status=1)
    assert f"Acceptance of {HOSTS} nodes: {HOSTS - 1} PASS, 1 FAIL, 0 NOT MEASURED" in run.stdout
    for number, host in enumerate(hosts.hosts):
        (line,) = re.findall(rf"^{host.name} +(.*)$", run.stdout, re.MULTILINE)
        pairs = "FAIL" if number == PLANTED else "PASS"
        assert line.split() == [pairs, "PASS", "PASS", pairs, "-", "PASS", "PASS"], run.explain()
    folder = Path(re.findall(r"^results: (\S+)$", run.stdout, re.MULTILINE)[-1])
    assert len(list(folder.glob("*/run.json"))) == len(STAGES) - 2
