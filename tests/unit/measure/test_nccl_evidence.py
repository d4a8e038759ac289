"""What NCCL's log and a profile say of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gpu_cases import planned as planned_of
from places import HARDWARE_TEXTS
from read_nccl_logs import LINE, read

from commbench.core.case import Planned
from commbench.measure.nccl_evidence import LogReader, NcclEvidence, library_record

LOG = (HARDWARE_TEXTS / "nccl_2.21_shm.txt").read_text()
TUNING = (
    "h:1:2 [0] NCCL INFO AllReduce: 4000 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..7}\n"
)


def test_new_lines_belong_to_the_communicator_that_was_used() -> None:
    reader = read(
        (LINE.format(0, 1, "P2P/IPC"), (0, 1, 2, 3)),
        (LINE.format(0, 1, "NET/Socket/0"), (0, 2)),  # ranks 0 and 2 of the world
        (LINE.format(0, 3, "SHM/direct/direct"), (0, 2)),  # no such rank: somebody else's line
        ("", (1, 3)),
    )
    kinds, ports, complete = reader.record()
    assert reader.logged and complete and not ports
    assert sorted(kinds) == [[0, 1, ["P2P/IPC"]], [0, 2, ["NET/Socket"]]]
    other = read((LINE.format(0, 1, "P2P/CUMEM"), (0, 1)))
    merged = NcclEvidence().extended([reader.record(), other.record()], read())
    assert merged.kinds == {(0, 1): ("P2P/IPC", "P2P/CUMEM"), (0, 2): ("NET/Socket",)}
    assert not read().logged


def test_a_line_that_is_being_written_is_read_when_it_is_whole() -> None:
    line = LINE.format(0, 1, "P2P/IPC")
    for length in range(len(line)):
        reader = read((line[:length], (0, 1)), (line[length:], (0, 1)))
        assert reader.kinds == {(0, 1): ("P2P/IPC",)}


def test_a_plugin_over_libfabric_is_named_with_its_provider() -> None:
    log = (
        "n:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)\n"
        "n:1:1 [0] NCCL INFO Channel 07/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/1/GDRDMA\n"
    )
    assert read((log, (0, 1))).kinds == {(1, 0): ("NET/AWS Libfabric/GDRDMA (efa)",)}


def test_an_algorithm_is_that_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL_ALGO does not decide: NCCL ignores it where it does not apply, as for messages."""
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    names = ("broadcast", "p2p_latency", "exchange", "all_reduce")
    *others, reduced = (planned_of(benchmark, "1x8") for benchmark in names)
    reader = read((TUNING, tuple(range(8))), visited=[*others, reduced])
    evidence = NcclEvidence().extended([], reader)
    assert evidence.algorithm(reduced) == "NVLS"
    assert [evidence.algorithm(planned) for planned in others] == [None] * 3
    assert NcclEvidence().algorithm(planned_of("all_reduce", "1x8")) is None


NO_WINDOWS = "h:1:2 [0] NCCL INFO Symmetric memory is not supported. cuMemEnable 0\n"
KERNEL = "h:1:2 [0] NCCL INFO AllReduce [Symmetric]: 4000 Bytes -> Kernel {} nchannels 8\n"
REGISTERED = "h:1:2 [0] NCCL INFO register comm 0x5 buffer 0x7 size 4096\n"


def asking(registration: Any) -> Planned:
    planned = planned_of("all_reduce", "1x8")
    return replace(planned, case=replace(planned.case, registration=registration))


