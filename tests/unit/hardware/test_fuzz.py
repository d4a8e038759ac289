"""Every parser on foreign, truncated and spliced texts: it may know nothing, it must not raise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import HARDWARE_TEXTS

from commbench.core import secrets, terminal, units
from commbench.features.tcp.connection import parse_info
from commbench.hardware import (
    host,
    machine_facts,
    mpi_library,
    network,
    resource_limits,
    sources,
    topology,
)

PROC = (
    "cpu  10 20 30 40 50 60 70 80 5 5\ncpu0 1 1\n",
    "MemTotal:  24684084 kB\nMemAvailable:      12 kB\n",
    "4:memory:/docker/abc\n2:cpu,cpuacct:/x\n0::/a/b\n",
    (
        "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n35 31 0:32 / /m\\040 rw -"
        " cgroup cgroup rw,memory\n"
    ),
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n",
    "200 Gb/sec (4X HDR)\n0-3,8\n491520K\nmax 100000\nalways [madvise] never\npid:[4026531836]\n",
    'PRETTY_NAME="Debian"\nhttp://a:b@c eyJa.b.c --token=x\n',
)
TEXTS = (*PROC, *(path.read_text() for path in sorted(HARDWARE_TEXTS.glob("*.txt"))))
PARSERS = (
    units.parse_ranges,
    host.parse_meminfo,
    host.steal_jiffies,
    resource_limits.parse_cpu_max,
    secrets.mask,
    secrets.masked_override,
    terminal.one_line,
    terminal.first_line,
    lambda text: parse_info(text.encode(errors="replace")),
    lambda text: mpi_library.library_name(SimpleNamespace(Get_library_version=lambda: text)),
    sources.parse_int,
    sources.parse_fields,
    sources.key_part,
    topology.parse_topo,
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A saved text, cut short, with something foreign in the middle."""
    text = draw(st.sampled_from(TEXTS))
    start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return text[:start] + draw(st.text(max_size=12)) + text[end:]


@given(
    text=st.one_of(
        damaged(), st.text(max_size=80), st.text(alphabet="GPUNIC0123-,: \t\n=X/[]", max_size=80)
    )
)
def test_no_parser_raises(text: str) -> None:
    for parser in PARSERS:
        parser(text)


@given(text=damaged(), tail=st.text(max_size=8))
def test_a_table_never_names_devices_it_does_not_have(text: str, tail: str) -> None:
    links = topology.parse_topo(text + tail)
    assert all(name in text + tail for pair in links for name in pair.split())


@given(text=st.text(alphabet=st.characters(), max_size=40))
def test_the_text_of_a_fact_is_one_line_of_json(text: str) -> None:
    line = sources.fact_text(text)
    assert len(line.splitlines()) <= 1
    json.dumps(line, ensure_ascii=False).encode()


@given(
    user=st.text("abcXYZ09", min_size=1, max_size=8),
    secret=st.text("qwert12$%&(/@", min_size=4, max_size=12),
)
def test_a_password_in_a_url_never_survives(user: str, secret: str) -> None:
    recorded = machine_facts.environment_facts(
        {"NCCL_PROXY": f"http://{user}:{secret}@host.example"}
    )["environment.NCCL_PROXY"]
    assert machine_facts.without_digests(recorded) == "http://***@host.example"


@pytest.mark.parametrize("parser", PARSERS)
def test_a_very_long_line_is_quick(parser) -> None:
    parser("a:" * 20_000)


FILES = (
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/status",
    "proc/meminfo",
    "proc/cpuinfo",
    "proc/stat",
    "proc/loadavg",
    "proc/driver/nvidia/version",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory.current",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/cpu.max",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/cache/index3/size",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/node/node0/cpulist",
    "sys/class/net/eth0/speed",
    "sys/class/infiniband/mlx5_0/ports/1/rate",
    "sys/class/dmi/id/sys_vendor",
    "etc/os-release",
    "sys/kernel/mm/transparent_hugepage/enabled",
)
ANYTHING = st.binary(max_size=60) | damaged().map(lambda text: text.encode(errors="replace"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.dictionaries(st.sampled_from(FILES), ANYTHING, max_size=8))
def test_a_machine_of_foreign_files_is_not_known_and_breaks_nothing(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    root = tmp_path / "root"
    for name, content in contents.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    collectors = (host.collect, resource_limits.collect, network.collect)
    facts = {key: value for collect in collectors for key, value in collect(root).items()}
    assert [key for key in facts if key.endswith(".error")] == []
    json.dumps(facts)
    room = resource_limits.allocatable_bytes(root)
    assert room is None or room >= 0
    shutil.rmtree(root, ignore_errors=True)
