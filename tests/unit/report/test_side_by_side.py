"""Several backends side by side: no two numbers are merged that differ in a variable."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from places import ROOT
from sample_cases import case_row

from commbench.core.terminal import Terminal
from commbench.report.side_by_side import belong_together, side_by_side
from commbench.results.load import read_cases, rows_of_table
from commbench.results.row import Row

FILE = Terminal(None)


def measured(backend: str, size: int, median_s: float, **more: Any) -> Row:
    known: dict[str, Any] = {
        "benchmark": "p2p_bandwidth",
        "backend": backend,
        "layout": "1x2",
        "world_size": 2,
        "timing": "quick",
        "pair": "0-1",
        "message_bytes": size,
        "median_s": median_s,
        "ci_low_s": 0.98 * median_s,
        "ci_high_s": 1.02 * median_s,
        "label": "",
    }
    return case_row(**known | more)


def tables(*rows: Row, width: int | None = None) -> list[list[list[str]]]:
    """The words of the lines of each table, of these rows and the same ones of mpi."""
    both = [*rows, *(replace(row, backend="mpi") for row in rows)]
    found: list[list[list[str]]] = []
    for line in side_by_side(both, Terminal(width)).splitlines():
        words = line.split()
        if line.split("  ")[0].strip() == "p2p_bandwidth" and "us" in words:
            found.append([words])
        elif found and words and words[0].isdigit():
            found[-1].append(words)
    return found


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("window", (1, 64)),
        ("buffers", ("own", "shared")),
        ("cache", ("rotate", "warm")),
        ("sync", ("barrier", "none")),
        ("staging", ("none", "pinned")),
        ("timing", ("quick", "rigorous")),
        ("env", ({}, {"NCCL_ALGO": "Ring"})),
        ("hosts", ("a", "b")),
        ("in_place", (False, True)),
        ("bind", ("core", "none")),
        ("library", ("A 1", "B 2")),
        ("streams", (1, 4)),
        ("label", ("", "x")),
    ],
)
def test_rows_that_differ_in_a_variable_are_never_merged(
    name: str, values: tuple[Any, Any]
) -> None:
    rows = [
        measured("gloo", 8, at, algbw_gb_per_s=1e-6 / at, **{name: value})
        for at, value in zip((1e-6, 4e-6), values, strict=True)
    ]
    text = side_by_side([*rows, *(replace(row, backend="mpi") for row in rows)], FILE)
    numbers = ("0.250", "1.00") if name == "window" else ("1.00", "4.00")
    assert [text.count(f" {number}  ±2%") for number in numbers] == [2, 2]
    assert name in text or str(values[1]) in text or "NCCL_ALGO=Ring" in text


def test_launches_are_merged_to_their_median_between_all_of_them() -> None:
    rows = [measured("gloo", 8, 1e-6 * at, trial=at, run_id=str(at)) for at in (1, 2, 9)]
    ((_, line),) = tables(*rows)
    assert line == ["8", "B", "?2.00", "-51", "+359%", "?2.00", "-51", "+359%"]


def test_between_nodes_the_share_of_the_line_stands_beside_the_rate() -> None:
    across = measured("gloo", 2**20, 1e-2, layout="2x1", algbw_gb_per_s=0.11, efficiency=0.88)
    rows = [across, replace(across, backend="mpi", algbw_gb_per_s=0.055, efficiency=0.44)]
    words = side_by_side(rows, FILE).split()
    assert " ".join(words).count("of limit %") == 2 and {"88.0", "44.0"} <= {*words}
    assert "of limit %" not in side_by_side(rows, Terminal(60)), "a narrow screen has the rates"
    within = [replace(row, layout="1x2") for row in rows]
    assert "of limit %" not in side_by_side(within, FILE), "there the limit is the memory's"


def test_lines_are_sorted_where_columns_have_different_sizes_and_pairs() -> None:
    rows = [
        measured("gloo", size, 1e-6, label=label, pair=pair)
        for label, sizes in (("", (64, 1024)), ("x", (8, 256)))
        for size in sizes
        for pair in ("0-10", "0-2")
    ]
    ((_, *lines),) = tables(*rows)
    names = [(line[2], " ".join(line[:2])) for line in lines]
    assert sorted(names, key=names.index) == [
        (pair, size) for pair in ("0-2", "0-10") for size in ("8 B", "64 B", "256 B", "1 KiB")
    ]


def test_options_stand_above_a_column_only_where_their_backend_has_several() -> None:
    options = [
        ("gloo", {}),
        ("mpi", {"threads": "single"}),
        ("tcp", {"buffer": "0"}),
        ("tcp", {"buffer": "1"}),
    ]
    rows = [measured(backend, 8, 1e-6, backend_options=value) for backend, value in options]
    text = side_by_side(rows, FILE)
    assert "buffer=0" in text and "buffer=1" in text and "threads" not in text


@pytest.mark.parametrize(
    ("nodes", "where"),
    [((1,), "2 ranks, no network"), ((2,), "2 ranks on 2 nodes"), ((1, 4), "2 ranks on 1 to 4 n")],
)
def test_the_title_says_on_how_many_nodes_the_ranks_were(
    nodes: tuple[int, ...], where: str
) -> None:
    assert side_by_side([measured("gloo", 8, 1e-6, nodes=each) for each in nodes], FILE).startswith(
        f"gloo, {where}"
    )


def test_a_table_of_the_usual_payload_is_named_beside_another() -> None:
    summed = {"benchmark": "all_reduce", "pair": None}
    rows = [measured("gloo", 8, 1e-6, **summed, payload=value) for value in (None, "rounding")]
    titles = [line for line in side_by_side(rows, FILE).splitlines() if "payload" in line]
    assert titles == ["all_reduce, payload integers", "all_reduce, payload rounding"]


def test_a_narrow_terminal_has_several_tables() -> None:
    backends = ("gloo", "mpi", "simulated", "tcp", "a_backend_of_ours")
    rows = [
        measured(backend, size, 1e-6, benchmark="p2p_latency")
        for backend in backends
        for size in (8, 1024)
    ]
    narrow = side_by_side(rows, Terminal(width=48))
    assert max(map(len, narrow.splitlines())) <= 48
    assert all(backend in narrow for backend in backends)
    heads = [line for line in narrow.splitlines() if line.startswith("p2p_latency")]
    assert len(heads) == narrow.count("1 KiB") > 1


def test_a_window_that_shrinks_at_large_messages_stays_in_its_table() -> None:
    sizes = {8: (64, 1), 1024: (64, 1), 40_000_000: (6, 1)}
    rows = [
        measured("gloo", size, 1e-6 * size, window=window, algbw_gb_per_s=0.001)
        for size, both in sizes.items()
        for window in both
    ]
    text = side_by_side([*rows, *(replace(row, backend="mpi") for row in rows)], FILE)
    assert re.findall(r"^p2p_bandwidth, window (\d+)$", text, re.MULTILINE) == ["1", "64"]
    assert text.count("40 MB") - text.count(": 40 MB bandwidth") == 2


def test_streams_are_sorted_and_named_as_numbers() -> None:
    rows = [measured("tcp", 8, 1e-6 * count, streams=count) for count in (16, 1, 2)]
    text = side_by_side(rows, FILE)
    assert re.findall(r"\d+ streams? us", text) == ["1 stream us", "2 streams us", "16 streams us"]


def test_variables_of_env_that_a_backend_has_everywhere_are_named_once() -> None:
    """The links differ and stay in the headings; gloo without env is a column beside mpi's."""
    rows = [measured("gloo", 8, 1e-6)]
    for links in ("1", "36"):
        rows.append(measured("mpi", 8, 1e-6, env={"PML": "ob1", "LINKS": links}))
    text = side_by_side(rows, FILE)
    assert text.count("PML") == 1 and "mpi, all cases: env PML=ob1" in text
    assert [text.count(f" mpi LINKS={links} us") for links in (1, 36)] == [1, 1]


