"""The program of a replayed job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from loops import for_each

from commbench.core.errors import ConfigError
from commbench.core.program import (
    AllReduce,
    In,
    MatmulFor,
    Recv,
    Send,
    Sleep,
    Start,
    Step,
    WaitAll,
    operation_of,
)
from commbench.core.variables import Case, Gaps
from commbench_replay.benchmark import Replay, parse_late

MATMUL = MatmulFor(128, 3_000_000)
JOB = """{"format": "commbench workload", "version": 1,
"ranks": 4, "steps": 1, "step_s": null, "unknown": ["gaps", "times"],
"groups": [[0,1],[2,3],[0,1,2,3]],
"operations": [
{"group":0,"operation":"all_reduce","dtype":"float32","input_bytes":[64],"output_bytes":[64]},
{"group":1,"operation":"all_reduce","dtype":"float32","input_bytes":[64],"output_bytes":[64]},
{"group":2,"operation":"all_reduce","dtype":"float32","input_bytes":[128],"output_bytes":[128]},
{"group":2,"operation":"send_recv","dtype":"int8","input_bytes":[8],"output_bytes":[8],
 "peers":[3,1]}
],
"orders": [
{"ranks":[0],"calls":[[0,null,0],[2,null,1],[0,null,1]]},
{"ranks":[1],"calls":[[0,null,0],[2,null,1],[0,null,1],[3,null,0]]},
{"ranks":[2],"calls":[[1,null,0],[2,null,0]]},
{"ranks":[3],"calls":[[1,null,0],[2,null,0],[3,null,0]]}
]}"""


@pytest.fixture
def job(tmp_path: Path) -> Replay:
    path = tmp_path / "job.json"
    path.write_text(JOB)
    return Replay(str(path))


def sequence(job: Replay, ranks: int = 4) -> Case:
    return cases(job, ranks)[0]


def cases(job: Replay, ranks: int = 4) -> list[Case]:
    case = Case(
        benchmark="replay", backend="gloo", layout=f"1x{ranks}", engine="python",
        message_bytes=0, elements=0, cache="warm", sync="barrier", timing="quick", gaps="none",
    )  # fmt: skip
    return list(job.variants(case, ranks))


def test_the_sequence_and_each_signature_alone_are_cases(job: Replay) -> None:
    whole, *alone = cases(job)
    assert whole.workload is not None and whole.workload.startswith("job@")
    endings = [str(case.workload).partition(" #")[2] for case in alone]
    assert endings == ["0 all_reduce", "2 all_reduce", "3 send_recv"]
    assert [(case.dtype, case.message_bytes) for case in alone] == [
        ("float32", 64), ("float32", 128), ("int8", 8),
    ]  # fmt: skip
    assert all(case.gaps is None for case in alone)


def test_calls_that_overlap_are_started_and_others_are_not(job: Replay) -> None:
    steps = job.program(sequence(job), 0, 4).steps
    kinds = [type(step) for step in steps]
    assert kinds == [Start, Start, WaitAll, In, WaitAll]
    assert not job.program(sequence(job), 0, 4).unfinished
    assert not any(isinstance(step, Start) for step in job.program(sequence(job), 2, 4).steps)


@for_each(("gaps", "computing"), [("none", None), ("sleep", Sleep(3_000_000)), ("matmul", MATMUL)])
def test_a_call_that_the_rank_computes_beside_is_started_where_gaps_are_replayed(
    gaps: Gaps, computing: Step | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("job") / "job.json"
    path.write_text(JOB.replace("[1,null,0],[2,null,0]]", "[1,null,0,0.003],[2,null,0,0]]"))
    job = Replay(str(path))
    case = replace(sequence(job), gaps=gaps)
    steps = job.program(case, 2, 4).steps
    kinds = [type(step) for step in steps]
    if computing is None:
        assert kinds == [In, AllReduce]
    else:
        assert kinds == [Start, type(computing), WaitAll, AllReduce] and steps[1] == computing
    assert not job.program(case, 2, 4).unfinished


def test_an_operation_of_some_ranks_is_in_their_group_and_a_message_names_the_rank(
    job: Replay,
) -> None:
    case = sequence(job)
    assert job.groups(case, 4) == [(0, 1), (2, 3)]
    first, second = job.program(case, 2, 4).steps
    assert isinstance(first, In) and first.group == (2, 3)
    assert isinstance(second, AllReduce)
    assert isinstance(job.program(case, 3, 4).steps[-1], Send)
    last = operation_of(job.program(case, 1, 4).steps[-1])
    assert isinstance(last, Recv) and last.peer == 3


def test_fewer_ranks_replay_what_fits(job: Replay) -> None:
    case = sequence(job, 2)
    assert job.refusal(case, 2) is None
    assert len(job.program(case, 0, 2).steps) >= 3
    reasons = [job.refusal(each, 2) for each in cases(job, 2)]
    assert reasons[3] is not None and "not replayed by the first 2 ranks: ranks of" in reasons[3]
    assert "has 4 ranks, the layout 8" in str(job.refusal(sequence(job, 4), 8))


def test_only_the_ranks_of_an_operation_take_part_when_it_is_alone(job: Replay) -> None:
    alone = cases(job)[1]
    assert list(job.active(alone, 4)) == [0, 1]
    assert job.program(alone, 2, 4).steps == ()


def test_an_operation_alone_has_the_bus_factor_of_its_benchmark_and_the_sequence_none(
    job: Replay,
) -> None:
    whole, of_two, of_all, message = cases(job)
    assert job.bus_factor(whole, 4) is None
    assert job.bus_factor(of_two, 4) == 1.0
    assert job.bus_factor(of_all, 4) == 1.5
    assert job.bus_factor(message, 4) == 1.0
    assert job.shape(of_all, 4).moved_bytes == 128
    assert job.shape(whole, 4).moved_bytes == 64 + 128 + 64 + 8


def test_a_late_rank_is_a_rank_and_a_time() -> None:
    late = parse_late("3:400us")
    assert late is not None and (late.rank, late.ns) == (3, 400_000)
    for text in ("3", "3:4s", "x:4us", "3:-4us", "3:4us "):
        with pytest.raises(ConfigError, match="write it like 3:400us"):
            parse_late(text)


def test_a_workload_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    for text in (str(path), str(tmp_path / "missing.json"), str(tmp_path), "fsdp params=1e6"):
        with pytest.raises(ConfigError) as caught:
            cases(Replay(text))
        assert "\n" not in str(caught.value)
