"""torch's symmetric memory without a GPU: what torch's operations are asked, on a stand-in that
checks and computes what they do, in worlds of real ranks; what can't be had is one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import HOST_GPU
from refusals import refusal
from sample_cases import GPU_CASE
from shown_gpus import hgx, shown

from commbench.core.errors import ConfigError, Unsupported
from commbench.features.symm_mem import backend, operations
from commbench.features.symm_mem.backend import SymmetricAllocation, SymmMem, choose_memory
from commbench.features.symm_mem.lowering import call_named
from commbench.hardware import machine_facts

REDUCED = replace(GPU_CASE, algorithm="two_shot", reduction="sum", message_bytes=64, elements=16)
WORLD = (
    "commbench",
    "--config-dir",
    str(HOST_GPU / "conf"),
    "allow=[host_symm_mem]",
    "backend=host_symm_mem",
    "timing=fixed",
    "timing.repetitions=4",
    "timing.warmup_s=0",
)


@pytest.fixture(autouse=True)
def a_torch_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_facts, "installed_version", lambda names: "2.13.0+cu130")


def said(size: int = 2, memory: str = "cuda", **variables: Any) -> str | None:
    return refusal(SymmMem(memory=memory), replace(REDUCED, **variables), size)


# ---------------------------------------------------------------- what is measured


def test_each_algorithm_is_right_in_both_forms_eager_and_in_a_graph(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    words = (
        "benchmark=[all_reduce,all_gather,reduce_scatter]",
        "in_place=[true,false]",
        "dtype=bfloat16",  # below float32
        "timer=[host_sync,graph]",
        "cache=rotate",
        "sizes=[4kB]",
    )
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(2), HOST_GPU))
    cases = run.cases
    skipped = cases[cases.status != "ok"]
    assert set(skipped.reason) == {"two_shot writes sums into its input as well; use in_place=true"}
    measured = cases[cases.status == "ok"]
    assert (measured.wrong_elements == 0).all()
    found = {(row.benchmark, row.algorithm, row.in_place) for row in measured.itertuples()}
    assert found == {
        ("all_reduce", "one_shot", True),
        ("all_reduce", "one_shot", False),
        ("all_reduce", "two_shot", True),
        ("all_reduce", "multimem", True),
        ("all_reduce", "multimem", False),
        *(("all_gather", "multimem", form) for form in (True, False)),
        *(("reduce_scatter", "two_shot", form) for form in (True, False)),
    }
    assert len(measured) == len(found) * 2
    assert set(measured.transport) == {"symmetric memory (cuda)"}


def test_a_part_of_the_ranks_shares_memory_of_its_own(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("benchmark=all_reduce", "layout=[1x2,1x3]", "sizes=[64]")
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(3), HOST_GPU))
    assert (run.cases.status == "ok").all() and (run.cases.wrong_elements == 0).all()
    assert set(run.cases.layout) == {"1x2", "1x3"} and len(run.cases) == 6


def test_sums_that_depend_on_their_order_are_not_compared_with_those_of_groups(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """Only the ranks of the group would make scratch."""
    words = ("benchmark=all_reduce", "payload=rounding", "layout=1x4", "sizes=[1KiB]")
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(4), HOST_GPU))
    assert (run.cases.status == "ok").all() and len(run.cases) == 3
    assert run.cases.other_bits_beside.isna().all() and (run.cases.other_bits_again == 0).all()


def test_nvshmem_moves_blocks_in_the_whole_world(world: Callable[..., Any], tmp_path: Path) -> None:
    words = ("benchmark=[all_to_all,all_reduce]", "backend.memory=nvshmem", "sizes=[64]")
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(2), HOST_GPU))
    cases = run.cases
    assert (cases.status == "ok").all() and (cases.wrong_elements == 0).all() and len(cases) == 4
    assert set(cases.transport) == {"symmetric memory (nvshmem)"}


# ---------------------------------------------------------------- what is not


def test_gpus_without_multicast_skip_multimem_in_one_line(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("benchmark=[all_reduce,all_gather]", "backend.multicast=false", "sizes=[64]")
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(2), HOST_GPU))
    by_algorithm = run.cases.set_index(["benchmark", "algorithm"])
    assert by_algorithm.status["all_reduce"].to_dict() == {
        "one_shot": "ok",
        "two_shot": "ok",
        "multimem": "skipped",
    }
    (reason,) = set(by_algorithm.reason.dropna())
    assert reason.startswith("multimem needs GPUs of compute capability 9.0")


def test_a_rank_without_memory_for_its_copy_skips_the_case_on_all(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """The others would wait until the run is ended."""
    words = ("benchmark=all_reduce", "algorithm=one_shot", "in_place=true", "sizes=[64]")
    run = world(*WORLD, *words, "backend.full=1", env=shown(tmp_path, hgx(2), HOST_GPU))
    (row,) = run.cases.itertuples()
    assert row.status == "skipped"
    assert row.reason.startswith("out of memory on rank 1 at that moment: 128 B on cpu: ")


def test_the_samples_between_two_stamps_have_one_copy(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """Of 64 KiB in a block of 256 samples it would be 16 MiB."""
    words = ("benchmark=all_reduce", "algorithm=one_shot", "in_place=true", "sizes=[64KiB]")
    words += ("timer=throughput", "backend.full=1", "backend.allocations=8")
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(2), HOST_GPU))
    (row,) = run.cases.itertuples()
    assert row.status == "ok" and row.block_k > 8, row.reason
    assert row.wrong_elements == 0


def test_layouts_of_fewer_ranks_than_nvshmem_has_are_skipped_in_one_line(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("benchmark=all_reduce", "backend.memory=nvshmem", "layout=[1x2,1x3]", "sizes=[64]")
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(3), HOST_GPU))
    by_layout = run.cases.set_index("layout")
    assert set(by_layout.status["1x3"]) == {"ok"} and set(by_layout.status["1x2"]) == {"skipped"}
    (reason,) = set(by_layout.reason.dropna())
    assert "use a run for each layout" in reason


def test_memory_that_is_not_to_be_had_ends_the_run_in_one_line(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("benchmark=all_reduce", "sizes=[64]", "backend.refused=NCCL", "backend.memory=nccl")
    run = world(*WORLD, *words, env=shown(tmp_path, hgx(2), HOST_GPU), status=2)
    line = "commbench: backend.memory=nccl: SymmetricMemory has no allocator NCCL"
    assert run.stderr.strip() == line


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"benchmark": "broadcast", "root": 0}, "symm_mem has all_reduce, all_gather,"),
        ({"benchmark": "communicator_init", "until": "open"}, "symm_mem has all_reduce,"),
        ({"benchmark": "concurrent", "groups": "all_reduce@world"}, "one operation of all ranks"),
        ({"in_place": False}, "two_shot writes sums into its input as well; use in_place=true"),
        ({"benchmark": "all_gather"}, "torch's all_gather on symmetric memory is multimem only"),
        ({"reduction": "max"}, "symm_mem has no reduction max; use reduction=sum"),
        ({"dtype": "float16"}, "symm_mem adds float32 and bfloat16, not float16"),
        ({"message_bytes": 66, "dtype": "bfloat16", "elements": 33}, "66 B are none"),
        (
            {"benchmark": "reduce_scatter", "message_bytes": 8, "elements": 1},
            "symm_mem moves 8 B at once; the 4 B of a rank are no multiple",
        ),
        ({"staging": "pinned"}, "staging=pinned has no effect"),
        ({"cuda_ipc": "off"}, "cuda_ipc=off has no effect on it"),
    ],
)
def test_what_torch_lacks_is_skipped_with_its_reason(variables: Any, line: str) -> None:
    reason = said(**variables)
    assert reason is not None and line in reason and "\n" not in reason


def test_reduce_scatter_is_compiled_for_three_numbers_of_ranks() -> None:
    words = {"benchmark": "reduce_scatter", "message_bytes": 192, "elements": 16}
    assert said(3, **words) == "torch's reduce_scatter is for 2, 4 and 8 ranks, not 3"
    assert [said(ranks, **words) for ranks in (2, 4)] == [None, None]


def test_all_to_all_is_that_of_nvshmem_in_a_torch_that_sends_the_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = {"benchmark": "all_to_all", "in_place": False, "algorithm": None}
    assert said(**words, memory="nvshmem") is None
    assert "use backend.memory=nvshmem" in str(said(**words))
    assert "use in_place=false" in str(said(memory="nvshmem", **words | {"in_place": True}))
    monkeypatch.setattr(machine_facts, "installed_version", lambda names: "2.10.1")
    assert "needs torch 2.11 or newer; this is 2.10.1" in str(said(**words, memory="nvshmem"))


def test_a_torch_before_2_9_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "cuda_missing", lambda instead: None)
    assert SymmMem().missing() is None
    monkeypatch.setattr(machine_facts, "installed_version", lambda names: "2.8.0")
    assert SymmMem().missing() == "symmetric memory needs torch 2.9 or newer; this is 2.8.0"


def test_a_call_that_this_torch_has_not_is_named() -> None:
    assert call_named("one_shot_all_reduce_out") is not None
    with pytest.raises(Unsupported, match=r"has no torch.ops.symm_mem.ring_all_reduce"):
        call_named("ring_all_reduce")


def test_every_call_is_in_the_torch_that_is_installed() -> None:
    """Of the signatures that a build without CUDA has as well."""
    for forms in operations.CALLS.values():
        for name in forms.values():
            assert call_named(name) is not None


def test_a_memory_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match="allowed: cuda, nccl, nvshmem"):
        SymmMem(memory="gpu")


def test_nvshmem_that_is_not_there_is_told_before_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = SimpleNamespace(is_nvshmem_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", fake)
    assert "libnvshmem_host.so.3" in str(choose_memory("nvshmem"))


def test_memory_that_a_gpu_refuses_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*size: int, dtype: Any, device: Any) -> Any:
        raise RuntimeError("CUDA driver error: out of memory\nin a C++ file")

    def rendezvous(tensor: Any, group: Any) -> Any:
        raise RuntimeError("2 ranks on one GPU\nin a C++ file")

    fake = SimpleNamespace(empty=empty, rendezvous=rendezvous)
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", fake)
    with pytest.raises(MemoryError, match="1 KiB on cuda:0: CUDA driver error: out of memory"):
        SymmetricAllocation(1024, "cuda:0")
    memory = SymmetricAllocation.__new__(SymmetricAllocation)
    memory.tensor = None
    with pytest.raises(Unsupported, match="each other's memory: 2 ranks on one GPU"):
        memory.join(None)


def test_allocations_are_not_taken_from_torchs_pool_unless_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCH_SYMMMEM_IMPLICIT_POOL", raising=False)
    assert SymmMem().environment("auto", None)["TORCH_SYMMMEM_IMPLICIT_POOL"] == "0"
    monkeypatch.setenv("TORCH_SYMMMEM_IMPLICIT_POOL", "1")
    assert SymmMem().environment("auto", None)["TORCH_SYMMMEM_IMPLICIT_POOL"] == "1"
