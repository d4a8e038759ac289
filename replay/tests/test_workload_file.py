"""job.json says what a replay needs and nothing that names anybody; everything else is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import for_each
from places import TRACES
from trace_writers import Call, Schedule, write_flight_recorder, write_kineto

from commbench.core.errors import Unreadable
from commbench_replay.generators import generate
from commbench_replay.readers.registry import read_traces
from commbench_replay.recorded_workload import workload_of
from commbench_replay.training_job import training_job
from commbench_replay.workload import Workload
from commbench_replay.workload_file import parse_workload, workload_text

SCHEDULE = [
    Call("secret group", (0, 1, 2), "all_reduce", "float32", 100),
    Call("tp", (0, 1), "all_gather", "bfloat16", 64),
    Call("secret group", (0, 1, 2), "all_reduce", "float32", 100),
    Call("secret group", (0, 1, 2), "all_to_all_v", "int32", 0, ((1, 2, 3), (4, 5, 6), (7, 8, 0))),
]


def exported(schedule: Schedule, folder: Path) -> Workload:
    write_kineto(schedule, folder)
    return workload_of(training_job(read_traces([str(folder)])[0]))


def test_a_workload_has_operations_groups_order_and_gaps(tmp_path: Path) -> None:
    workload = exported(SCHEDULE, tmp_path)
    assert workload.groups == ((0, 1, 2), (0, 1)) and workload.ranks == 3
    names = [operation.operation for operation in workload.operations]
    assert names == ["all_reduce", "all_gather", "all_to_all_v"], "alike ones stand once"
    assert workload.operations[2].counts == ((1, 2, 3), (4, 5, 6), (7, 8, 0))
    assert workload.operations[2].input_bytes == (24, 60, 60)
    orders = {order.ranks: [call.operation for call in order.calls] for order in workload.orders}
    assert orders == {(0, 1): [0, 1, 0, 2], (2,): [0, 0, 2]}
    # rank r starts 40 us x r later; an operation ends after 500 us, the next begins after 1 ms
    (first, second, *_) = workload.orders[0].calls
    assert first.gap_s == 0 and second.gap_s == pytest.approx(520e-6)
    assert workload.operations[0].job_s == pytest.approx(420e-6)
    assert workload.unknown == ("reduction", "steps")


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    workload = exported(SCHEDULE, tmp_path)
    assert parse_workload(workload_text(workload), "job.json") == workload


def test_no_name_of_a_trace_and_no_absolute_time_is_in_the_file(tmp_path: Path) -> None:
    text = workload_text(exported(SCHEDULE, tmp_path))
    assert "secret" not in text and str(tmp_path) not in text
    keys = {"format", "version", "ranks", "steps", "step_s", "unknown", "groups", "operations"}
    keys |= {"orders", "calls", "group", "operation", "dtype", "input_bytes", "output_bytes"}
    keys |= {"counts", "job_s"}
    values = {"all_reduce", "all_gather", "all_to_all_v", "float32", "bfloat16", "int32"}
    words = set(re.findall(r'"([^"]*)"', text))
    assert words == keys | values | {"commbench workload", "reduction"}


def test_a_call_says_how_long_the_rank_computes_beside_it_and_without_that_has_three_parts(
    tmp_path: Path,
) -> None:
    """The work of call n is at 1010 + 1000 n us on rank 0, 40 us later on rank 1, until 1510."""
    write_kineto(SCHEDULE[:1] * 2, tmp_path, [(900, 1110), (1300, 1400), (1450, 2100)])
    workload = workload_of(training_job(read_traces([str(tmp_path)])[0]))
    calls = [call for order in workload.orders for call in order.calls]
    besides = [call.beside_s for call in calls]
    assert besides == [pytest.approx(220e-6), pytest.approx(50e-6)], "the median of three ranks"
    text = workload_text(workload)
    assert parse_workload(text, "job.json") == workload
    older = re.sub(r"(\[\d+,[\d.e-]+,\d+),[\d.e-]+\]", r"\1]", text)
    assert older != text
    read = parse_workload(older, "job.json")
    assert {call.beside_s for order in read.orders for call in order.calls} == {None}
    assert workload_text(read) == older, "so its digest stays"


def test_the_gap_before_the_first_call_is_what_the_steps_have_around_all_calls(
    tmp_path: Path,
) -> None:
    write_kineto(SCHEDULE[:1], tmp_path)
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 7, "tid": 7}
    for path in tmp_path.iterdir():
        document = json.loads(path.read_text())
        document["traceEvents"].append({**step, "ts": 700, "dur": 1300})
        path.write_text(json.dumps(document))
    workload = workload_of(training_job(read_traces([str(tmp_path)])[0]))
    ((call,),) = (order.calls for order in workload.orders)
    # of rank 1 of three: from 700 to 1050 us, and from 1510 to 2000
    assert call.gap_s == pytest.approx(840e-6)


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs real traces in {TRACES}")
@for_each(
    ("name", "message"),
    [
        ("kineto_vllm_tp8_b200_new", "7 of 8 ranks have no trace"),
        ("kineto_torchrec_a100_16rank_old", "15 of 16 ranks have no trace"),
        ("kineto_no_nccl_oldest_inference", "no communication"),
    ],
)
def test_what_does_not_say_all_that_a_replay_needs_is_not_exported(name: str, message: str) -> None:
    job = training_job(read_traces([str(TRACES / name)])[0])
    with pytest.raises(Unreadable, match=message):
        workload_of(job)


def test_operations_without_bytes_are_not_exported(tmp_path: Path) -> None:
    write_flight_recorder(SCHEDULE[:1], tmp_path)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("[[100]]", "[]"))
    job = training_job(read_traces([str(tmp_path)])[0])
    with pytest.raises(Unreadable, match="3 of 3 operations do not say its bytes"):
        workload_of(job)


def small() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        workload_text(generate("pipeline", {"ranks": "3", "hidden": "64", "microbatches": "2"}))
    )
    return document


def replaced(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


@for_each(
    ("change", "message"),
    [
        (replaced("format", value="x"), 'does not begin with "format"'),
        (replaced("version", value=2), "its version is 2, and this commbench reads 1"),
        (replaced("note", value=1), "the file has an unknown key 'note'"),
        (replaced("ranks", value=0), "ranks of the file is 0; allowed are whole numbers from 1"),
        (replaced("ranks", value=True), "ranks of the file is True"),
        (replaced("ranks", value=2), "group 0 is not a list of at most 2"),
        (replaced("groups", 0, value=[0, 0, 1]), "group 0 has no rank, or one twice"),
        (replaced("operations", 0, "operation", value="rm"), "operation 0 is 'rm'; allowed are"),
        (replaced("operations", 0, "dtype", value="x"), "dtype of operation 0 is 'x'; allowed"),
        (replaced("operations", 0, "input_bytes", value=[3]), "no multiple of its 2 B elements"),
        (replaced("operations", 0, "input_bytes", value=[2, 2]), "bytes of 2 ranks in a group"),
        (replaced("operations", 0, "peers", value=[0, 0]), "are not two ranks"),
        (replaced("operations", 0, "peers", value=None), "needs peers"),
        (replaced("operations", 0, "counts", value=[[1]]), "are not 3 x 3"),
        (replaced("operations", 0, "job_s", value=-1), "allowed are seconds from 0"),
        (replaced("orders", 0, "calls", 0, value=[9, None, 0]), "an operation of order 0 is 9"),
        (replaced("orders", 0, "calls", 0, value=[0, None]), "has not three or four parts"),
        (replaced("orders", 0, "calls", 0, value=[0, None, 0, -1]), "beside of order 0 is -1"),
        (replaced("orders", 0, "calls", 0, value=[0, None, 0, 1, 1]), "not a list of at most 4"),
        (replaced("orders", 0, "calls", value=[]), "a send has no receive"),
        (replaced("orders", 1, "ranks", value=[0]), "rank 0 has two orders"),
        (replaced("unknown", value=["rm"]), "unknown is"),
    ],
)
def test_what_is_not_of_the_format_is_refused(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    document = small()
    change(document)
    with pytest.raises(Unreadable, match=r"^job\.json is not a workload file") as refused:
        parse_workload(json.dumps(document), "job.json")
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_ranks_that_would_wait_forever_are_refused(tmp_path: Path) -> None:
    document = json.loads(workload_text(exported(SCHEDULE, tmp_path)))
    calls = document["orders"][0]["calls"]
    calls[2:] = reversed(calls[2:])
    with pytest.raises(Unreadable, match="the ranks of group 0 disagree on the order"):
        parse_workload(json.dumps(document), "job.json")


PATHS = st.sampled_from(
    [
        ("ranks",),
        ("groups",),
        ("groups", 0),
        ("operations", 0),
        ("operations", 1, "peers"),
        ("operations", 0, "counts"),
        ("operations", 0, "input_bytes"),
        ("orders",),
        ("orders", 0),
        ("orders", 0, "calls", 0),
        ("orders", 1, "ranks"),
        ("steps",),
        ("step_s",),
    ]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(path=PATHS, junk=JUNK)
def test_any_other_content_is_read_or_refused_in_one_line(
    path: tuple[str | int, ...], junk: Any
) -> None:
    document = small()
    replaced(*path, value=junk)(document)
    try:
        parse_workload(json.dumps(document), "job.json")
    except Unreadable as error:
        assert "\n" not in str(error)