@pytest.mark.parametrize(
    ("asked", "text", "registered", "reason"),
    [
        ("symmetric", KERNEL.format("AllReduce_RSxLDMC_AGxSTMC"), "window", None),
        ("symmetric", TUNING, "none", "NCCL used no symmetric memory and ran NVLS"),
        ("symmetric", NO_WINDOWS, "none", "NCCL used no symmetric memory: cuMemEnable 0"),
        ("symmetric", "", None, None),
        ("local", REGISTERED, "local", None),
        ("local", NO_WINDOWS, None, None),
        ("none", REGISTERED + NO_WINDOWS, None, None),
    ],
)
def test_buffers_are_registered_as_the_log_says(
    asked: str, text: str, registered: str | None, reason: str | None
) -> None:
    planned = asking(asked)
    reader = read((text, tuple(range(8))), visited=[planned])
    evidence = NcclEvidence().extended([], reader)
    assert evidence.registered(planned) == registered
    assert evidence.unregistered(planned) == reason


def test_each_case_of_a_sweep_is_judged_by_the_lines_of_its_own_visits() -> None:
    """Of one process, in two passes."""
    texts = {
        "none": TUNING,
        "local": REGISTERED + TUNING,
        "symmetric": KERNEL.format("AllReduce_RSxLDMC_AGxSTMC"),
    }
    reader = LogReader()
    text = ""
    for asked in (*texts, *texts):
        text += texts[asked]
        reader.read({"nccl_log": text}, range(8), asking(asked).case.row_ids)
    evidence = reader.own
    seen = {asked: evidence.registered(asking(asked)) for asked in texts}
    assert seen == {"none": None, "local": "local", "symmetric": "window"}
    algorithms = [evidence.algorithm(asking(asked)) for asked in texts]
    assert algorithms == ["NVLS", "NVLS", "AllReduce_RSxLDMC_AGxSTMC"]


def test_lines_of_others_make_no_buffer_of_a_case_registered() -> None:
    reader = read((REGISTERED, tuple(range(8))), visited=[asking("symmetric")])
    assert NcclEvidence().extended([], reader).registered(asking("local")) is None


@pytest.mark.parametrize(
    ("kernel", "registered", "algorithm"),
    [
        (
            "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32(ncclSymkDevWorkArgs4K)",
            "window",
            "AllReduce_RSxLDMC_AGxSTMC",
        ),
        ("ncclSymDevKernel_AllGather_STMC(ncclSymDevArgs)", "window", "AllGather_STMC"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "none", None),
        ("Memcpy DtoD (Device -> Device)", None, None),
    ],
)
def test_the_kernels_of_a_profiled_call_are_proof(
    kernel: str, registered: str | None, algorithm: str | None
) -> None:
    before = asking("none")
    planned = asking("symmetric")
    reader = LogReader()
    reader.read({"nccl_log": "", "nccl_kernels": ["of others"]}, range(8), before.case.row_ids)
    names = ["of others", "void fill_kernel", kernel]
    reader.read({"nccl_log": "", "nccl_kernels": names}, range(8), planned.case.row_ids)
    evidence = reader.own
    assert evidence.registered(planned) == registered
    assert evidence.algorithm(planned) == algorithm and evidence.algorithm(before) is None
    name = kernel.partition("(")[0]
    reason = f"NCCL used no symmetric memory and ran {name}" if registered == "none" else None
    assert evidence.unregistered(planned) == reason


def test_a_line_has_the_bytes_of_a_block() -> None:
    line = (
        "h:1:2 [0] NCCL INFO AllGather: {} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..7}}"
    )
    planned = planned_of("all_gather", "1x8")
    for logged_bytes, algorithm in ((planned.case.message_bytes // 8, "RING"), (4000, None)):
        text = f"{line.format(logged_bytes)}\n"
        reader = read((text, tuple(range(8))), visited=[planned])
        assert NcclEvidence().extended([], reader).algorithm(planned) == algorithm


def test_a_log_is_recorded_as_what_it_says() -> None:
    kept = library_record({"library": "torch 2.11 nccl 2.21.5", "nccl_log": LOG})
    assert "nccl_log" not in kept and kept["library"].startswith("torch")
    assert kept["nccl"]["version"].startswith("2.21") and "SHM" in kept["nccl"]["transport"]
    assert library_record({"library": "gloo"}) == {"library": "gloo"}
