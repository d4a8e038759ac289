"""Whether a number is normal: values are matched by hardware, setting and place, and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import row, run_of
from sample_cases import case_row

from commbench.analysis.combined import combine_runs
from commbench.features.documents.expectation import verdict_on_normal
from commbench.features.documents.normal import FAST, NORMAL, SLOW, judge
from commbench.results.columns import arrow_schema
from commbench.results.row import Row


def cases(**more: object) -> list[Row]:
    row = {
        "benchmark": "p2p_bandwidth",
        "backend": "tcp",
        "engine": "python",
        "layout": "2x1",
        "pair": "0-1",
        "message_bytes": 2**22,
        "world_size": 2,
        "ranks_per_node": 1,
        "algbw_gb_per_s": 1.18,
        "busbw_gb_per_s": None,
        "median_s": 3.5e-3,
    }
    return [case_row(**{"status": "ok"} | row | more)]


@pytest.mark.parametrize(
    ("rate", "verdict"), [(1.18, NORMAL), (1.7, NORMAL), (1.8, FAST), (0.8, NORMAL), (0.7, SLOW)]
)
def test_far_is_beyond_a_factor(rate: float, verdict: str) -> None:
    (judged,) = judge(cases(algbw_gb_per_s=rate), ["host.product=c5n.18xlarge"])
    assert judged.verdict == verdict and bool(judged.causes) == (verdict != NORMAL)


def test_a_long_time_is_slow_and_a_short_one_fast() -> None:
    latency = {"benchmark": "p2p_latency", "message_bytes": 8}
    for seconds, verdict in ((25e-6, NORMAL), (50e-6, SLOW), (1e-6, FAST)):
        (judged,) = judge(cases(**latency, median_s=seconds), ["C5N.18XLARGE"])
        assert judged.verdict == verdict


@pytest.mark.parametrize(
    "more",
    [
        {"ranks_per_node": 2, "layout": "1x2"},
        {"message_bytes": 8},
        {"backend": "mpi2"},
        {"pair": "0-0"},
    ],
)
def test_another_place_size_or_backend_is_not_compared(more: dict[str, object]) -> None:
    assert judge(cases(**more), ["c5n.18xlarge"]) == []
    assert judge(cases(), ["other hardware"]) == []
    assert judge(cases(warnings=["oversubscribed"]), ["c5n.18xlarge"]) == []


def test_the_setting_decides_which_value_a_case_has() -> None:
    """One stream, four, 36, in one thread or a thread each; a library with one connection and with
    36."""
    titles = {}
    for streams, threads in ((1, "one"), (4, "one"), (36, "each"), (2, "one"), (36, "one")):
        rows = cases(benchmark="stream", streams=streams, stream_threads=threads)
        judged = judge(rows, ["c5n.18xlarge"])
        titles[streams, threads] = [each.reference.setting for each in judged]
    assert titles == {
        (1, "one"): ["tcp, 1 stream"],
        (4, "one"): ["tcp, 4 streams"],
        (36, "each"): ["tcp, 36 streams"],
        (2, "one"): [],
        (36, "one"): [],
    }
    for links, setting in (({}, 1), ({"OMPI_MCA_btl_tcp_links": "36"}, 36)):
        (judged_case,) = judge(cases(backend="mpi", env=links), ["c5n.18xlarge"])
        assert judged_case.reference.setting == f"mpi, btl_tcp_links {setting}"


def test_a_setting_that_all_cases_share_still_decides() -> None:
    rows = [
        replace(each, ci_low_s=3e-3, ci_high_s=4e-3)
        for each in cases(backend="mpi", env={"OMPI_MCA_btl_tcp_links": "36"})
    ]
    combined = combine_runs(rows)
    assert combined.rows[0].env == (), "names leave it out"
    (judged_case,) = judge(combined.whole, ["c5n.18xlarge"])
    assert judged_case.reference.setting == "mpi, btl_tcp_links 36"


def test_writes_of_16_kib_and_soaks_have_values() -> None:
    (judged,) = judge(cases(message_bytes=2**14, timing="soak"), ["c3.8xlarge"])
    assert judged.expected == "published at least 1.19 GB/s"
    assert judge(cases(message_bytes=2**13), ["c3.8xlarge"]) == []


def test_a_latency_is_never_compared_with_a_bandwidth() -> None:
    latency = cases(benchmark="p2p_latency", message_bytes=2**22, backend="mpi", device="cpu")
    (judged,) = judge(latency, ["NVIDIA K80"])
    assert judged.reference.setting == "between two nodes"
    windowed = cases(backend="mpi", device="cpu")
    assert [each.reference.setting for each in judge(windowed, ["NVIDIA K80"])] == ["iperf"]


def test_a_threshold_allows_no_factor_and_a_guess_no_verdict() -> None:
    large = {
        "benchmark": "all_reduce",
        "backend": "nccl",
        "pair": None,
        "message_bytes": 2**34,
        "algbw_gb_per_s": None,
    }
    h100 = "host.machine_vendor=Microsoft Corporation; gpu.0.name=NVIDIA H100 80GB HBM3"
    node = large | {"layout": "1x8", "world_size": 8, "ranks_per_node": 8}
    verdicts = {
        each.expected: each.verdict for each in judge(cases(**node, busbw_gb_per_s=455.0), [h100])
    }
    assert verdicts["published at least 460 GB/s"] == SLOW
    assert verdicts["published 363 GB/s .. 480 GB/s"] == NORMAL
    pair = large | {"layout": "2x8", "world_size": 16, "ranks_per_node": 8}
    guess, gate, measured = judge(cases(**pair, busbw_gb_per_s=480.0), ["p5.48xlarge"])
    assert (guess.expected, guess.verdict) == (
        "a guess: at least 800 GB/s",
        "slower than a guess",
    )
    assert (gate.expected, gate.verdict) == ("published at least 300 GB/s", NORMAL)
    assert (measured.expected, measured.verdict) == ("published 487 GB/s", NORMAL)
    assert [each.decides for each in (guess, gate, measured)] == [False, True, True]


def test_two_labels_are_two_cases() -> None:
    both = [*cases(label="tuned"), *cases(label="plain", algbw_gb_per_s=0.7)]
    slow, normal = judge(both, ["c5n.18xlarge"])
    assert (slow.verdict, slow.case) == (SLOW, "p2p_bandwidth 4 MiB, tcp python 2x1 plain")
    assert (normal.verdict, normal.case) == (NORMAL, "p2p_bandwidth 4 MiB, tcp python 2x1 tuned")


def test_only_what_others_published_is_called_published() -> None:
    (judged,) = judge(cases(), ["c5n.18xlarge"])
    assert judged.expected == "published 1.18 GB/s"
    own = {
        "benchmark": "p2p_latency",
        "backend": "mpi",
        "layout": "1x2",
        "ranks_per_node": 2,
        "message_bytes": 8,
    }
    (judged,) = judge(
        cases(**own, median_s=1e-6), ["host.cpu_model=AMD EPYC; host.cpu_logical_cores=2"]
    )
    assert judged.expected == "measured by commbench on 2026-11-21: 218 ns .. 2.17 us"


def test_expect_normal_is_judged_by_these_values(
    tmp_path: Path,
) -> None:
    """A run that a published value knows: the label names the hardware."""
    way = ("tcp", "python", 2e-6, 0.4e9)
    folder = run_of(tmp_path, 0)
    rng = np.random.default_rng(0)
    rows = [row(folder.name, "p2p_bandwidth", way, "2x1", 2**22, rng) | {"label": "c5n.18xlarge"}]
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("cases")), folder / "cases.parquet")
    (message,) = verdict_on_normal(str(folder)).missed
    assert message.startswith("expect=normal: p2p_bandwidth 4 MiB, tcp python 2x1 has ")
    assert "c5n.18xlarge" in message and "connection" in message
    fast = [rows[0] | {"algbw_gb_per_s": 1.18}]
    pq.write_table(pa.Table.from_pylist(fast, arrow_schema("cases")), folder / "cases.parquet")
    assert verdict_on_normal(str(folder)).summary() == "expect: 1 of 1 met"
    unknown = [rows[0] | {"label": "a machine that nobody described"}]
    pq.write_table(pa.Table.from_pylist(unknown, arrow_schema("cases")), folder / "cases.parquet")
    verdict = verdict_on_normal(str(folder))
    assert verdict.summary() == "expect: 0 of 1 met, 1 not measured" and not verdict.passes("fail")
    nothing = "expect=normal: no value for this kind of machine"
    assert verdict.not_measured[0].startswith(nothing)