def test_one_backend_is_named_once_and_its_columns_by_what_differs() -> None:
    rows = [measured("mpi", 8, 1e-6, cuda_ipc=used) for used in ("on", "off")]
    title, heads, *_ = side_by_side(rows, FILE).splitlines()
    assert title.startswith("mpi, ")
    assert heads.split()[1:] == ["cuda_ipc", "off", "us", "±", "cuda_ipc", "on", "us", "±"]
    with_and_without = [measured("mpi", 8, 1e-6, env=env) for env in ({}, {"LINKS": "36"})]
    assert {"LINKS=36 us", "default env us"} <= {
        head.strip() for head in re.split(r"  +|±", side_by_side(with_and_without, FILE))
    }


def test_a_label_stands_for_the_settings_that_it_brings_along() -> None:
    rows = [
        measured("mpi", 8, 1e-6, label=label, env=env)
        for label, env in (("tcp", {"BTL": "tcp"}), ("memory", {"BTL": "sm"}))
    ]
    text = side_by_side(rows, FILE)
    assert text.splitlines()[1].split()[1:] == ["memory", "us", "±", "tcp", "us", "±"]
    assert "label tcp: BTL=tcp" in text and "label memory: BTL=sm" in text


def test_below_stand_what_is_missing_flags_and_a_sentence_for_each_backend() -> None:
    rows = [
        measured("gloo", 8, 1e-6, stop_reason="interrupted", warnings=["skewed"]),
        measured("mpi", 8, 2e-6),
        measured("mpi", 16, 2e-6, status="failed"),
    ]
    text = side_by_side(rows, FILE)
    assert "not finished: 1 case: commbench resume" in text
    assert "1 case has no number" in text and "flags: skewed on 1 number" in text
    assert "gloo: 8 B latency 1.00 us" in text and "mpi: 8 B latency 2.00 us" in text


