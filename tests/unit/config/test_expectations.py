"""Bounds from a file: each entry is an expectation; one that can't be is named by its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.__main__ import main
from commbench.config.expectations import parse_expectation, with_bounds
from commbench.core.errors import ConfigError
from commbench.results.load import find_runs
from commbench.results.run_folder import read_record

BOUNDS = """
- {benchmark: all_reduce, layout: 1x2, sizes: 8..1KiB, column: median_s, bound: "<= 1e-9"}
- {benchmark: all_reduce, sizes: 64, column: median_s, bound: <1}
- {benchmark: broadcast, layout: 1x4, column: algbw_gb_per_s, bound: ">= 1"}
"""


@pytest.fixture
def bounds(tmp_path: Path) -> Path:
    path = tmp_path / "bounds.yaml"
    path.write_text(BOUNDS)
    return path


def test_the_entries_stand_in_the_place_of_the_file(bounds: Path) -> None:
    texts = with_bounds(["normal", str(bounds)])
    assert texts == [
        "normal",
        "all_reduce:1x2:8..1KiB:median_s<= 1e-9",
        "all_reduce:64..64:median_s<1",
        "broadcast:1x4:algbw_gb_per_s>= 1",
    ]
    first = parse_expectation(texts[1])
    assert (first.layout, first.sizes_bytes, first.bound) == ("1x2", (8, 1024), 1e-9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "can't be read"),
        ("median_s<1", "is not a list of bounds"),
        ("[]", "is not a list of bounds"),
        ("[median_s<1]", "entry 1: median_s<1 is not a bound"),
        ("[{column: median_s, bound: <1}, {column: max_s}]", "entry 2 lacks bound"),
        ("[{colunm: median_s, bound: <1}]", "entry 1: colunm is unknown; allowed: benchmark,"),
    ],
)
def test_what_is_not_a_bound_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bounds.yml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        with_bounds(str(path))
    assert str(error.value).startswith(f"expect={path}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("/nowhere/bounds.yaml", "expect=/nowhere/bounds.yaml can't be read"),
        ("64..8:median_s<1", "the range of sizes is empty"),
        ("8..x:median_s<1", "x"),
        ("p99_s<1", "p99_s has no interval; use expect_by=median"),
    ],
)
def test_a_bound_that_can_not_be_decided_ends_the_command(
    expect: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["backend=simulated", "benchmark=[all_reduce]", "expect_by=interval", "plan=true"]
    assert main([*words, f"expect={expect}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_run_prints_a_line_for_each_bound_that_fails_and_keeps_the_bounds(
    bounds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "backend=simulated",
        "benchmark=[all_reduce,broadcast]",
        "layout=1x2",
        "sizes=[8,64]",
        "timing=fixed",
        "timing.repetitions=5",
        "timing.warmup_s=0",
        f"output={tmp_path / 'results'}",
    ]
    assert main([*words, f"expect={bounds}"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("expect")]
    assert [line.partition(" has ")[0] for line in lines] == [
        "expect all_reduce:1x2:8..1KiB:median_s<= 1e-9: all_reduce 1x2 8 B",
        "expect broadcast:1x4:algbw_gb_per_s>= 1: no measured case",
        "expect: 1 of 4 met, 2 missed, 1 not measured",
    ]
    (folder,) = find_runs(tmp_path / "results")
    assert "all_reduce:64..64:median_s<1" in read_record(folder)["config"]["expect"]
