"""The columns of the OSU micro-benchmarks: every number where its comment says, every refusal a
comment."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sample_cases import RUN, measured_row

import commbench
from commbench.features.other_tools.osu import OSU_PROGRAMS, Osu


def row(benchmark: str = "p2p_latency", **more: Any) -> dict[str, Any]:
    return measured_row(benchmark, **({"median_s": 5.0} | more))


def lines(*rows: dict[str, Any]) -> list[str]:
    return Osu().text(RUN, rows).splitlines()


def numbers(text: list[str]) -> list[list[float]]:
    """The lines that a script would read."""
    return [
        [float(cell) for cell in line.split()] for line in text if line and not line.startswith("#")
    ]


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("benchmark", "expected"),
    [
        ("p2p_latency", [1000000, 2000]),
        ("p2p_bandwidth", [1000000, 500]),  # 10^6 B in 2 ms
        ("p2p_bibandwidth", [1000000, 500]),
        ("p2p_multi_pair", [1000000, 500, 500]),
        ("all_reduce", [1000000, 2000, 1000, 9000]),
        ("reduce_scatter", [1000000, 2000, 1000, 9000]),
        ("all_gather", [250000, 2000, 1000, 9000]),  # OSU counts the block of one rank
        ("scatter", [250000, 2000, 1000, 9000]),
        ("barrier", [2000, 1000, 9000]),
    ],
)
def test_a_line_holds_what_its_columns_promise(benchmark: str, expected: list[float]) -> None:
    measured = row(benchmark, message_bytes=1000000, mean_s=2e-3, min_s=1e-3, max_s=9e-3)
    text = Osu(strict=True).text(RUN, [measured]).splitlines()
    assert numbers(text) == [expected]
    head = next(before for before, line in pairwise(text) if before[:1] == "#" != line[:1] != "")
    assert len(head[1:].replace(" Latency", "").replace("Bandwidth ", "").split()) == len(expected)


def test_small_numbers_keep_three_digits() -> None:
    assert numbers(lines(row(median_s=1.2345e-9)))[0][:2] == [1024, 0.00123]
    assert numbers(lines(row("p2p_bandwidth", message_bytes=8, median_s=1.0)))[0][:2] == [8, 8e-6]


@pytest.mark.parametrize("benchmark", OSU_PROGRAMS)
def test_comments_say_what_stands_in_the_columns(benchmark: str) -> None:
    text = lines(row(benchmark))
    at = next(index for index, line in enumerate(text) if not line.startswith("#") and line)
    comments = " ".join(line for line in text[:at] if line.startswith("#"))
    assert "mean" in comments
    assert f"{benchmark}, as {OSU_PROGRAMS[benchmark].name}: " in comments
    assert ("are not comparable" in comments) == ("Max Latency" in text[at - 1])


@pytest.mark.parametrize(
    ("benchmark", "median"), [("p2p_latency", 5.0), ("p2p_bandwidth", 0.2), ("all_reduce", 5.0)]
)
def test_the_median_and_its_interval_stand_before_the_columns_of_osu(
    benchmark: str, median: float
) -> None:
    measured = row(benchmark, message_bytes=1, median_s=5e-6, ci_low_s=4e-6, ci_high_s=8e-6)
    (shown,) = numbers(lines(measured))
    size, *strict = numbers(Osu(strict=True).text(RUN, [measured]).splitlines())[0]
    ends = [0.125, 0.25] if benchmark == "p2p_bandwidth" else [4.0, 8.0]
    assert shown == [size, median, *ends, *strict]


def test_what_is_not_known_is_read_as_a_number() -> None:
    (shown,) = numbers(lines(row(ci_low_s=None, ci_high_s=None)))
    assert math.isnan(shown[2]) and math.isnan(shown[3])


# ---------------------------------------------------------------- tables


def test_sizes_stand_in_their_order_in_one_table() -> None:
    text = lines(*(row(message_bytes=size) for size in (1024, 8, 64)))
    assert [cells[0] for cells in numbers(text)] == [8, 64, 1024]
    assert sum(", as osu_" in line for line in text) == 1


def test_variables_that_all_rows_share_are_printed_once() -> None:
    text = lines(
        row(timer="host", env=(("A", "b"),)),
        row("barrier", timer="host", env=(("A", "b"),)),
    )
    assert sum("timer host" in line and "env A=b" in line for line in text) == 1


@pytest.mark.parametrize("status", ["skipped", "failed", "invalid"])
def test_a_row_without_numbers_is_a_comment_in_its_place(status: str) -> None:
    refused = row(message_bytes=64, status=status, reason="no\nway \x1b[31m", mean_s=None)
    text = lines(row(message_bytes=8), refused, row(message_bytes=1024))
    at = text.index(f"# {status}: 64 B: no way [31m")
    assert [text[at - 1].split()[0], text[at + 1].split()[0]] == ["8", "1024"]


@pytest.mark.parametrize("buffers", ["own", "shared"])
def test_separate_memory_for_each_message_is_printed(buffers: str) -> None:
    text = lines(row("p2p_bandwidth", window=64, buffers=buffers))
    assert any(line.startswith("# buffers own: ") and "osu_bw" in line for line in text) is (
        buffers == "own"
    )


# ---------------------------------------------------------------- writer


def test_every_case_of_a_run_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = commbench.run(
        "backend=simulated",
        "benchmark=all",
        "layout=1x2",
        "sizes=[4,1KiB]",
        "timing=fixed",
        "timing.repetitions=20",
        "timing.warmup_s=0",
        "writer=[parquet,osu]",
        "backend.model.noise=0.1",
        f"output={tmp_path}",
    )
    text = capsys.readouterr().out.splitlines()
    cases = commbench.load(folder)
    known = cases[cases.benchmark.isin(list(OSU_PROGRAMS))]
    ok = known[known.status == "ok"]
    assert len(numbers(text)) == len(ok) == 20
    assert sum(line.startswith("# skipped: 4 B: ") for line in text) == len(known) - len(ok) > 0
    at = next(index for index, line in enumerate(text) if "as osu_allreduce" in line)
    means = (
        ok[ok.benchmark == "all_reduce"].sort_values("message_bytes")[["mean_s", "min_s", "max_s"]]
        * 1e6
    )
    printed = [cells[4:] for cells in numbers(text[at : text.index("", at)])]
    assert printed == pytest.approx(means.to_numpy(), abs=0.006)