def test_where_there_is_room_large_messages_have_their_bandwidth() -> None:
    rows = [
        measured("gloo", size, 1e-6, benchmark="p2p_latency", algbw_gb_per_s=size / 1e3)
        for size in (8, 4096)
    ]
    both = [*rows, *(replace(row, backend="mpi") for row in rows)]
    assert side_by_side(both, FILE).count("bandwidth MB/s") == 2
    assert "bandwidth" not in side_by_side(both, Terminal(40))
    assert "bandwidth" not in side_by_side([row for row in both if row.message_bytes == 8], FILE)
    windows = [replace(row, benchmark="p2p_bandwidth", window=4) for row in both]
    assert side_by_side([*both, *windows], FILE).count("bandwidth MB/s") == 0, "it is told already"


def test_all_layouts_of_a_collective_have_the_same_columns() -> None:
    rows = [
        measured(
            *("gloo", 8, 1e-6),
            benchmark="all_reduce",
            pair=None,
            layout=layout,
            algbw_gb_per_s=0.008,
            busbw_gb_per_s=0.008 * factor,
        )
        for layout, factor in (("1x2", 1.0), ("1x4", 1.5))
    ]
    text = side_by_side([*rows, *(replace(row, backend="mpi") for row in rows)], FILE)
    assert text.count("algbw") == 4


def sentences(*rows: Row) -> list[str]:
    """Of the rows of gloo and the same ones of mpi."""
    both = [*rows, *(replace(row, backend="mpi") for row in rows)]
    lines = side_by_side(both, FILE).splitlines()
    return [line for line in lines if line.startswith(("gloo: ", "mpi: "))]


def test_the_sentences_of_all_headings_are_about_one_case_that_all_have() -> None:
    more = measured("tcp", 64, 4e-6)
    text = side_by_side([measured(name, 8, 1e-6) for name in ("gloo", "mpi", "tcp")] + [more], FILE)
    assert text.count(": 8 B latency 1.00 us") == 3
    large = measured("gloo", 2**20, 1e-3, window=64, algbw_gb_per_s=1.0)
    assert len(sentences(large)) == 2
    several = replace(large, benchmark="p2p_multi_pair", pair="0-2 1-3", layout="1x4")
    apart = replace(large, layout="2x1")
    for other in (several, apart, replace(large, stream_threads="each")):
        assert sentences(large, other) == [], "which of the two?"


