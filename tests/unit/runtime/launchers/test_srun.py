"""Where the ranks of a Slurm step meet, against Slurm's own reading of its node lists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commbench.core.errors import ConfigError
from commbench.runtime.launchers.srun import PORTS, first_host, step_address

WORD = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z-])?", fullmatch=True)
NUMBER = st.integers(0, 120)
NAME = st.builds(
    lambda word, number, wide: f"{word}{number:0{wide}}", WORD, NUMBER, st.integers(1, 4)
)
STEP = {
    "SLURM_STEP_NODELIST": "n[03-05]",
    "SLURM_JOB_NODELIST": "n[01-05]",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
}


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """scontrol("hostnames", LIST): what Slurm says; it needs a configuration, but no cluster."""
    if shutil.which("scontrol") is None:
        pytest.skip("no scontrol here (apt-get install slurm-client)")
    file = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    file.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")

    def ask(what: str, text: str) -> str:
        command = ["scontrol", "show", what, text]
        environment = {**os.environ, "SLURM_CONF": str(file)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, env=environment, check=True
        )
        return done.stdout.strip()

    return ask


@given(st.lists(NAME, min_size=1, max_size=8))
@example(["n03", "n04", "n09", "m1"])
@example(["rack1-n08", "rack1-n09", "rack1-n10"])
def test_the_first_host_is_slurms_own(scontrol: Callable[..., str], names: list[str]) -> None:
    packed = scontrol("hostlist", ",".join(names))
    assert first_host(packed) == scontrol("hostnames", packed).split()[0] == names[0]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[03-05,9],m1", "n03"),
        ("m1,n[03-05]", "m1"),
        ("r[1-2]n[3-4]", "r1n3"),
        ("gpu-a.site.example", "gpu-a.site.example"),
    ],
)
def test_every_form_of_a_list_is_read_as_slurm_reads_it(
    scontrol: Callable[..., str], nodes: str, first: str
) -> None:
    assert first_host(nodes) == first == scontrol("hostnames", nodes).split()[0]


def test_the_hosts_after_the_first_are_not_read() -> None:
    assert first_host("n01,bad host:4") == "n01"
    begin_s = time.process_time()
    assert first_host("nid[000001-120000]") == "nid000001"
    assert time.process_time() - begin_s < 0.05


@given(st.text(alphabet="ab019[],-. ()\n", max_size=12) | st.text(max_size=8))
@example("n[,3]")
@example("[]")
@example("n[1-2")
def test_any_other_text_is_a_host_or_refused(text: str) -> None:
    try:
        host = first_host(text)
    except ConfigError as error:
        assert "export MASTER_ADDR" in str(error) and "\n" not in str(error)
    else:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+", host)


def test_the_step_decides_and_not_its_allocation() -> None:
    host, port = step_address(STEP)
    assert host == "n03" and port in PORTS
    assert (
        step_address({key: value for key, value in STEP.items() if "STEP" not in key})[0] == "n01"
    )


@given(st.integers(1, 2**31), st.integers(0, 60), st.integers(1, 100))
def test_jobs_and_steps_that_may_share_a_node_do_not_share_a_port(
    job: int, step: int, later: int
) -> None:
    def port(job: int, step: int) -> int:
        return step_address(STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})[1]

    seen = [port(job, step), port(job, step + 1), port(job + later, step)]
    assert len(set(seen)) == 3 and all(number in PORTS for number in seen)


def test_an_exported_address_goes_before_the_computed_one() -> None:
    assert step_address(STEP | {"MASTER_ADDR": "login"}) == ("login", step_address(STEP)[1])
    assert step_address(STEP | {"MASTER_PORT": "4000"}) == ("n03", 4000)
    assert step_address({"MASTER_ADDR": "login", "MASTER_PORT": "4000"}) == ("login", 4000)


def test_rank_0_sees_that_it_is_not_where_the_others_look_for_it() -> None:
    """srun -m arbitrary may place it on any node."""
    rank_0 = STEP | {"SLURM_PROCID": "0"}
    assert step_address(rank_0 | {"SLURMD_NODENAME": "n03"})[0] == "n03"
    with pytest.raises(ConfigError, match=r"rank 0 is on n04.* MASTER_ADDR=n04"):
        step_address(rank_0 | {"SLURMD_NODENAME": "n04"})
    assert step_address(STEP | {"SLURM_PROCID": "1", "SLURMD_NODENAME": "n04"})[0] == "n03"
    given = rank_0 | {"SLURMD_NODENAME": "n04", "MASTER_ADDR": "n04"}
    assert step_address(given)[0] == "n04"


def test_without_a_list_of_nodes_the_error_names_the_variable_to_export() -> None:
    with pytest.raises(ConfigError, match="export MASTER_ADDR"):
        step_address({"SLURM_JOB_ID": "7"})
