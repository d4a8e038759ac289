"""nccl-tests: the columns of each version, several programs in a log, and what must be refused."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from other_tools import nccl_json, nccl_line, nccl_text

from commbench.features.other_tools.experiment import FileContent
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.readers.nccl_tests_json import NcclTestsJson
from commbench.features.other_tools.readers.text_log import TextLog

OPERATIONS = (
    "all_reduce", "all_gather", "alltoall", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter",
)  # fmt: skip
COLUMNS_OF_2_10 = {
    "all_gather": (), "all_reduce": ("redop",), "broadcast": ("root",), "reduce": ("redop", "root"),
    "reduce_scatter": ("redop",),
}  # fmt: skip


def read(text: str, name: str = "job.log") -> FileContent:
    return TextLog().read(ForeignFile(name, io.BytesIO(text.encode())))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_has_a_row_for_each_placement(operation: str) -> None:
    (experiment,) = read(nccl_text(operation)).experiments
    rows = experiment.rows
    assert [row.status for row in rows] == ["ok"] * 4
    assert [row.median_s for row in rows[:2]] == pytest.approx([400e-6, 390e-6])
    assert [row.in_place for row in rows[:2]] == [False, None if operation == "broadcast" else True]
    assert str(experiment.layout) == "1x8" and experiment.ranks == 8
    assert rows[0].dtype == "float32" and rows[0].wrong_elements == 0
    assert rows[0].ci_low_s is None and rows[0].cache is None


@pytest.mark.parametrize("operation", COLUMNS_OF_2_10)
def test_versions_before_2_13_have_fewer_columns_and_a_deviation(operation: str) -> None:
    columns = COLUMNS_OF_2_10[operation]
    text = nccl_text(operation, columns=columns, checked="error", wrong="4e-07")
    (experiment,) = read(text).experiments
    assert [row.status for row in experiment.rows] == ["ok"] * 4
    assert experiment.rows[0].wrong_elements is None


def test_values_out_of_bounds_without_a_count_withhold_what_deviates() -> None:
    text = nccl_text(checked="error", wrong="1e+00").replace("values : 0 OK", "values : 3 FAILED")
    assert {row.status for row in read(text).experiments[0].rows} == {"invalid"}


def test_a_log_has_several_programs_launchers_lines_and_versions() -> None:
    first = nccl_text("all_reduce").splitlines()
    second = nccl_text("all_gather", 16, nodes=2, version="2.18.3").splitlines()
    lines = [f"[1,0]<stdout>:{line}" for line in first]
    lines.insert(14, "[1,3]<stdout>:node-a:1:2 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[4] via P2P")
    text = "\n".join(["srun: job 7", *lines, *(f" 0: {line}" for line in second)]) + "\n"
    content = read(text)
    assert [each.rows[0].benchmark for each in content.experiments] == ["all_reduce", "all_gather"]
    assert [str(each.layout) for each in content.experiments] == ["1x8", "2x8"]
    assert content.experiments[1].version == "2.18.3"
    assert content.experiments[1].library == "NCCL 2.28.9"
    assert not content.problems.count


def test_ranks_that_ran_alone_without_mpi_are_experiments_of_their_own() -> None:
    one = nccl_text(ranks=1).splitlines()
    text = "\n".join(f"{rank}: {line}" for line in one for rank in (0, 1)) + "\n"
    assert [each.ranks for each in read(text).experiments] == [1, 1]


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "broadcast", "reduce"])
def test_an_unnamed_operation_is_the_only_one_that_its_numbers_allow(operation: str) -> None:
    (experiment,) = read(nccl_text(operation, named=False)).experiments
    assert experiment.rows[0].benchmark == operation


def test_an_operation_that_could_be_another_is_not_guessed() -> None:
    text = nccl_text("all_gather", named=False)
    content = read(text)
    assert not content.experiments
    assert "all_gather_perf or alltoall_perf" in content.problems.texts()[0]
    by_name = read(text, "logs/alltoall_perf-7.log").experiments
    by_command = read(f"+ mpirun -np 8 ./build/all_gather_perf -g 1\n{text}").experiments
    assert [by_name[0].rows[0].benchmark, by_command[0].rows[0].benchmark] == [
        "all_to_all", "all_gather",
    ]  # fmt: skip


def test_one_placement_timestamps_and_calls_one_by_one_have_their_columns() -> None:
    alone = nccl_text(times_us=(400.0,))
    assert [row.in_place for row in read(alone).experiments[0].rows] == [False, False]
    named = alone.replace("#wrong\n", "#wrong  i_min  i_max  i_p99  i_cv%  timestamp\n")
    lines = [
        f"{line}   390.0    420.0   410.0   1.2  2026-01-05 10:00:00" if " float " in line else line
        for line in named.splitlines()
    ]
    row = read("\n".join(lines) + "\n").experiments[0].rows[0]
    assert (row.min_s, row.max_s, row.p99_s) == pytest.approx((390e-6, 420e-6, 410e-6))


def test_in_place_alone_leaves_the_other_columns_empty() -> None:
    text = nccl_text(sizes=(8388608,))
    line = nccl_line("all_reduce", 8388608, 8, (400.0, 390.0))
    own = nccl_line("all_reduce", 8388608, 8, (390.0,)).replace("-1", "-1" + 32 * " ")
    (row,) = read(text.replace(line, own)).experiments[0].rows
    assert row.in_place is True and row.median_s == pytest.approx(390e-6)


def test_wrong_data_and_data_that_was_not_checked() -> None:
    wrong = read(nccl_text(wrong="12")).experiments[0].rows[0]
    assert wrong.status == "invalid" and "12 elements" in str(wrong.reason)
    assert wrong.median_s is None and wrong.wrong_elements == 12
    assert read(nccl_text(wrong="N/A")).experiments[0].rows[0].wrong_elements is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((" 20.97 ", " 2.62 "), "as if"),
        ((" 20.97 ", " 19.53 "), "GiB/s"),
        ((" 8388608 ", " 2097152 "), "elements of 4 bytes"),
    ],
)
def test_a_swapped_unit_is_said_with_the_line(change: tuple[str, str], said: str) -> None:
    text = nccl_text(sizes=(8388608,)).replace("8388608", " 8388608 ")
    assert change[0] in text
    rows = read(text.replace(*change)).experiments[0].rows
    assert rows[0].status == "invalid"
    assert said in str(rows[0].reason) and "line 17: " in str(rows[0].reason)


def test_a_killed_job_has_its_whole_lines() -> None:
    text = nccl_text(concluded=False)
    (experiment,) = read(text[:-30]).experiments
    assert experiment.is_cut and len(experiment.rows) == 2
    content = read(text + " 16777216 4194304 float sum -1 garbage\n")
    assert content.problems.texts() == [
        "line 19: not a line of the table: 16777216 4194304 float sum -1 garbage"
    ]


def test_groups_uneven_nodes_and_cut_lists_have_no_layout() -> None:
    text = nccl_text()
    for old, new in (
        (" Group  0 Pid  29007", " Group  1 Pid  29007"),
        ("29007 on node-a0", "29007 on b"),
    ):
        (experiment,) = read(text.replace(old, new)).experiments
        assert experiment.layout is None


def test_blocking_and_graphs_have_timers_of_their_own() -> None:
    blocking = nccl_text().replace("#\n# Using", "# Blocking Enabled: wait for completion\n# Using")
    graph = nccl_text().replace("graph: 0", "graph: 4")
    timers = [read(text).experiments[0].rows[0].timer for text in (nccl_text(), blocking, graph)]
    assert timers == ["throughput", "host_sync", "graph"]


def test_an_operation_that_commbench_has_not_is_named() -> None:
    assert "sendrecv_perf: an operation" in read(nccl_text("sendrecv")).problems.texts()[0]


# ---------------------------------------------------------------- JSON


def read_json(text: str) -> FileContent:
    file = ForeignFile("out.json", io.BytesIO(text.encode()))
    assert NcclTestsJson().recognises(file)
    return NcclTestsJson().read(file)


def test_json_has_what_the_text_has_and_no_secrets() -> None:
    (experiment,) = read_json(json.dumps(nccl_json())).experiments
    assert [row.status for row in experiment.rows] == ["ok", "ok"]
    assert experiment.rows[0].median_s == pytest.approx(366e-6)
    assert experiment.library == "NCCL 2.28.9" and str(experiment.layout) == "1x8"
    assert experiment.settings["env"] == ["NCCL_DEBUG=WARN"]
    assert not experiment.is_cut
    wrong: Any = read_json(json.dumps(nccl_json(wrong=3.0))).experiments
    assert wrong[0].rows[0].status == "invalid"


def test_cut_json_has_its_whole_results() -> None:
    document = nccl_json()
    document["results"] *= 3
    text = json.dumps(document)
    cut = text[: text.rindex('"in_place"')]
    (experiment,) = read_json(cut).experiments
    assert experiment.is_cut and len(experiment.rows) >= 4
