"""Runs of an experiment beside what its document published, in the document's units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import row

from commbench.core.terminal import Terminal
from commbench.features.documents import values as document_values
from commbench.features.documents.comparison import Compared
from commbench.features.documents.sections import document_sections, known_curves
from commbench.features.documents.values import Document, documents, experiment_of
from commbench.results.columns import SCHEMA_VERSION, arrow_schema
from commbench.results.row import row_of

RUN = "20260101T000000.000000-0000"
TCP = ("tcp", "python", 1e-6, 1e9)
MPI = ("mpi", "native", 1e-6, 1e9)
C5N = "host.machine_product=c5n.18xlarge"


def case(benchmark: str, way: Any, size: int, layout: str = "2x1", **more: Any) -> dict[str, Any]:
    """A row of the run, known within 2 %; its case_id is its own."""
    made = row(RUN, benchmark, way, layout, size, np.random.default_rng(0)) | more
    made = within(0.02, made) | more
    return made | {"case_id": str((benchmark, size, *more.items()))}


def within(width: float, measured: dict[str, Any]) -> dict[str, Any]:
    """The row with an interval of that width on each side of its time."""
    ends = {"ci_low_s": 1 - width, "ci_high_s": 1 + width}
    return measured | {name: factor * measured["median_s"] for name, factor in ends.items()}


def measured(experiment: str, *rows: dict[str, Any], **folders: Path) -> list[Document]:
    record = {
        "run_id": RUN,
        "overrides": ["part=1", f"experiment={experiment}", "scale=cpu"],
        "config": {"timing": {"interval_s": 0.1}},
    }
    return documents(list(map(row_of, rows)), [record], folders)


def ours(document: Document) -> dict[tuple[str, int | None], Compared]:
    return {(each.reference.setting, each.message_bytes): each for each in document.compared}


def text_of(document: Document, *hardware: str) -> str:
    (section,) = document_sections([document], hardware)
    return section.text(100, Terminal(200))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["experiment=ec2_streams"], "ec2_streams"),
        (["+experiment=ec2_streams", "part=2"], "ec2_streams"),
        (["backend=tcp"], None),
        ([], None),
        (None, None),
        (3, None),
    ],
)
def test_a_run_knows_its_experiment_by_its_overrides(overrides: object, name: str | None) -> None:
    assert experiment_of({"overrides": overrides}) == name


def test_streams_and_connections_stand_beside_their_own_values_in_the_documents_unit() -> None:
    rows = [
        case("stream", TCP, 2**17, streams=streams, stream_threads=threads, algbw_gb_per_s=rate)
        | {"pair": "0-1", "efficiency": rate / 12.5}
        for streams, threads, rate in ((1, "one", 1.25), (4, "one", 2.5), (36, "each", 5.0))
    ]
    rows += [
        case(
            "p2p_bandwidth",
            MPI,
            4096,
            env={"OMPI_MCA_btl_tcp_links": str(links)},
            algbw_gb_per_s=links / 10,
        )
        for links in (1, 36)
    ]
    (document,) = measured("ec2_streams", *rows)
    values = {key: (each.ours.value, each.point.value) for key, each in ours(document).items()}
    assert values == {
        ("tcp, 1 stream", 2**17): (pytest.approx(10.0), 9.46),
        ("tcp, 4 streams", 2**17): (pytest.approx(20.0), 25.4),
        ("tcp, 36 streams", 2**17): (pytest.approx(40.0), 93.0),
        ("share of 100 Gb/s, 36 streams", 2**17): (pytest.approx(40.0), 93.0),
        ("mpi, btl_tcp_links 1", 4096): (pytest.approx(100.0), 904.27),
        ("mpi, btl_tcp_links 36", 4096): (pytest.approx(3600.0), 963.67),
    }
    assert document.missing == (
        "tcp, 36 streams over 1",
        "mpi, btl_tcp_links 36 over 1",
        "mpi, 72 pairs",
        "share of 100 Gb/s, 72 pairs",
    )
    pairs = case("p2p_multi_pair", MPI, 64, "1x4", pair="0-2 1-3")
    (some,) = measured("ec2_streams", pairs)
    assert "mpi, 72 pairs (osu_mbw_mr); here: 2 pairs" in text_of(some)
    text = text_of(document, "another cloud")
    assert "10.0 Gb/s (1250 MB/s)" in text and "9.46 Gb/s (1182 MB/s)" in text and "1.06 x" in text
    assert "another machine: AWS c5n.18xlarge" in text and "without a measured case" in text
    assert "this kind of machine: AWS c5n.18xlarge" in text_of(document, C5N)


def test_many_connections_over_one_are_a_ratio_of_the_largest_size() -> None:
    rows = [
        case("stream", TCP, 2**17, streams=streams, stream_threads="each", algbw_gb_per_s=rate)
        | {"pair": "0-1"}
        for streams, rate in ((1, 1.0), (4, 3.0), (36, 8.0))
    ]
    rows += [
        case("p2p_bandwidth", MPI, size, env={"OMPI_MCA_btl_tcp_links": links})
        | {"algbw_gb_per_s": rate}
        for size, links, rate in ((8, "1", 0.1), (8, "36", 0.1), (2**20, "1", 1.0))
    ]
    rows += [rows[-1] | {"env": {"OMPI_MCA_btl_tcp_links": "36"}, "algbw_gb_per_s": 2.0}]
    (document,) = measured("ec2_streams", *rows)
    assert line_of(document, "tcp, 36 streams over 1 (128 KiB)").endswith(" 0.813 x")
    assert "2.00 x ±4%" in line_of(document, "mpi, btl_tcp_links 36 over 1 (1 MiB)")


def test_only_runs_of_an_experiment_have_a_document() -> None:
    row = case("p2p_bandwidth", TCP, 2**17, streams=1)
    assert measured("null", row) == measured("guidelines", row) == []
    assert measured("ec2_streams", row | {"status": "failed"}) == []


def test_alike_cases_are_one_number_with_their_range_and_others_have_a_name() -> None:
    pairs = [
        case("p2p_bandwidth", TCP, 2**18, "4x1", pair=pair, algbw_gb_per_s=rate)
        for pair, rate in (("0-1", 0.1), ("1-0", 0.12), ("2-3", 0.11), ("0-0", 0.2))
    ]
    (document,) = measured("openbsd_pairs", *pairs)
    another = ours(document)["another node", 2**18]
    assert sorted(each.value for each in another.values) == pytest.approx([800, 880, 960])
    assert another.ours.value == pytest.approx(880)
    assert ours(document)["the same node", 2**18].ours.value == pytest.approx(1600)
    assert "880 Mb/s (800 to 960, 3 cases)" in text_of(document)
    wide = [each | {"ci_low_s": 0.5e-6, "ci_high_s": 2e-6} for each in pairs[:1]]
    (document,) = measured("openbsd_pairs", *wide, *pairs[1:])
    assert "?880 Mb/s (800 to 960, 3 cases)" in text_of(document)
    assert "?0.94 x" in text_of(document) and "?: over ±30 %." in text_of(document)
    labels = [
        case("p2p_bandwidth", TCP, 2**18, pair="0-1", label=label) for label in ("here", "there")
    ]
    (document,) = measured("openbsd_pairs", *labels)
    names = [each.name for each in document.compared if each.reference.setting == "another node"]
    assert names == ["label here", "label there"]
    for each, size in zip(labels, (None, 8192), strict=True):
        each["backend_options"] = {"buffer_bytes": size}
    (document,) = measured("openbsd_pairs", *labels)
    told = [each.name for each in document.compared if each.reference.setting == "another node"]
    assert told == names, "a label stands for its settings"


def test_a_ratio_is_of_two_labels_or_of_both_directions() -> None:
    rows = [
        case("p2p_bandwidth", TCP, 2**14, label=label, algbw_gb_per_s=rate, efficiency=rate / 2)
        for label, rate in (("A", 1.9), ("B", 1.0))
    ]
    rows += [
        case("p2p_latency", TCP, 1, label=label, median_s=seconds)
        for label, seconds in (("A", 45e-6), ("B", 90e-6))
    ]
    found = ours(*measured("ec2_enhanced", *rows))
    values = {key[0]: each.ours.value for key, each in found.items()}
    assert values == {
        "bandwidth, A over B": pytest.approx(1.9),
        "bandwidth, A over B, smaller instances": pytest.approx(1.9),
        "latency, B over A": pytest.approx(2.0),
        "round trip with A": pytest.approx(90.0),
        "limit of c3.large": pytest.approx(8000.0),
        "limit of c3.xlarge": pytest.approx(8.0),
        "share of the line rate with A": pytest.approx(95.0),
        "share of the line rate with B": pytest.approx(50.0),
    }


def directions(*rates: tuple[str, float], width: float = 0.02) -> list[dict[str, Any]]:
    """Pairs of four nodes with these rates in GB/s, and intervals of that width on each side."""
    return [
        within(width, case("p2p_bandwidth", TCP, 2**18, "4x1", pair=pair, algbw_gb_per_s=rate))
        for pair, rate in rates
    ]


def line_of(document: Document, setting: str) -> str:
    (line,) = (line for line in text_of(document).splitlines() if line.startswith(setting))
    return line


@pytest.mark.parametrize("slow", ["0-1", "1-0"])
def test_one_asymmetric_pair_of_many_is_the_asymmetry(slow: str) -> None:
    every = [f"{first}-{second}" for first in range(4) for second in range(4)]
    rates = [(pair, 0.1 if pair == slow else 0.25) for pair in every]
    (document,) = measured("openbsd_pairs", *directions(*rates))
    line = line_of(document, "largest asymmetry")
    assert ours(document)["largest asymmetry, A to B and B to A", 2**18].ours.holds(2.5)
    assert "2.50 x ±4% (1 of 6 pairs not symmetric)" in line and line.endswith(" 2.5 x")
    (alike,) = measured("openbsd_pairs", *directions(*((pair, 0.25) for pair in every)))
    assert "1.00 x ±4% (0 of 6 pairs not symmetric)" in line_of(alike, "largest asymmetry")


def test_a_wide_interval_is_no_asymmetry_and_not_the_largest() -> None:
    certain = directions(("0-1", 0.25), ("1-0", 0.15), width=0.01)
    noisy = directions(("0-2", 0.4), ("2-0", 0.1), width=0.8)
    (document,) = measured("openbsd_pairs", *certain, *noisy)
    assert "1.67 x ±2% (1 of 2 pairs not symmetric)" in line_of(document, "largest asymmetry")


def test_two_other_labels_stand_for_those_of_the_document_in_the_order_of_their_runs() -> None:
    runs = {"sriov": "20251231T235959.000000-0000", "plain": RUN}
    rows = [
        case("stream", TCP, 2**14, label=label, algbw_gb_per_s=rate, efficiency=rate / 2)
        | {"run_id": runs[label]}
        for label, rate in (("plain", 1.0), ("sriov", 1.9))
    ]
    records = [{"run_id": run, "overrides": ["experiment=ec2_enhanced"]} for run in runs.values()]
    (document,) = documents(list(map(row_of, rows)), records, {})
    assert "1.90 x" in line_of(document, "bandwidth, sriov over plain (16 KiB)")
    assert "95.0 %" in line_of(document, "share of the line rate with sriov")
    assert "latency, plain over sriov" in document.missing
    (mixed,) = measured("ec2_enhanced", *(row | {"run_id": RUN, "label": "A"} for row in rows))
    assert "bandwidth, A over B" in mixed.missing


def launches(count: int, *, is_one_case: bool = True) -> list[dict[str, Any]]:
    """Streams of A with 1.44 times the bandwidth of B, within 1 %."""
    return [
        case("stream", TCP, 2**14, label=label, algbw_gb_per_s=rate * (1 + trial / 1000))
        | {"case_id": label if is_one_case else f"{label} {trial}", "trial": trial}
        for label, rate in (("A", 1.44), ("B", 1.0))
        for trial in range(count)
    ]


def test_a_ratio_of_several_launches_has_its_interval_and_only_of_these() -> None:
    (document,) = measured("ec2_enhanced", *launches(5))
    ratio = ours(document)["bandwidth, A over B", 2**14].ours
    assert ratio.holds(1.44) and 0 < ratio.half_width < 0.01
    text = text_of(document)
    assert "1.44 x ±0.3%" in text and "±: 95 % confidence interval over 5 launches." in text
    for unknown in (launches(3), launches(5, is_one_case=False)):
        (document,) = measured("ec2_enhanced", *unknown)
        assert "±" not in text_of(document) and "1.44 x" in text_of(document)


def test_the_round_trip_of_the_document_is_a_range_and_its_limits_name_their_machines() -> None:
    trip = case("p2p_latency", TCP, 1, label="A", median_s=48e-6)
    rates = [case("stream", TCP, 2**14, label="A", algbw_gb_per_s=0.05)]
    (document,) = measured("ec2_enhanced", trip, *rates)
    text = text_of(document)
    (line,) = (line for line in text.splitlines() if "round trip with A" in line)
    assert "92.0 us round trip .. 100 us round trip" in line and line.endswith(" 1 x")
    (line,) = (line for line in text.splitlines() if "c3.large (16 KiB)" in line)
    assert "400 Mb/s" in line and "415 Mb/s" in line


def test_an_upper_bound_has_the_largest_ratio_of_all_sizes() -> None:
    rows = [
        case("all_reduce", MPI, size, "32x36", label=label, library=label, median_s=seconds)
        for size, open_s, other_s in ((4, 30e-6, 2e-6), (2**20, 4e-3, 2e-3))
        for label, seconds in (("openmpi", open_s), ("mpich", other_s))
    ]
    (document,) = measured("mvapich_cloud", *rows)
    (found,) = document.compared
    assert (found.message_bytes, found.ours.value) == (4, pytest.approx(15.0))
    assert line_of(document, "allreduce").endswith("  within")


def broadcasts(size: int, ratio: float, width: float) -> list[dict[str, Any]]:
    """Both libraries at a size, that many times as fast and known within that width."""
    seconds = {"openmpi": ratio * 1e-5, "mpich": 1e-5}
    return [
        within(width, case("broadcast", MPI, size, "32x36", label=label, median_s=median_s))
        for label, median_s in seconds.items()
    ]


@pytest.mark.parametrize(
    ("ratio", "width", "ours", "answer"),
    [
        (30.0, 0.8, "?30.0 x -89 +800%", "undecided"),
        (30.0, 0.5, "?30.0 x -67 +200%", "above"),
        (9.0, 0.5, "6.00 x ±2%", "above"),
        (4.9, 0.05, "6.00 x ±2%", "above"),
    ],
)
def test_a_judgement_of_the_largest_ratio_needs_its_width(
    ratio: float, width: float, ours: str, answer: str
) -> None:
    certain = 2.0 if ratio == 30 else 6.0
    rows = [*broadcasts(2**12, ratio, width), *broadcasts(2**16, certain, 0.01)]
    line = line_of(measured("mvapich_cloud", *rows)[0], "bcast")
    assert f"  {ours}  " in line and line.endswith(f"  {answer}")


def test_a_bound_is_undecided_without_an_interval() -> None:
    rows = [row | {"ci_low_s": None, "ci_high_s": None} for row in broadcasts(2**12, 2.0, 0.1)]
    line = line_of(measured("mvapich_cloud", *rows)[0], "bcast")
    assert "?2.00 x (n=30)" in line and line.endswith("  undecided")


@pytest.mark.parametrize(
    ("library", "marked"),
    [("MPICH Version: 5.0.2", "; here: MPICH "), ("MVAPICH2 Version : 2.3.7", "(4 KiB) ")],
)
def test_another_library_than_the_documents_is_named_beside_its_ratio(
    library: str, marked: str
) -> None:
    rows = [
        case("gather", MPI, 2**12, "2x2", label=label, library=text)
        for label, text in (("openmpi", "Open MPI v5.0.11"), ("mpich", library))
    ]
    text = text_of(*measured("mvapich_cloud", *rows))
    (line,) = (line for line in text.splitlines() if "gather" in line)
    assert marked in line and "MVAPICH2-X, at most" in line


@pytest.mark.parametrize(("rate", "said"), [(2.0, "within"), (9.0, "above")])
def test_a_stand_in_is_named_and_a_bound_is_met_or_not(rate: float, said: str) -> None:
    label = "shared_memory"
    found = case("p2p_latency", MPI, 10**6, "1x2", label=label, pair="0-1", algbw_gb_per_s=rate)
    (document,) = measured("mlbench_p2p", found)
    (compared,) = document.compared
    assert (compared.ratio == 1) == (said == "within")
    (line,) = (line for line in text_of(document).splitlines() if "two GPUs" in line)
    assert "limit of PCIe (1 MB); here: shared memory" in line and line.endswith(said)
    on_gpus = found | {"device": "cuda", "label": ""}
    assert "here" not in text_of(*measured("mlbench_p2p", on_gpus))


def test_a_value_between_nodes_beside_pairs_of_one_says_that(tmp_path: Path) -> None:
    rows = [
        case("p2p_bandwidth", TCP, 2**18, "2x2", pair=pair, label=label)
        for pair, label in (("0-1", "one"), ("0-2", "two"), ("0-0", "own"))
    ]
    lines = text_of(*measured("openbsd_pairs", *rows)).splitlines()
    (within,) = (line for line in lines if "label one; here: one node  " in line)
    (between,) = (line for line in lines if "label two  " in line)
    assert within.startswith("another node") and between.startswith("another node")
    assert not any("the same node" in line and "here" in line for line in lines)
    both = [case("p2p_bandwidth", TCP, 2**18, "2x1", pair=pair) for pair in ("0-0", "0-1", "1-0")]
    (ratio_line,) = [
        line
        for line in text_of(*measured("openbsd_pairs", *both)).splitlines()
        if "asymmetry" in line
    ]
    assert "here" not in ratio_line, "a rank with itself has no part in it"
    some = case("p2p_multi_pair", MPI, 64, "1x4", pair="0-2 1-3")
    assert "72 pairs (osu_mbw_mr); here: 2 pairs, one node" in text_of(
        *measured("ec2_streams", some)
    )
    soak = soak_run(tmp_path, [0.1] * 20) | {"layout": "1x2"}
    text = text_of(*measured("openbsd_soak", soak, **{RUN: tmp_path}))
    assert "table of throughputs; here: one node, bandwidth in Mb/s" in text
    ratio = [soak | {"label": label, "case_id": label} for label in "AB"]
    assert "A over B (256 KiB); here: one node" in text_of(*measured("ec2_enhanced", *ratio))


def soak_run(folder: Path, rates: list[float], message_bytes: int = 2**18) -> dict[str, Any]:
    """A soak with an interval of 0.1 s for each rate in GB/s; its counters are stored."""
    ramp = {"end_gb_per_s": rates[-1], "full_speed_s": 0.9}
    ramp["first_second_gb_per_s"] = float(np.mean(rates[:10]))
    soak = case("stream", TCP, message_bytes, timing="soak", pair="0-1") | ramp
    names = {"repetitions": 10.0, "busy_s": 0.0}
    counters = [
        {"run_id": RUN, "case_id": soak["case_id"], "rank": 0, "t_ns": int(at * 1e8)}
        | {"name": f"interval.{name}", "value": value}
        for at, rate in enumerate(rates)
        for name, value in (names | {"busy_s": 10 * message_bytes / rate * 1e-9}).items()
    ]
    table = pa.Table.from_pylist(counters, arrow_schema("counters"))
    pq.write_table(table, folder / "counters.parquet")
    pq.write_table(pa.Table.from_pylist([soak], arrow_schema("cases")), folder / "cases.parquet")
    (folder / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "run_id": RUN}))
    return soak


def test_a_planted_staircase_stands_beside_the_published_one(tmp_path: Path) -> None:
    rates = [0.04] * 4 + [0.09] * 5 + [0.118] * 20
    soak = soak_run(tmp_path, rates)
    (document,) = measured("openbsd_soak", soak, **{RUN: tmp_path})
    at = {each.point.at_s: each.ours.value for each in document.compared if each.point.at_s}
    assert len(at) == 12
    assert [at[0.4], at[0.5], at[0.901], at[1.001]] == pytest.approx([320, 720, 720, 944])
    slow = soak | {"case_id": "slow", "full_speed_s": 1.3, "message_bytes": 5 * 2**10}
    slower = slow | {"case_id": "slower", "full_speed_s": 1.5}
    (document,) = measured("openbsd_soak", soak, slow, slower, **{RUN: tmp_path})
    times = {key[0]: each.ours.value for key, each in ours(document).items() if "speed" in key[0]}
    assert list(times.values()) == pytest.approx([1000.0, 1400.0, 1600.0]), "ends of intervals"
    assert ours(document)["steady", 2**18].ours.value == pytest.approx(944)
    text = text_of(document)
    assert "1.10 s" in text and "table of throughputs, bandwidth in Mb/s" in text
    assert "full speed: to the end of its first interval" in text
    (curve,) = known_curves([document], [row_of(soak)])
    assert curve.at[0] == 0.1 and curve.values[0] == pytest.approx(323.078e-3 / 8)


def test_without_the_feature_of_soaks_their_values_are_missing_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of an interval would be beside the end of the published one."""
    monkeypatch.setattr(document_values, "annex", lambda module: None)
    soak = soak_run(tmp_path, [0.04] * 10)
    (document,) = measured("openbsd_soak", soak, **{RUN: tmp_path})
    assert document.compared == ()
    assert document.missing[-1] == "those of soaks, which need commbench.features.streams"


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_fresh_connection_stands_over_a_reused_one_whatever_the_line_rate(
    tmp_path: Path, scale: float
) -> None:
    """The document's own throughputs in Mb/s; a stream to itself crosses no network."""
    steps = [323.1, 322.6, 322.0, 322.8, 609.7, 723.2, 712.1, 720.5, 721.2, 877.0] + [937.2] * 10
    soak = soak_run(tmp_path, [scale * rate / 8e3 for rate in steps])
    itself = soak | {"pair": "0-0", "case_id": "itself", "first_second_gb_per_s": 1.0}
    (document,) = measured("openbsd_soak", soak, itself, **{RUN: tmp_path})
    (compared,) = (each for key, each in ours(document).items() if "reused" in key[0])
    assert len(compared.values) == 1 and compared.ratio == pytest.approx(1.0, abs=0.001)
    assert "0.603 x" in line_of(document, "fresh over reused")


def test_a_soak_without_counters_has_no_values_over_time(tmp_path: Path) -> None:
    soak = case("stream", TCP, 2**18, timing="soak", pair="0-1", end_gb_per_s=0.1)
    (document,) = measured("openbsd_soak", soak)
    assert [each.reference.setting for each in document.compared] == ["steady"]


def test_a_figure_gets_the_curves_of_its_own_rows() -> None:
    rows = [case("p2p_bandwidth", MPI, size, env={}) for size in (64, 4096)]
    found = measured("ec2_streams", *rows, case("p2p_multi_pair", MPI, 64))
    (curve,) = known_curves(found, list(map(row_of, rows)))
    assert curve.name == "published, another machine: mpi, btl_tcp_links 1"
    assert curve.column == "algbw_gb_per_s" and len(curve.at) == 23
    assert dict(zip(curve.at, curve.values, strict=True))[64] == pytest.approx(0.02994)
