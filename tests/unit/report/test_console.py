"""What a person reads: a table, a matrix where there are many pairs, and what stands out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_cases import case_row

import commbench
from commbench.__main__ import main
from commbench.core.terminal import Terminal
from commbench.report.console import Console
from commbench.report.footnotes import DIVIDED
from commbench.report.run_text import run_text
from commbench.results.row import Row
from commbench.results.writer import Entry

WIDTH = 100
RUN = {
    "backend": {"name": "gloo", "library": "x"},
    "world": {"size": 8, "nodes": 1},
    "timing": "quick",
    "label": "",
    "folder": "results/r",
    "cases": 1,
    "at_most_s": 2.0,
}


def row(**more: Any) -> Row:
    values: dict[str, Any] = {
        "benchmark": "p2p_latency",
        "layout": "1x8",
        "dtype": "float32",
        "engine": "python",
        "status": "ok",
        "message_bytes": 1024,
        "median_s": 2e-6,
        "repetitions": 30,
        "schedule": "serial",
        **more,
    }
    near = {name: more.get(name, values["median_s"]) for name in ("ci_low_s", "ci_high_s")}
    return case_row(**values | (near if values["status"] == "ok" else {"median_s": None}))


def matrix(size: int, planted: dict[str, Any] | None = None, **more: Any) -> list[Row]:
    more = {"layout": f"1x{size}"} | more
    pairs = [f"{first}-{second}" for first in range(size) for second in range(size)]
    return [row(pair=pair, **(more | (planted or {}).get(pair, {}))) for pair in pairs]


def lines(*rows: Row, width: int | None = WIDTH, flags: bool = False) -> list[str]:
    numbered = [replace(row, case_id=str(number)) for number, row in enumerate(rows)]
    return run_text(RUN, numbered, Terminal(width), flags=flags).splitlines()


def joined(text: list[str]) -> str:
    """Without the line breaks of a paragraph."""
    return " ".join(" ".join(text).split())


def title(text: list[str]) -> str:
    """Without the line breaks of a paragraph."""
    more = (index for index, line in enumerate(text[1:], 1) if not line.startswith("    "))
    return " ".join(line.strip() for line in text[: next(more)])


def table(text: list[str]) -> list[str]:
    """The lines of the first table, its last heading first."""
    at = next(index for index, line in enumerate(text) if line.startswith("benchmark"))
    rows = range(at, len(text))
    end = next((n for n in rows if not text[n] or ": " in text[n]), len(text))
    return text[at:end]


def cells(text: list[str], heading: str) -> list[str]:
    """A column of the first table, by the end of its right-aligned heading in the line above the
    units."""
    at = next(index for index, line in enumerate(text) if line.startswith("benchmark"))
    end = next(line for line in text[at - 1 : at + 1] if heading in line).index(heading) + len(
        heading
    )
    return [line[:end].split()[-1] for line in table(text)[1:]]


def heads(text: list[str]) -> set[str]:
    """The words of both lines of headings of the first table."""
    at = next(index for index, line in enumerate(text) if line.startswith("benchmark"))
    return {*text[at - 1].split(), *text[at].split()}


# ---------------------------------------------------------------- table


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("root", (0, 3)),
        ("streams", (1, 36)),
        ("window", (2, 64)),
        ("schedule", ("rounds", "turns")),
    ],
)
def test_a_variable_is_in_the_title_where_it_is_one_and_a_column_where_it_varies(
    name: str, values: tuple[Any, ...]
) -> None:
    alike = lines(
        row(**{name: values[0]}),
        row(**{name: values[0], "message_bytes": 8}),
        row(benchmark="barrier"),  # to which it does not apply
    )
    assert f", {name} {values[0]}" in title(alike)
    assert name not in table(alike)[0]
    varying = lines(*(row(**{name: value}) for value in values))
    assert name not in title(varying)
    assert name in table(varying)[0]
    assert cells(varying, name) == list(map(str, values))


@pytest.mark.parametrize(
    ("name", "value"), [("late", "1:400us"), ("gaps", "sleep"), ("overlap", "matmul")]
)
def test_what_some_rows_of_a_benchmark_have_is_a_column_and_not_in_the_title(
    name: str, value: str
) -> None:
    text = lines(row(benchmark="replay"), row(**{"benchmark": "replay", name: value}))
    assert value not in title(text)
    assert name in table(text)[0] and value in table(text)[-1]


def test_columns_and_variables_without_a_value_are_left_out() -> None:
    barrier = row(
        benchmark="barrier", dtype="none", message_bytes=0, schedule=None, algbw_gb_per_s=None
    )
    text = lines(barrier, row(benchmark="all_reduce", schedule=None))
    assert title(text).endswith("layout 1x8, engine python, dtype float32")
    assert table(text)[1].split()[1:3] == ["1", "KiB"] and table(text)[2].split()[1] == "-"
    assert heads(text) == {"benchmark", "message", "time", "us", "±"}
    assert "serial" not in "".join(lines(row(pair="0-1")))


def table_of_all_columns(width: int | None) -> list[str]:
    """As 2 ranks on a CPU give them."""
    rows = [
        row(
            benchmark=name,
            message_bytes=size,
            window=64 if name == "p2p_bandwidth" else None,
            pair=None if name == "all_reduce" else "0-1",
            median_s=1.2345e-6 * size,
            ci_low_s=1.2e-6 * size,
            ci_high_s=1.3e-6 * size,
            p99_s=2e-6 * size,
            algbw_gb_per_s=size / 10,
            busbw_gb_per_s=size / 10,
            message_rate_per_s=2170.0 / size,
            messages_per_call=64 if name == "p2p_bandwidth" else 1,
            repetitions=size,
            warnings=["skewed"] if size == 8 else [],
            efficiency=0.5,
            in_place=None,
        )
        for name in ("all_reduce", "p2p_bandwidth", "p2p_latency")
        for size in (8, 1024, 40_000)
    ]
    return lines(*rows, width=width)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_terminal_has_one_line_for_a_size(width: int) -> None:
    text = table_of_all_columns(width)
    assert max(map(len, text)) <= width
    assert len(table(text)) == 1 + 9
    assert cells(text, "time")[:3] == ["9.88", "1264", "49380"]
    assert {"message", "time", "±", "busbw"} <= heads(text)


def test_a_narrow_terminal_lacks_what_is_read_least() -> None:
    shown = [heads(table_of_all_columns(width)) for width in (60, 80, None)]
    assert shown[0] < shown[1] < shown[2]
    assert {"bandwidth", "flags", "limit"} <= shown[1]
    assert {"n", "messages"} <= shown[2] - shown[1]


def test_columns_that_say_nothing_are_left_out() -> None:
    rates = {"algbw_gb_per_s": 2.0, "busbw_gb_per_s": 2.0, "message_rate_per_s": 5.0}
    same = [row(message_bytes=size, efficiency=0.003, **rates) for size in (8, 16)]
    assert heads(lines(*same, width=None)) >= {"busbw", "algbw"}
    assert not {"flags", "limit", "p99", "messages", "n"} & heads(lines(*same, width=None))
    single = [row(pair="0-1", **rates), row(pair="0-1", message_bytes=8, **rates)]
    assert "bandwidth" not in heads(lines(*single, width=None)), "their time says the same"


def test_several_pairs_at_once_have_their_message_rate_on_a_narrow_terminal() -> None:
    rates = {"algbw_gb_per_s": 2.0, "message_rate_per_s": 287000.0, "messages_per_call": 1}
    both = [row(pair="0-2 1-3", window=64, message_bytes=size, **rates) for size in (8, 16)]
    assert cells(lines(*both, width=80), "messages") == ["287000", "287000"]
    one = [row(pair="0-2", window=64, message_bytes=size, **rates) for size in (8, 16)]
    assert "messages" not in heads(lines(*one, width=None))


def test_a_file_has_all_columns_and_the_whole_reason() -> None:
    reason = "it failed\n" + "\n".join(f"at frame {number}" for number in range(50))
    text = lines(
        row(warnings=["in_cache", "skewed"]),
        row(message_bytes=8),
        row(message_bytes=16, status="failed", reason=reason),
        width=None,
    )
    rows = [line.split() for line in text if line.startswith("p2p_latency")]
    assert [line[1] for line in rows] == ["8", "16", "1"]
    assert rows[1][3] == "failed" and rows[2][-2:] == ["in_cache", "skewed"]
    frames = " ".join(f"at frame {number}" for number in range(50))
    assert f"failed: 16 B: it failed {frames}" in joined(text)


def test_each_number_has_its_width_and_says_how_well_it_is_known() -> None:
    text = lines(
        row(message_bytes=8, median_s=1e-6, ci_low_s=0.97e-6, ci_high_s=1.03e-6),
        row(message_bytes=16, median_s=1e-6, ci_low_s=0.85e-6, ci_high_s=1.15e-6),
        row(message_bytes=32, median_s=1e-6, ci_low_s=0.8e-6, ci_high_s=12e-6),
        row(message_bytes=64, ci_low_s=None, ci_high_s=None, repetitions=2),
    )
    shown = [" ".join(line.split()[3:-1]) for line in table(text)[1:]]
    assert shown == ["1.00 ±3%", "~1.00 ±15%", "?1.00 -20 +1100%", "?2.00 (n=2)"]


def test_above_the_table_stand_the_level_and_the_causes_of_uncertainty() -> None:
    node = {"host.hostname": "a", "host.load_1min": 4.8, "host.cpu_logical_cores": 2}
    busy = RUN | {"provenance": {"nodes": [node]}}
    visits = {"interval_of": "visits", "visits": 3, "interval_level": 0.75, "case_id": "c"}
    text = run_text(busy, [row(**visits, warnings=["oversubscribed"])], Terminal(WIDTH))
    above = text[: text.index("benchmark")]
    assert "±: 75 % confidence interval over 3 visits" in above
    assert "busy: load 4.80 on 2 cores" in above and "8 ranks on the 2 cores" in above
    assert "oversubscribed" not in text, "the cause says it in words"


def test_the_title_says_which_library_was_loaded_and_from_where() -> None:
    loaded = "torch 2.9.0 of the Python in /usr, NCCL 2.27.5 loaded from torch's folder"
    backend = {"name": "nccl", "library": "torch 2.9.0 nccl 2.27.5", "loaded": loaded}
    text = run_text(RUN | {"backend": backend}, [row()], Terminal())
    assert text.startswith(f"nccl ({loaded}), 8 ranks")


def test_another_torch_of_the_systems_python_is_said_above_the_table() -> None:
    other = "torch 2.11.0a0 in /usr/lib/python3/dist-packages"
    run = RUN | {"backend": {"name": "gloo", "library": "x", "torch_of_system": other}}
    text = run_text(run, [row()], Terminal())
    above = joined(text[: text.index("p2p_latency")].splitlines())
    assert other in above and "may have another communication library" in above


# ---------------------------------------------------------------- flags


def flagged(flags: dict[int, list[str]], **more: Any) -> list[Row]:
    return [row(message_bytes=size, warnings=warnings, **more) for size, warnings in flags.items()]


def notes(text: list[str], name: str) -> str:
    """The line of a flag or status below the table, without line breaks."""
    at = next(
        index for index, line in enumerate(text) if line.startswith((f"{name}: ", f"{name} ("))
    )
    below = range(at + 1, len(text))
    is_more = [text[index].startswith("    ") and text[index].strip() != "time" for index in below]
    end = at + 1 + [*is_more, False].index(False)
    return " ".join(line.strip() for line in text[at:end])


def test_the_first_line_names_what_has_not_run_on_a_gpu() -> None:
    def first_line(*rows: Row) -> str:
        return run_text(RUN, rows, Terminal(500)).splitlines()[0]

    registered = row(device="cuda", registration="symmetric")
    reduced = row(device="cuda", algorithm="one_shot", case_id="other")
    said = first_line(row(device="cuda"), registered, reduced)
    assert "not verified on a GPU yet: registration, algorithm" in said
    assert "not verified on a GPU yet: dtype" in first_line(row(device="cuda", dtype="float8_e5m2"))
    unmeasured = row(device="cuda", registration="local", status="skipped", median_s=None)
    opened = row(until="open")
    assert "GPU" not in first_line(row(device="cuda"), unmeasured, opened)


def test_flags_stand_in_their_row_and_one_of_all_rows_above_the_table() -> None:
    text = lines(*flagged({8: ["overhead"], 16: ["skewed", "overhead"]}))
    assert [line.split()[-1] for line in table(text)[1:]] == ["±0%", "skewed"]
    assert notes(text, "all cases").endswith("(overhead)")
    assert "throttled" in "".join(lines(*flagged({8: ["throttled"]}))), "one row is all rows, too"
    unknown = lines(*flagged({8: ["of_another_version"], 16: []}))
    assert table(unknown)[1].endswith("of_another_version")


def test_a_fallback_is_told_once_above_the_table_with_its_reason() -> None:
    reason = "messages take NET/Socket, but this machine has EFA"
    rows = flagged({8: ["fallback"], 16: ["fallback"]}, reason=reason, transport="NET/Socket")
    text = joined(lines(*rows))
    assert text.count(reason) == 1 and "all cases" not in text
    assert "transport NET/Socket" in text
    small_shm = joined(lines(*flagged({8: ["fallback"]})))
    assert "all cases" in small_shm and "(fallback)" in small_shm


def test_settings_are_told_above_the_table() -> None:
    idle = {"name": "btl_tcp_link", "value": "4", "source": "environment", "problem": "unknown"}
    set_ones = [idle, {"name": "pml", "value": "ob1", "source": "environment"}]
    text = run_text({**RUN, "settings": set_ones}, [row()], Terminal(width=WIDTH))
    assert "without effect: btl_tcp_link=4 (environment): unknown\n" in text
    assert "in effect: pml=ob1 (environment)\n" in text


def test_each_flag_is_explained_where_that_is_wanted() -> None:
    rows = flagged({8: ["in_cache"], 16: [], 32: [], 4096: ["skewed"], 8192: ["skewed"]})
    text = lines(*rows, flags=True)
    assert notes(text, "skewed").startswith("skewed (4 KiB, 8 KiB): ranks began")
    assert notes(text, "in_cache").startswith("in_cache (8 B): the buffers")
    assert not any(line.startswith("skewed (") for line in lines(*rows))
    assert "no case has a flag" in lines(row(), flags=True)
    most = lines(*flagged({8: ["skewed"], 16: ["skewed"], 32: ["skewed"], 64: []}), flags=True)
    assert notes(most, "skewed").startswith("skewed (all but 64 B): ")


def test_series_are_named_where_there_are_several() -> None:
    all_reduce = flagged({8: ["skewed"], 16: ["skewed"]}, benchmark="all_reduce")
    text = lines(*all_reduce, *flagged({8: [], 16: ["skewed"], 32: []}), flags=True)
    assert notes(text, "skewed").startswith("skewed (all_reduce all sizes; p2p_latency 16 B): ")


def test_reasons_are_grouped_below_and_cut_on_a_terminal() -> None:
    broken = {"status": "failed", "reason": "a stack " + "frame " * 300 + "end of it"}
    text = lines(row(), row(message_bytes=8, **broken), row(message_bytes=16, **broken))
    note = notes(text, "failed")
    assert note.startswith("failed: 8 B, 16 B: a stack frame")
    assert note.endswith("end of it") and len(note) < 500
    assert cells(text, "time") == ["failed", "failed", "2.00"]


def test_colors_are_for_terminals() -> None:
    failed = row(status="failed", reason="r", message_bytes=16)
    rows = [replace(case, case_id=str(case.message_bytes)) for case in (row(), failed)]
    plain = run_text(RUN, rows, Terminal(100))
    colored = run_text(RUN, rows, Terminal(100, color=True))
    assert "\x1b[" not in plain and "\x1b[31m" in colored
    unstyled = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines()]
    assert unstyled == plain.splitlines()


def test_nothing_of_a_library_reaches_the_terminal_as_a_command() -> None:
    text = lines(row(status="failed", reason="\x1b[2Jgone [red]x[/red] :smile:"))
    assert "\x1b" not in "".join(text)
    assert "\\x1b[2Jgone [red]x[/red] :smile:" in "".join(text)


def test_the_time_says_of_what_each_operation_has_it() -> None:
    kinds = {"p2p_latency": "half a round trip", "all_reduce": "collective"}
    rows = [row(benchmark=name, median_of=kind) for name, kind in kinds.items()]
    assert lines(rows[0], width=None)[-1] == "time: median of half a round trip"
    assert "collective (all_reduce), half a round trip (p2p_latency)" in lines(*rows)[-1]
    many = [row(benchmark=name, median_of="collective") for name in "abcde"]
    assert "collective (a, b, c, and 2 more), half" in lines(*many, rows[0], width=None)[-1]


@pytest.mark.parametrize(
    ("window", "buffers", "expected"), [(64, "own", True), (1, "own", False), (64, "shared", False)]
)
def test_messages_with_memory_of_their_own_are_told(
    window: int, buffers: str, expected: bool
) -> None:
    text = lines(row(window=window, buffers=buffers), width=None, flags=True)
    assert any(line.startswith("buffers own: each message") for line in text) is expected


def test_cases_of_an_interrupted_run_that_were_not_begun_are_counted() -> None:
    rows = [row(message_bytes=8, stop_reason="ci"), row(stop_reason="interrupted")]
    text = run_text(RUN | {"status": "interrupted", "cases": 44}, rows, Terminal())
    note = (
        "not finished: 1 KiB; 42 of 44 cases not begun: commbench resume results/r measures what is"
        " missing"
    )
    assert note in text.splitlines()
    assert "not begun" not in run_text(RUN | {"status": "done", "cases": 44}, rows, Terminal())
    of_matrix = matrix(8, status="ok", stop_reason="interrupted")
    text = run_text(RUN | {"status": "interrupted", "cases": 70}, of_matrix, Terminal())
    assert "6 of 70 cases not begun" in text, "rows of a matrix have begun, too"


def test_a_signal_does_not_wait_for_a_long_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RUN | {"folder": str(tmp_path), "cases": 5000}
    note = "1600 of 5000 cases have results: commbench show prints them"
    for status in ("interrupted", "done"):
        console = Console()
        console.begin(run, str(tmp_path))
        for number, each in enumerate(matrix(40)):
            console.cases([Entry(replace(each, case_id=str(number)))])
        console.end(run | {"status": status})
        printed = capsys.readouterr().out
        assert (len(printed.splitlines()) < 4) == (note in printed) == (status == "interrupted")


def test_rows_of_an_interrupted_run_say_that_visits_are_missing() -> None:
    rows = [
        row(message_bytes=8, stop_reason="ci"),
        row(message_bytes=16),
        row(stop_reason="interrupted"),
    ]
    note = "not finished: 1 KiB: commbench resume results/r measures what is missing"
    assert notes(lines(*rows), "not finished") == note
    assert "not finished" not in "".join(lines(*rows[:2]))


@pytest.mark.parametrize("stored", [True, False])
def test_results_are_named_where_there_are_some(
    stored: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if stored:
        (tmp_path / "run.json").touch()
    run = {**RUN, "folder": str(tmp_path)}
    writer = Console()
    writer.begin(run, str(tmp_path))
    writer.cases([Entry(replace(row(), case_id="c"))])
    writer.end(run)
    printed = capsys.readouterr().out
    assert (printed.splitlines()[-1] == f"results: {tmp_path}") is stored
    assert ("not stored; writer=" in printed) is not stored


def test_a_job_whose_table_comes_later_says_nothing_of_its_numbers() -> None:
    flagged_row = row(warnings=["skewed"], median_of="collective")
    title = run_text(RUN, [flagged_row], Terminal(), tables=False)
    assert len(title.splitlines()) == 1 and "skewed" in run_text(RUN, [flagged_row], Terminal())


def test_the_foot_says_that_a_size_is_in_total_where_ranks_divide_a_message() -> None:
    whole = row(bytes_per_rank=1024)
    gather = row(benchmark="gather", bytes_per_rank=256)
    barrier = row(benchmark="barrier", message_bytes=0)
    assert DIVIDED in joined(lines(whole, gather, width=None, flags=True))
    assert DIVIDED not in joined(lines(whole, barrier, width=None, flags=True))


def test_the_title_says_whether_ranks_are_bound_to_cores() -> None:
    def title_of(**provenance: Any) -> str:
        run = RUN | {"provenance": provenance}
        return title(run_text(run, [row()], Terminal()).splitlines())

    assert title_of(differences={"run.bind": {}}).endswith(", ranks bound to cores")
    affinity = {"host.cpu_affinity": {}}
    assert title_of(differences=affinity).endswith(", ranks bound by the launcher")
    assert title_of(nodes=[{"run.bind": "none"}]).endswith(", ranks not bound")
    assert "bound" not in title_of()


# ---------------------------------------------------------------- many rows


def test_many_pairs_at_once_are_shortened() -> None:
    pairs = " ".join(f"{rank}-{rank + 32}" for rank in range(32))
    assert "pair 0-32 .. 31-63 (32 at once)" in title(lines(row(pair=pairs)))
    assert title(lines(row(pair="0-2 1-3"))).endswith("pair 0-2 1-3")


def test_rows_stand_in_the_order_of_numbers() -> None:
    pairs = ["0-1", "0-2", "0-10", "2-0", "10-0"]
    text = lines(
        *(row(pair=pair, message_bytes=size) for size in (1024, 8) for pair in pairs[::-1])
    )
    assert [line.split()[1:4] for line in table(text)[1:]] == [
        [pair, *size.split()] for pair in pairs for size in ("8 B", "1 KiB")
    ]


def test_layouts_and_types_stand_in_the_order_of_numbers() -> None:
    layouts = ["1x2", "1x16", "2x1"]
    assert cells(lines(*(row(layout=layout) for layout in layouts[::-1])), "layout") == layouts
    types = ["int8", "int32", "int64"]
    assert cells(lines(*(row(dtype=dtype) for dtype in types[::-1])), "dtype") == types


def test_forms_of_one_size_keep_their_order() -> None:
    forms = [(flag, name) for flag in (False, True) for name in ("max", "sum")]
    rows = [row(in_place=flag, reduction=name, schedule=None) for flag, name in forms[::-1]]
    assert [tuple(line.split()[1:3]) for line in table(lines(*rows))[1:]] == [
        (str(flag), name) for flag, name in forms
    ]


# ---------------------------------------------------------------- matrix


@pytest.mark.parametrize("size", [4, 8, 16])
def test_all_pairs_of_up_to_16_ranks_are_a_matrix_that_fits(size: int) -> None:
    text = lines(*matrix(size, {"0-1": {"median_s": 123e-6}}))
    assert "p2p_latency, 1 KiB: median in us, senders down, receivers across, ! slow" in text
    ranks = [str(rank) for rank in range(size)]
    assert text[3].split() == ranks
    assert [line.split()[0] for line in text[4 : 4 + size]] == ranks
    assert text[4].split()[1:] == ["2.00", "!123", *["2.00"] * (size - 2)]
    assert max(map(len, text)) <= WIDTH
    assert (
        f"  same node: 2.00 in {size * (size - 1)} pairs, fastest 2.00 0-2, slowest 123 0-1" in text
    )
    assert not any(line.startswith("benchmark") for line in text)


def test_pairs_on_unequal_nodes_are_said_to_be_ranks_of_the_layout() -> None:
    world = RUN["world"] | {"ranks": [[0, 1, 2], [3]]}
    rows = [row(pair="0-1", layout="2x1", case_id="0"), row(pair=None, layout="1x3", case_id="1")]
    text = run_text(RUN | {"world": world}, rows, Terminal(WIDTH))
    assert "layout 2x1: ranks 0 to 1 of its pairs are ranks 0, 3 of the world\n" in text
    assert "of its pairs" not in run_text(RUN, rows, Terminal(WIDTH))


def test_beyond_16_ranks_only_the_classes_are_printed() -> None:
    text = lines(*matrix(17))
    assert text[2:5] == [
        "p2p_latency, 1 KiB: median in us",
        "  self: 2.00 in 17 pairs, fastest 2.00 0-0, slowest 2.00 16-16",
        "  same node: 2.00 in 272 pairs, fastest 2.00 0-1, slowest 2.00 16-15",
    ]
    assert len(text) < 10


def test_messages_in_flight_are_shown_as_a_rate() -> None:
    text = lines(*matrix(4, window=64, algbw_gb_per_s=12.5))
    assert "p2p_latency, 1 KiB: median in GB/s, senders down, receivers across" in text
    assert text[4].split() == ["0", *["12.5"] * 4]


def test_a_matrix_that_varies_says_in_what() -> None:
    text = lines(
        *matrix(4, engine="python"),
        *matrix(4, engine="native"),
        *matrix(4, message_bytes=8, engine="native"),
    )
    heads = [line.partition(":")[0] for line in text if "senders down" in line]
    assert heads == [
        f"p2p_latency, {what}"
        for what in ("8 B, engine native", "1 KiB, engine native", "1 KiB, engine python")
    ]


def test_nine_pairs_and_a_chain_stay_a_table() -> None:
    chain = [row(pair=f"{rank}-{rank + 1}") for rank in range(20)]
    for rows in (matrix(3), chain):
        text = lines(*rows)
        assert "senders" not in "".join(text)
        assert len(table(text)) == 1 + len(rows)


def test_other_cases_keep_their_table_beside_a_matrix() -> None:
    text = lines(*matrix(4), row(benchmark="all_reduce", schedule=None), row(pair="0-2 1-3"))
    assert [line.split()[0] for line in table(text)[1:]] == ["all_reduce", "p2p_latency"]
    assert "senders down" in text[text.index("") + 1]


def test_a_hole_of_a_matrix_tells_why() -> None:
    selves = {
        f"{rank}-{rank}": {"status": "skipped", "reason": "no [self] sends"} for rank in range(4)
    }
    flags = {"0-1": {"warnings": ["skewed"]}, "1-0": {"warnings": ["skewed", "throttled"]}}
    text = lines(*matrix(4, selves | flags))
    assert [line.split()[index + 1] for index, line in enumerate(text[4:8])] == ["skip"] * 4
    assert "  flags: skewed 2, throttled 1" in text
    assert "  skipped 0-0 1-1 2-2 3-3: no [self] sends" in text


# ---------------------------------------------------------------- findings


def test_at_most_ten_findings_are_printed_and_the_rest_counted() -> None:
    planted = {f"{rank}-{rank + 1}": {"median_s": 5e-6} for rank in range(0, 8, 2)}
    text = lines(
        *(case for kind in ("int8", "int32", "float32") for case in matrix(8, planted, dtype=kind)),
        width=None,
    )
    at = next(
        index for index, line in enumerate(text) if line.startswith("slow: takes more than 1.2 x")
    )
    findings = [line for line in text[at + 1 :] if not line.startswith("    ")]
    assert all(line.startswith("  p2p_latency ") for line in findings[:10])
    assert findings[10:] == ["  and 2 more: commbench.slow_pairs('results/r')"]


def test_a_slow_rank_stands_for_its_pairs() -> None:
    planted = {
        pair: {"median_s": 5e-6} for rank in (0, 1, 2) for pair in (f"{rank}-3", f"3-{rank}")
    }
    text = lines(*matrix(4, planted), width=None)
    rank = "p2p_latency 1 KiB: rank 3 is in all 6 slow pairs: look at the rank, not at the link"
    assert joined(text).endswith(f" {rank}")
    assert any(line.startswith("slow: takes more than") for line in text)


def test_a_matrix_without_a_finding_has_no_line_of_findings() -> None:
    assert not any(line.startswith("slow: ") for line in lines(*matrix(4)))


def test_a_planted_slow_pair_is_found_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A factor of 3 on 0 -> 2 makes half a round trip of 2 -> 0 -> 2 twice as long, whoever
    begins."""
    commbench.run(
        "backend=simulated",
        "layout=2x3",
        "pairs=all",
        "benchmark=p2p_latency",
        "sizes=[8]",
        "timing=fixed",
        "timing.repetitions=20",
        "timing.warmup_s=0",
        "backend.model.slow_pair=0-2",
        "backend.model.slow_factor=3",
        "backend.model.noise=0.02",
        "backend.model.other_node_factor=10",
        "backend.model.call_s=0",
        "writer=console",
        f"output={tmp_path}",
    )
    text = capsys.readouterr().out.splitlines()
    output = joined(text)
    assert "p2p_bandwidth shows which is slow" in " ".join(output.split())
    assert "of the other pairs on one node" in " ".join(output.split())
    assert sum("0-2 takes" in line for line in text) == 1
    assert sum("!" in line for line in text) == 3  # the head and two cells


