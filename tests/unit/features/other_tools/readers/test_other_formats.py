"""OSU, iperf3, all_reduce_bench.py, NCCL Inspector and aiconfigurator."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from other_tools import all_reduce_bench, inspector_record, iperf3, osu_text
from places import AICONFIGURATOR

from commbench.features.other_tools.experiment import Experiment, FileContent
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import NotRecognised
from commbench.features.other_tools.readers.aiconfigurator import Aiconfigurator
from commbench.features.other_tools.readers.iperf3_json import Iperf3Json
from commbench.features.other_tools.readers.nccl_inspector import NcclInspector, joined
from commbench.features.other_tools.readers.text_log import TextLog


def of(text: str) -> ForeignFile:
    return ForeignFile("file", io.BytesIO(text.encode()))


def log(text: str) -> FileContent:
    return TextLog().read(of(text))


# ---------------------------------------------------------------- OSU


def test_osu_latency_bandwidth_and_pairs() -> None:
    latency = log(osu_text()).experiments[0].rows
    assert [row.median_s for row in latency] == pytest.approx([1.1e-6, 2.25e-6])
    assert latency[0].pair == "0-1" and latency[0].dtype == "int8" and latency[0].layout is None
    heads = "# Size      Bandwidth (MB/s)"
    rate = log(osu_text("Bandwidth", heads, ("1048576   20000.00",))).experiments[0].rows[0]
    assert rate.benchmark == "p2p_bandwidth" and rate.median_s == pytest.approx(1048576 / 20e9)
    both = log(osu_text("Bi-Directional Bandwidth", heads, ("8   1.0",))).experiments[0]
    assert both.rows[0].benchmark == "p2p_bibandwidth"
    heads = "# [ pairs: 2 ] [ window size: 16 ]\n# Size                  MB/s        Messages/s"
    test = "Multiple Bandwidth / Message Rate"
    good, bad = log(osu_text(test, heads, ("8  80.0  1e7", "8  80.0  2e7"))).experiments[0].rows
    assert (good.pair, good.window, good.status) == ("0-2 1-3", 16, "ok")
    assert bad.status == "invalid" and "Messages/s" in str(bad.reason)


@pytest.mark.parametrize("full", [False, True])
def test_osu_collectives_with_and_without_f(full: bool) -> None:
    heads = "# Size       Avg Latency(us)"
    line = "1024   5.00"
    if full:
        heads += "   Min Latency(us)   Max Latency(us)  Iterations"
        line += "   4.00    6.00   1000"
    row = log(osu_text("Allreduce Latency", heads, (line,))).experiments[0].rows[0]
    assert row.median_s == pytest.approx(5e-6) and row.min_s is None
    assert row.reduction == "sum" and row.in_place is None
    assert row.operations_per_sample == (1000 if full else None)


def test_sizes_of_one_rank_are_kept_as_such() -> None:
    heads = "# Size       Avg Latency(us)"
    row = log(osu_text("Allgather Latency", heads, ("1024   5.00",))).experiments[0].rows[0]
    assert row.bytes_per_rank == 1024


@pytest.mark.parametrize(
    ("title", "tool", "device", "engine"),
    [
        ("# OSU MPI-CUDA Latency Test v5.9", "OSU 5.9", "cuda", "native"),
        ("# OSU MPI Latency Test (Version 2.0)", "OSU 2.0", "cpu", "native"),
        ("# OMB Python MPI Latency Test", "OMB-Py", "cpu", "python"),
        ("# MPI Latency Test", "mpi4py demo", "cpu", "python"),
    ],
)
def test_heads_of_mvapich_and_mpi4py(title: str, tool: str, device: str, engine: str) -> None:
    text = f" MVAPICH2-2.3.7 Parameters\n{title}\n# Size [B]        Latency [us]\n8      1.25\n"
    (experiment,) = log(text).experiments
    assert experiment.tool_text == tool and experiment.library == "MVAPICH2 2.3.7"
    assert (experiment.rows[0].device, experiment.rows[0].engine) == (device, engine)


def test_osu_validation_unknown_tests_and_cut_lines() -> None:
    heads = "# Size          Latency (us)        Validation"
    row = log(osu_text("Latency", heads, ("8   1.0   Fail",))).experiments[0].rows[0]
    assert row.status == "invalid"
    unknown = log(osu_text("Iallreduce Latency", "# Size  Overall(us)", ("8   1.0",)))
    assert "no such operation" in unknown.problems.texts()[0]
    cut = log(osu_text().rstrip("\n"))
    assert cut.experiments[0].is_cut and len(cut.experiments[0].rows) == 1
    assert cut.problems.texts()[0].startswith("line 5: ")


# ---------------------------------------------------------------- iperf3


def iperf(*documents: dict[str, Any], indent: str | None = "\t") -> FileContent:
    return Iperf3Json().read(of("\n".join(json.dumps(each, indent=indent) for each in documents)))


def test_iperf3_is_a_stream_with_the_rate_of_its_receiver() -> None:
    first, second = iperf(iperf3(), iperf3("iperf 3.9", reverse=1)).experiments
    (row,) = first.rows
    assert row.median_s == pytest.approx(131072 / (94e9 / 8))
    assert (row.streams, row.stream_threads, row.headline) == (2, "each", "receiver")
    assert row.retransmits == 7 and str(first.layout) == "2x1" and first.started_at is not None
    assert first.library == "kernel 5.15.0-105-generic tcp"
    assert (second.rows[0].pair, second.rows[0].stream_threads) == ("1-0", "one")


def test_iperf3_events_and_a_killed_test_have_their_whole_intervals() -> None:
    document = iperf3()
    events = [{"event": "start", "data": document["start"]}]
    events += [{"event": "interval", "data": each} for each in document["intervals"]]
    killed = iperf(*events, indent=None).experiments[0]
    assert killed.is_cut and killed.rows[0].headline is None
    assert killed.rows[0].median_s == pytest.approx(131072 / (94e9 / 8), rel=1e-6)
    text = json.dumps(document, indent="\t")
    cut = text[: text.index('"end"', text.index("sum", text.index("intervals")) + 500)]
    (experiment,) = Iperf3Json().read(of(cut + "\n" + text)).experiments[:1]
    assert experiment.is_cut


def test_iperf3_of_udp_both_directions_or_contradictions_is_said() -> None:
    wrong = iperf3()
    wrong["end"]["sum_received"]["bits_per_second"] /= 8
    content = iperf(
        iperf3(protocol="UDP"), iperf3(bidir=1), wrong, {"start": {}, "error": "no route"}
    )
    assert not content.experiments and content.problems.count == 4
    texts = " ".join(content.problems.texts())
    assert "UDP" in texts and "both directions" in texts and "no route" in texts
    assert "bits_per_second" in texts


# ---------------------------------------------------------------- all_reduce_bench.py


def test_the_table_of_all_reduce_bench() -> None:
    (experiment,) = log(all_reduce_bench()).experiments
    assert experiment.library == "torch 2.7.1+cu128, NCCL 2.26.2" and experiment.ranks == 16
    assert experiment.layout is None and not experiment.is_cut
    assert [row.message_bytes for row in experiment.rows] == [1 << 15, 1 << 24, 1 << 32]
    assert experiment.rows[2].median_s == pytest.approx((1 << 32) / 222.25e9)
    zero = log(all_reduce_bench(rows=(("32KiB", 0.0),)))
    assert "a rate of 0" in zero.problems.texts()[0]


# ---------------------------------------------------------------- NCCL Inspector


def inspected(*files: str) -> list[Experiment]:
    read = [NcclInspector().read(of(text)).experiments for text in files]
    return [experiment for experiment, _ in joined([each for part in read for each in part])]


def test_ranks_of_a_communicator_in_several_files_are_one_experiment() -> None:
    files = (
        "\n".join(
            inspector_record(number, rank, time_us=100 + 10 * rank + number) for number in (1, 2, 6)
        )
        for rank in (0, 1)
    )
    (experiment,) = inspected(*files)
    (row,) = experiment.rows
    assert row.median_s == pytest.approx(112e-6) and row.headline == "max_over_ranks"
    assert row.dtype is None and row.elements is None and row.repetitions == 3
    assert "3 of the 6 collectives 1 to 6" in experiment.notes[0]
    assert str(experiment.layout) == "1x2"


def test_sizes_of_all_gather_are_of_one_rank_and_contradictions_are_left_out() -> None:
    (experiment,) = inspected(inspector_record(1, coll="AllGather", ranks=4))
    assert experiment.rows[0].message_bytes == 4 << 20
    assert "1 of its 4 ranks" in experiment.notes[0]
    swapped = inspector_record(2).replace('"coll_exec_time_us": 100', '"coll_exec_time_us": 100000')
    content = NcclInspector().read(of(f"{inspector_record(1)}\n{swapped}\nnot json\n"))
    assert [text[:7] for text in content.problems.texts()] == ["line 2:", "line 3:"]


# ---------------------------------------------------------------- aiconfigurator


def written(path: Path, **columns: list[Any]) -> ForeignFile:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return ForeignFile(path.name, io.BytesIO(path.read_bytes()))


def test_aiconfigurator_counts_elements_and_the_version_of_its_rows(tmp_path: Path) -> None:
    file = written(
        tmp_path / "nccl_perf.parquet",
        op_name=["all_gather", "all_gather", "alltoall", "other"],
        kernel_source=["NCCL"] * 4,
        nccl_dtype=["half"] * 4,
        version=["2.29.2"] * 4,
        device=["NVIDIA B200"] * 4,
        num_gpus=[8] * 4,
        message_size=[1024] * 4,
        latency=[0.02, 0.03, 0.04, 0.05],
    )
    content = Aiconfigurator().read(file)
    (experiment,) = content.experiments
    first, again, exchange = experiment.rows
    assert (first.message_bytes, first.elements, first.layout) == (2048, 128, "1x8")
    assert (first.median_s, again.median_s) == (20e-6, 30e-6)
    assert experiment.library == "NCCL 2.29.2" and experiment.repeats == "launches"
    assert exchange.benchmark == "all_to_all" and content.problems.texts()[0].startswith("row 4: ")


def test_other_parquet_files_are_named(tmp_path: Path) -> None:
    for columns, said in (({"run_id": ["a"]}, "commbench"), ({"x": [1]}, "without op_name")):
        with pytest.raises(NotRecognised, match=said):
            Aiconfigurator().read(written(tmp_path / "x.parquet", **columns))
    with pytest.raises(NotRecognised, match="damaged"):
        Aiconfigurator().read(ForeignFile("x", io.BytesIO(b"PAR1" + bytes(50))))


@pytest.mark.skipif(not AICONFIGURATOR.is_dir(), reason="the files of aiconfigurator are not here")
def test_the_files_of_aiconfigurator_give_the_known_values() -> None:
    name = "h100_sxm__comm__nccl__2.29.2__nccl_perf.parquet"
    content = (AICONFIGURATOR / name).read_bytes()
    (experiment,) = Aiconfigurator().read(ForeignFile(name, io.BytesIO(content))).experiments
    known = {
        row.benchmark: row.median_s
        for row in experiment.rows
        if (row.message_bytes, row.layout, row.dtype) == (1 << 29, "1x8", "float16")
    }
    assert known["all_gather"] == pytest.approx(1401.5e-6)
    assert known["reduce_scatter"] == pytest.approx(1399.36e-6)