def stream(**more: Any) -> Row:
    values = {"benchmark": "stream", "timing": "soak", "operations_per_sample": 1}
    rates = {"algbw_gb_per_s": 0.1, "end_gb_per_s": 0.117, "first_second_gb_per_s": 0.08}
    known: dict[str, Any] = {"full_speed_s": 1.0, **values, **rates}
    return measured("tcp", 65536, 1e-3, **known | more)


def test_streams_of_several_runs_have_one_table_with_a_line_each() -> None:
    runs = [stream(streams=count, run_id=str(count)) for count in (1, 4, 36)]
    latency = [measured("tcp", 8, 1e-6, benchmark="p2p_latency", streams=n) for n in (1, 4)]
    lines = side_by_side([*runs, *latency], FILE, again="commbench show last").splitlines()
    assert sum(line.startswith(("stream ", "rate: ")) for line in lines) == 2, "and its meaning"
    assert [line.split()[0] for line in lines if " 800 " in line] == ["1", "4", "36"]
    assert any("1 stream us" in line and "4 streams us" in line for line in lines)
    assert lines[-1] == "commbench show last --intervals"


def test_full_speed_is_at_the_end_of_an_interval_of_its_own_run() -> None:
    runs = [stream(streams=count, run_id=str(count)) for count in (1, 4)]
    records = [
        {"run_id": run_id, "config": {"timing": {"interval_s": step_s}}}
        for run_id, step_s in (("1", 0.1), ("4", 0.5))
    ]
    lines = side_by_side(runs, FILE, records).splitlines()
    assert [line.split()[4] for line in lines if " 800 " in line] == ["1.1", "1.5"]


def test_launches_of_a_stream_are_told_apart() -> None:
    text = side_by_side([stream(trial=trial, run_id=str(trial)) for trial in (0, 1)], FILE)
    assert re.search("64 KiB, trial .*\n0 .*\n1 ", text) and "±" not in text


def test_streams_between_all_pairs_have_a_matrix_for_each_size() -> None:
    pairs = [f"{first}-{second}" for first in range(4) for second in range(4)]
    rows = [
        stream(pair=pair, layout="4x1", message_bytes=size, run_id=str(size))
        for size in (4096, 65536)
        for pair in pairs
    ]
    text = side_by_side(rows, FILE)
    assert text.count("senders down") == 2 and text.count("at the end\n") <= 1
    assert len(re.findall(r"^\d-\d (?:4|64) KiB ", text, re.MULTILINE)) == 32


def test_runs_belong_together_that_differ_in_what_is_compared_or_have_streams() -> None:
    run = [measured("gloo", 8, 1e-6)]
    assert not belong_together([run]) and not belong_together([run, run])
    assert belong_together([run, [measured("mpi", 8, 1e-6)]])
    assert belong_together([[stream()], [stream()], run])
    assert not belong_together([[stream()], [stream(end_gb_per_s=None)]])


README_SIZES = (8, 512, 32 * 1024, 512 * 1024, 8 * 1024**2)


def recorded(width: int) -> str:
    """Five sizes of the run beside the notebooks."""
    (source,), _ = read_cases([ROOT / "notebooks" / "data" / "01_quickstart.parquet"])
    rows = [row for row in rows_of_table(source.cases) if row.message_bytes in README_SIZES]
    return side_by_side(rows, Terminal(width), source.records)


def test_a_recorded_run_fits_one_screen_and_says_what_made_it_uncertain() -> None:
    lines = recorded(80).splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80, "26 with the command that goes on"
    assert "ranks of gloo waited for a core" in " ".join(lines)


def test_the_readme_shows_it() -> None:
    assert f"```\n{recorded(80)}\n" in (ROOT / "README.md").read_text()