@pytest.mark.parametrize("factor", [1.0, 1.15])
def test_a_slow_rank_ends_a_run_with_1_and_is_named_with_its_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    """None of its pairs is slow by itself, so the rule on pairs is not printed."""
    words = [
        "backend=simulated",
        "layout=4x2",
        "pairs=all",
        "benchmark=p2p_latency",
        "sizes=[8]",
        "timing=fixed",
        "timing.repetitions=20",
        "timing.warmup_s=0",
        "backend.model.noise=0.02",
        "writer=console",
        f"output={tmp_path}",
    ]
    is_slow = factor > 1
    planted = [f"backend.model.slow_factor={factor}", "backend.model.slow_rank=3"]
    assert main([*words, *(planted if is_slow else [])]) == int(is_slow)
    text = " ".join(capsys.readouterr().out.split())
    named = r"p2p_latency 8 B: rank 3 takes 1\d % longer .*; commbench locate tells more \(node1\)"
    assert bool(re.search(named, text)) == is_slow
    assert "slow: takes more than" not in text


# ---------------------------------------------------------------- GPUs


def test_clocks_are_never_in_one_table() -> None:
    text = lines(
        row(timer="host_sync"),
        row(timer="graph", median_s=1e-6),
        row(timer="host_sync"),
    )
    heads = [index for index, line in enumerate(text) if line.startswith("benchmark")]
    modes = [line.split(":")[0] for line in text if line.startswith("timer")]
    assert modes == ["timer graph", "timer host_sync"]
    assert [cells(text[index - 1 :], "time") for index in heads] == [["1.00"], ["2.00", "2.00"]]
    graph_text = lines(row(timer="graph"))
    assert "timer graph" in graph_text[0] and not any(
        line.startswith("timer") for line in graph_text
    )
    assert "timer" not in lines(row(timer="host"))[0]


