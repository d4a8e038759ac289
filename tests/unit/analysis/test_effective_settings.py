"""Settings of runs: of an MPI library, and of the connections of streams."""

from __future__ import annotations

from typing import Any

from sample_cases import case_row

from commbench.analysis.effective_settings import settings_texts

STREAM = [case_row(benchmark="stream", stream_threads=None)]
NODE = {"network.tcp_rmem_bytes": "4096 131072 6291456", "network.tcp_wmem_bytes": "4096 16384 8"}


def tcp(**more: Any) -> dict[str, Any]:
    backend = {"name": "tcp", "congestion_control": "cubic", "initial_cwnd_segments": 10}
    return {"backend": backend | more, "provenance": {"nodes": [NODE]}}


def mpi(links: str, **more: str) -> dict[str, Any]:
    setting = {"name": "btl_tcp_links", "value": links, "source": "environment", **more}
    return {"backend": {"name": "mpi"}, "settings": [setting]}


def test_streams_tell_how_their_connections_begin() -> None:
    assert settings_texts([tcp(), tcp()], STREAM) == [
        "tcp: initial window 10 segments, cubic, rmem 4096 131072 6291456, wmem 4096 16384 8"
    ]
    both = settings_texts(
        [tcp(), tcp(congestion_control="bbr", initial_cwnd_segments=None)], STREAM
    )
    assert len(both) == 2 and both[1].startswith("tcp: bbr, rmem")


def test_other_benchmarks_and_runs_of_other_programs_do_not() -> None:
    assert settings_texts([tcp()], [case_row(benchmark="p2p_latency")]) == []
    assert settings_texts([{"run_id": "theirs"}], STREAM) == []


def test_settings_of_several_runs_are_told_together() -> None:
    idle = {"problem": "messages take ob1/sm"}
    texts = settings_texts([mpi("1"), mpi("36"), mpi("4", **idle), mpi("4", **idle)], [])
    assert texts == [
        "in effect: btl_tcp_links=1 or 36 (environment)",
        "without effect: btl_tcp_links=4 (environment): messages take ob1/sm",
    ]
