"""NCCL's log of calls, made from the format strings of NCCL 2.5 to 2.30."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import yaml
from places import HARDWARE_TEXTS

from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.readers.nccl_calls import NAMELESS, NO_COMMUNICATOR, NcclCalls
from commbench_replay.training_job import TrainingJob, training_job

FORMATS = yaml.safe_load((HARDWARE_TEXTS / "nccl_formats.yaml").read_text())
VERSIONS: list[str] = FORMATS["versions"]
WITH_IDS = VERSIONS[VERSIONS.index("2.16.2") :]
WITH_SPLITS = VERSIONS[VERSIONS.index("2.18.1") :]
RANKS = range(4)
VALUES: dict[str, Any] = {
    "function": "ncclCommInitRankConfig", "split_function": "ncclCommSplit",
    "id": 0xB4199A82C0D53582, "gpu": 0, "bus": 0x1B000, "key": 0,
    "buffer": 0x7F01, "number": 1, "datatype": 7, "reduction": 0, "root": 0, "stream": 0x55,
}  # fmt: skip


def printed(version: str, topic: str, place: int, **values: Any) -> list[str]:
    """The lines of a rank; values of C's own types are written as Python does."""
    number = VERSIONS.index(version)
    lines = []
    for of_topic, first, last, text, arguments in FORMATS["formats"]:
        if of_topic == topic and VERSIONS.index(first) <= number <= VERSIONS.index(last):
            known = {**VALUES, **values}
            form = re.sub(r"%(?:z[iu]|l*)", "%", text).replace("%p", "0x%x").replace("% ", "%d ")
            content = form % tuple(known[name] for name in arguments)
            process = f"node{place // 2}:{70 + place}:{100 + place} [{place % 2}]"
            lines.append(f"{process} NCCL INFO {content}")
    return lines


def log_of(version: str, rank: int, splits: int) -> list[str]:
    """A world of four, then `splits` times the groups (0, 2) and (1, 3), with a call in each."""
    world = 0x1000 * (rank + 1)
    lines = printed(version, "world", rank, communicator=world, rank=rank, ranks=4)
    lines += printed(
        version, "call", rank, operation="AllReduce", communicator=world, count=8, ranks=4
    )
    for number in range(splits):
        color = rank % 2
        address = world + number + 1
        lines += printed(
            version, "split", rank, communicator=address, rank=rank // 2, ranks=2, parent=world,
            color=color, splits=number + 1, split_id=0xC0 + color,
        )  # fmt: skip
        lines += printed(
            version, "call", rank, operation="AllGather", communicator=address, count=8, ranks=2
        )
    return lines


def read(lines: list[str]) -> TrainingJob:
    text = "\n".join(lines).encode()
    return training_job(NcclCalls().read(ForeignFile("nccl.log", io.BytesIO(text))))


def ranks_of(job: TrainingJob) -> list[tuple[str, tuple[int, ...] | None]]:
    return sorted({(each.operation, each.group.ranks) for each in job.collectives})


@pytest.mark.parametrize("version", WITH_SPLITS)
def test_the_splits_of_every_version_are_known_on_all_of_their_ranks(version: str) -> None:
    job = read([line for rank in RANKS for line in log_of(version, rank, 2)])
    assert (job.ranks, job.world_size, job.operations) == ((0, 1, 2, 3), 4, 12)
    assert ranks_of(job) == [
        ("all_gather", (0, 2)), ("all_gather", (1, 3)), ("all_reduce", (0, 1, 2, 3)),
    ]  # fmt: skip
    assert all(each.complete for each in job.collectives)
    groups = {each.group for each in job.collectives}
    assert len(groups) == 5, "the second split into the same ranks is another group"
    assert NO_COMMUNICATOR not in job.notes and NAMELESS not in job.notes


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_says_the_world_and_its_calls(version: str) -> None:
    job = read([line for rank in RANKS for line in log_of(version, rank, 0)])
    assert (job.ranks, job.world_size, job.operations) == ((0, 1, 2, 3), 4, 4)
    assert ranks_of(job) == [("all_reduce", (0, 1, 2, 3))]
    assert job.calls[3][0].input_bytes == 32 and job.calls[3][0].dtype == "float32"
    assert job.notes.get(NAMELESS, 0) == (0 if version in WITH_IDS else 4)


@pytest.mark.parametrize("version", WITH_SPLITS)
def test_glued_lines_of_several_ranks_are_as_many_messages(version: str) -> None:
    logs = [log_of(version, rank, 1) for rank in RANKS]
    assert len({len(log) for log in logs}) == 1
    glued = read(["".join(lines) for lines in zip(*logs, strict=True)])
    apart = read([line for log in logs for line in log])
    assert glued.ranks == (0, 1, 2, 3)
    assert ranks_of(glued) == ranks_of(apart) and glued.operations == 8


def test_a_split_whose_parent_is_not_in_the_log_is_said_and_its_rank_is_not_the_worlds() -> None:
    lines = [line for line in log_of("2.27.3", 1, 1) if "InitRank" not in line]
    text = "\n".join(lines).encode()
    (trace,) = NcclCalls().read(ForeignFile("rank1.log", io.BytesIO(text)))
    assert trace.notes == {NO_COMMUNICATOR: 2} and trace.rank == 1 and trace.world_size is None


def test_an_address_that_is_used_again_is_of_the_later_communicator() -> None:
    lines = []
    for rank in RANKS:
        log = log_of("2.18.1", rank, 1)
        again = [line.replace("c0 -", "d0 -").replace("c1 -", "d1 -") for line in log[2:]]
        lines += [*log, *again]
    groups = {each.group.name for each in read(lines).collectives}
    assert groups == {"0xb4199a82c0d53582 1", "0xc0 1", "0xc1 1", "0xd0 1", "0xd1 1"}