def test_the_share_of_the_limit_is_told_where_there_is_one() -> None:
    assert cells(lines(row(efficiency=0.9345), row(message_bytes=8)), "of limit") == ["-", "93.5"]
    assert not any("of limit" in line for line in lines(row()))


@pytest.mark.parametrize(
    ("visits", "waiting", "width", "shown"),
    [(6, 2, 100, True), (6, 2, None, False), (3, 2, 100, False), (6, 1, 100, False)],
)
def test_the_first_pass_is_shown_on_a_terminal_if_the_rest_takes_long(
    visits: int, waiting: int, width: int | None, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 1.5 s for two cases: the rest is 7.5 s for two of them with 6 visits, 3 to 3.75 s in
    the other cases."""
    now = [0.0]
    drafts: list[str] = []
    monkeypatch.setattr("commbench.report.console.time.monotonic", lambda: now[0])
    monkeypatch.setattr("commbench.report.console.print_draft", drafts.append)
    monkeypatch.setenv("COMMBENCH_TERMINAL", str(Terminal(width)))
    writer = Console()
    writer.begin({**RUN, "cases": 2, "config": {"timing": {"visits": visits}}}, "")
    now[0] = 1.5
    for number in range(2):
        reason = "interrupted" if number < waiting else "ci"
        writer.cases(
            [(row(case_id=str(number), message_bytes=8 << number, stop_reason=reason), {}, {})]
        )
    assert len(drafts) == shown
    if shown:
        last = drafts[0].splitlines()[-1]
        assert last == "pass 1 of 6; further passes over 2 cases follow"
        assert "p2p_latency" in drafts[0] and "not finished" not in drafts[0]
