"""The backend from its command line: real worlds, real connections, one skip row for each
collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from processes import need

from commbench.core.errors import ConfigError
from commbench.core.units import format_number
from commbench.features.streams.ramp import ramp_of
from commbench.features.tcp.backend import Tcp
from commbench.stats.series import SMALLEST_INTERVAL

FIXED = (
    "timing=fixed",
    "timing.repetitions=7",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
    "cache=warm",
)


def test_point_to_point_is_measured_and_counted_with_one_and_three_streams(
    world: Callable[..., Any],
) -> None:
    words = (
        "benchmark=[p2p_latency,p2p_bandwidth]",
        "layout=1x2",
        "sizes=[8,1MiB]",
        "streams=[1,3]",
    )
    run = world("commbench", "backend=tcp", *words, *FIXED)
    assert (run.cases.status == "ok").all()
    assert (run.cases.wrong_elements == 0).all()
    assert len(run.cases) == 8 and set(run.cases.streams) == {1, 3}
    assert set(run.cases.transport) == {"tcp"}
    import commbench

    counters = commbench.load(run.output, table="counters")
    names = set(counters.name)
    assert {f"tcp.peer1.stream{stream}.retransmits" for stream in range(3)} <= names
    resent = (
        counters[counters.name == "measured.retransmits"].groupby(["case_id", "rank"]).value.last()
    )
    assert (
        run.cases.set_index("case_id").retransmits.to_dict()
        == resent.groupby("case_id").sum().to_dict()
    )
    assert set(zip(run.cases.source, run.cases.destination, strict=True)) == {(0, 1)}
    counters = counters[counters.name.str.startswith("tcp.")]
    of_one = counters[counters.case_id.isin(run.cases[run.cases.streams == 1].case_id)]
    assert {name.split(".")[2] for name in of_one.name} == {"stream0"}, "only what the case uses"
    facts = {"library", "transport", "address", "congestion_control", "mss_bytes"}
    assert facts <= set(run.record["backend"])


def test_a_soak_of_a_stream_tells_bytes_by_time(
    world: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    import commbench
    from commbench.cli.main import main

    soak = ("timing=soak", "timing.duration_s=1", "timing.interval_s=0.1", "layout=1x2")
    run = world("commbench", "backend=tcp", "benchmark=stream", "sizes=[16KiB]", *soak)
    (case,) = run.cases.to_dict("records")
    assert (case["status"], case["wrong_elements"], case["headline"]) == ("ok", 0, "receiver")
    intervals = commbench.soak_intervals(run.output)
    repetition_bytes = case["operations_per_sample"] * case["message_bytes"]
    assert intervals.repetitions.sum() == pytest.approx(case["repetitions"])
    moved = intervals.repetitions.sum() * repetition_bytes
    begins_s, counts, busy_s = intervals[["at_s", "repetitions", "busy_s"]].to_numpy(dtype=float).T
    ramp = ramp_of(begins_s, counts * repetition_bytes, busy_s)
    assert ramp is not None and case["end_gb_per_s"] == pytest.approx(ramp.end * 1e-9)
    whole_s = intervals.at_s.iloc[-1] + intervals.busy_s.iloc[-1]
    assert case["algbw_gb_per_s"] == pytest.approx(moved / whole_s * 1e-9)
    has_interval = case["effective_repetitions"] >= SMALLEST_INTERVAL  # else all are null
    is_enclosed = (
        case["algbw_ci_low_gb_per_s"] < case["algbw_gb_per_s"] < case["algbw_ci_high_gb_per_s"]
    )
    assert is_enclosed == has_interval
    assert intervals.at_s.tolist() == pytest.approx([0.1 * n for n in range(len(intervals))])
    counters = commbench.load(run.output, table="counters")
    for name in ("retransmits", "cwnd_bytes", "rtt_s"):
        seen = counters[counters.name == f"sender.{name}"]
        assert set(seen["rank"]) == {0} and len(seen) >= 9 and (seen.value >= 0).all()
    facts = {"initial_cwnd_segments", "congestion_control", "sndbuf_bytes"}
    assert facts <= set(run.record["backend"])
    capsys.readouterr()
    assert main(["show", "--intervals", str(run.output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rate_mbit = 8e3 * case["algbw_gb_per_s"]
    shown = f"{format_number(rate_mbit)} Mb/s", f"{format_number(rate_mbit / 1e3)} Gb/s"
    (total,) = (line for line in lines if " MB in " in line)
    assert total.endswith(shown)
    number, _, _ = total.rpartition(", ")[2].partition(" ")
    assert sum(number in line.split() for line in lines) >= 2, "the table says the same"
    (at,) = [number for number, line in enumerate(lines) if "Cwnd" in line]
    assert len([line for line in lines[at + 2 :] if line.endswith("#")]) == len(intervals)


def test_without_connections_of_its_own_a_backend_has_no_stream(world: Callable[..., Any]) -> None:
    run = world("commbench", "backend=gloo", "benchmark=stream", "layout=1x2", "sizes=[8]")
    assert set(run.cases.status) == {"skipped"}
    assert "backend=tcp" in run.cases.reason.iloc[0]


@pytest.mark.long
def test_a_given_world_on_a_chosen_interface_skips_collectives_with_the_reason(
    world: Callable[..., Any],
) -> None:
    torchrun = ("torchrun", "--nproc-per-node", "3", "-m", "commbench")
    run = world(
        *torchrun,
        "backend=tcp",
        "interface=lo",
        "pairs=[[0,1],[2,1],[1,1]]",
        "benchmark=[p2p_bandwidth,all_reduce]",
        "sizes=[40kB]",
        "streams=64",
        "backend.buffer_bytes=65536",
        *FIXED,
    )
    measured = run.cases[run.cases.status == "ok"]
    assert set(measured.pair) == {"0-1", "1-1", "2-1"} and set(measured.streams) == {64}
    skipped = run.cases[run.cases.status == "skipped"].set_index("benchmark").reason
    assert skipped["all_reduce"] == "tcp is point to point only: sockets have no collectives"


@pytest.mark.long
def test_an_interface_that_does_not_exist_stops_everything(world: Callable[..., Any]) -> None:
    run = world(
        "commbench", "backend=tcp", "benchmark=[p2p_latency]", "interface=nosuch0", *FIXED, status=2
    )
    assert "interface=nosuch0 does not exist on this host" in run.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("buffer_bytes", 0),
        ("buffer_bytes", -1),
        ("buffer_bytes", 2**31),
        ("timeout_s", 0),
        ("timeout_s", -1.0),
        ("timeout_s", float("nan")),
        ("timeout_s", float("inf")),
    ],
)
def test_a_wrong_value_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"backend\.{key}="):
        Tcp(**{key: value})


def test_the_interface_is_exported_only_where_one_was_chosen() -> None:
    assert Tcp().environment("auto", None) == {}
    assert Tcp().environment("auto", "eth7") == {"COMMBENCH_TCP_INTERFACE": "eth7"}


def test_without_a_free_local_port_the_line_says_so(world: Callable[..., Any]) -> None:
    """32 ports for 65 connections, in a network of its own."""
    need("unshare", "--net")
    ports = "echo 40000 40031 > /proc/sys/net/ipv4/ip_local_port_range"
    prepare = f'ip link set lo up; {ports}; exec "$@"'
    words = ("benchmark=p2p_latency", "sizes=[8]", "streams=64", "budget.restarts=0")
    inside = ("unshare", "--net", "sh", "-ec", prepare, "sh", "commbench", "backend=tcp")
    run = world(*inside, *words, *FIXED, status=3)
    assert "no local port is free: use fewer streams, or widen sysctl" in run.stderr
    assert "firewall" not in run.stderr
