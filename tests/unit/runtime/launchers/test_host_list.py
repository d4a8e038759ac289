"""Lists of hosts in the forms of schedulers and MPI libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.core.errors import ConfigError
from commbench.runtime.launchers.host_list import chosen_hosts, hosts_of_file, hosts_of_words

LISTS = {
    "one host a line": "n1\nn2\n",
    "Open MPI": "n1 slots=8 max_slots=8  # rack 1\n\n# n3\nn2 slots = 4\n",
    "MPICH": "n1:8\nn2:8 binding=user:0\n",
    "PBS, a line a slot": "n1\nn1\nn1\nn2\nn2\nn1\n",
    "Torque, -l nodes": "n1:ppn=4+n2:ppn=4\n",
    "PBS exec_host": "n1/0*4+n2/0*4\n",
    "PBS exec_host, a line each": "n1/0*4\nn2/1\n",
    "PBS exec_vnode": "(n1:ncpus=4:mem=1048576kb)+(n2:ncpus=4)\n",
    "SGE PE_HOSTFILE": "n1 8 all.q@n1 UNDEFINED\nn2 4 all.q@n2 <NULL>\n",
    "Slurm": "n[1-2]\n",
    "scontrol show hostnames, in a line": "n1 n2\n",
    "commas": "n1,n2\n",
    "srun hostname": "n1\nn2\nn2\n",
    "LSF LSB_MCPU_HOSTS": "n1 4 n2 4\n",
    "LSF LSB_HOSTS": "n1 n1 n2 n2\n",
    "Windows line ends": "n1 slots=2\r\nn2\r\n",
}


@pytest.mark.parametrize("form", LISTS)
def test_a_list_is_read_in_the_form_of_every_scheduler(form: str) -> None:
    assert hosts_of_file(LISTS[form]) == ("n1", "n2")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[03-05,9],m1", "n03 n04 n05 n9 m1"),
        ("r[1-2]n[08-10]", "r1n08 r1n09 r1n10 r2n08 r2n09 r2n10"),
        ("gpu-a[1]-ib.site", "gpu-a1-ib.site"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
    ],
)
def test_slurms_ranges_keep_their_zeros_and_their_order(text: str, hosts: str) -> None:
    assert hosts_of_words([text]) == tuple(hosts.split())
    assert hosts_of_file(f"{text}\n") == tuple(hosts.split())


@pytest.mark.parametrize("text", ["fd00:1::1 slots=8", "fd00:1::1", "[fd00:1::1]:8", "[fd00:1::1]"])
def test_an_ipv6_address_is_refused_as_a_whole(text: str) -> None:
    message = "^fd00:1::1 is an IPv6 address, which lists of hosts can.t have; give"
    with pytest.raises(ConfigError, match=message):
        hosts_of_file(text)


@pytest.mark.parametrize(
    "text",
    ["0: n1", "n1:x", "rank 0=n1 slot=1", "n[1-", "n[2-1]", "n[a-b]", "n1:4:2", "user@n1", "-x"],
)
def test_a_text_that_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a host|is of a rankfile"):
        hosts_of_file(text)


def test_a_list_from_the_command_line_has_no_slots() -> None:
    assert hosts_of_words(["a", "b", "a"]) == ("a", "b")
    with pytest.raises(ConfigError, match="'a:4' is not a host; write names or addresses, without"):
        hosts_of_words(["a:4"])


def test_a_file_of_a_windows_editor_begins_with_a_mark_that_is_no_host(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("n1\nn2\n", encoding="utf-8-sig")
    assert chosen_hosts((), str(hostfile)) == ("n1", "n2")
