"""gloo's tables against gloo itself: what they allow is exact in real worlds, what they refuse has
a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import HOST_GPU, SUPPORT
from refusals import program_of, refusal
from sample_cases import CASE
from shown_gpus import ask, hgx, shown

import commbench
from commbench.backends.torch import gloo
from commbench.backends.torch.gloo import Gloo
from commbench.config.compose import ConfigComposer
from commbench.core.payload import DTYPES
from commbench.core.variables import Case

EVERY_STEP = str(SUPPORT / "every_step.py")


@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.long) for n in (1, 2)), 3])
def test_every_step_is_exact_or_refused(world: Callable[..., Any], size: int) -> None:
    done = world("python", EVERY_STEP, "gloo", str(size))
    ranks = [json.loads((done.output / f"{rank}.json").read_text()) for rank in range(size)]
    assert [rank["wrong"] for rank in ranks] == [[]] * size
    assert min(rank["ran"] for rank in ranks) > 150
    refused = {
        (*label.split()[::3], label.split()[4]): reason
        for label, reason in ranks[0]["refused"].items()
    }
    assert {operation for operation, *_ in refused} == {
        "all_reduce",
        "reduce",
        "reduce_scatter",
        "all_to_all",
    }
    for (operation, in_place, reduction), reason in refused.items():
        if operation == "all_to_all":
            assert in_place == "True" and "not sent yet" in reason
        elif operation != "reduce_scatter" and in_place == "False":
            assert "in place only" in reason
        else:
            assert f"no reduction {reduction} of" in reason
            assert "float8" in reason or (reduction == "avg" and "int" in reason)


def case(**values: Any) -> Case:
    return replace(CASE, **{"in_place": True, **values})


@pytest.mark.parametrize("dtype", DTYPES)
def test_averages_are_of_floating_types(dtype: str) -> None:
    reason = refusal(Gloo(), case(benchmark="all_reduce", reduction="avg", dtype=dtype), 2)
    is_known = dtype in ("float64", "float32", "float16", "bfloat16")
    assert reason == (None if is_known else f"gloo has no reduction avg of {dtype}")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_moved_and_not_reduced(dtype: str) -> None:
    reason = refusal(Gloo(), case(benchmark="all_reduce", reduction="max", dtype=dtype), 2)
    assert reason == f"gloo has no reduction max of {dtype}"
    assert refusal(Gloo(), case(benchmark="broadcast", dtype=dtype), 2) is None


@pytest.mark.parametrize(
    ("benchmark", "reduction", "since"),
    [
        ("all_reduce", "sum", None),
        ("all_reduce", "avg", "2.8"),
        ("reduce", "avg", "2.8"),
        ("reduce", "max", None),
        ("reduce_scatter", "sum", None),
        ("reduce_scatter", "max", "2.8"),
    ],
)
def test_an_older_torch_lacks_some_reductions(
    monkeypatch: pytest.MonkeyPatch, benchmark: str, reduction: str, since: str | None
) -> None:
    reduction_case = case(benchmark=benchmark, reduction=reduction)
    assert refusal(Gloo(), reduction_case, 2) is None, "the installed torch has it"
    monkeypatch.setattr(gloo, "torch_version", lambda: "2.7.1+cpu")
    reason = refusal(Gloo(), reduction_case, 2)
    assert (reason is None) == (since is None)
    assert reason is None or (f"before torch {since}" in reason and "2.7.1" in reason)
    monkeypatch.setattr(gloo, "torch_version", lambda: "2.10.0")
    assert refusal(Gloo(), reduction_case, 2) is None


def test_a_message_to_oneself_is_refused() -> None:
    assert refusal(Gloo(), case(benchmark="p2p_latency", pair="0-1 2-2", in_place=None), 3)
    assert refusal(Gloo(), case(benchmark="p2p_latency", pair="0-1", in_place=None), 3) is None


@pytest.mark.parametrize(
    ("benchmark", "staging", "timer", "reason"),
    [
        ("all_reduce", "library", "host_sync", None),
        ("all_reduce", "pinned", "host_sync", None),
        ("p2p_latency", "pinned", "host_sync", None),
        ("barrier", "none", "host_sync", None),
        ("p2p_latency", "none", "host_sync", "can't send GPU memory directly"),
        (
            "all_reduce",
            "library",
            "device_event",
            "timer=device_event would not time all of it",
        ),
        ("p2p_latency", "pinned", "graph", "timer=graph would not time all of it"),
    ],
)
def test_what_gloo_does_with_gpu_memory(
    benchmark: str, staging: str, timer: str, reason: str | None
) -> None:
    gpu_case = case(benchmark=benchmark, device="cuda", staging=staging, timer=timer, pair="0-1")
    answer = refusal(Gloo(), gpu_case, 2)
    assert (answer is None) if reason is None else (reason in str(answer))


def staging_of(benchmark: str) -> str:
    return Gloo().staging(program_of(case(benchmark=benchmark, pair="0-1"), 2))


def test_who_copies_is_told_for_every_operation() -> None:
    with ConfigComposer() as composer:
        copiers = {name: staging_of(name) for name in composer.options("benchmark")}
    assert copiers.pop("barrier") == "none"
    assert {name for name, staging in copiers.items() if staging == "library"} == {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "all_to_all_v",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "replay",
        "scatter",
    }
    assert {
        staging for name, staging in copiers.items() if name.startswith(("p2p", "exchange"))
    } == {"pinned"}


def test_a_driver_is_missing_for_cuda_only(tmp_path: Path) -> None:
    code = "[Gloo().missing('cpu'), Gloo().missing('cuda')]"
    imports = "from commbench.backends.torch.gloo import Gloo"
    on_cpu, on_cuda = ask(tmp_path, None, code, imports)
    assert (
        on_cpu is None
        and on_cuda.startswith("no NVIDIA driver")
        and on_cuda.endswith("or take device=cpu")
    )


@pytest.mark.long
def test_messages_are_staged_and_collectives_given_as_they_are(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """On CPU tensors in a GPU's place (tests/support/host_gpu): what is copied and by whom, and
    that it is right."""
    run = world(
        "commbench",
        "--config-dir",
        str(HOST_GPU / "conf"),
        "allow=[host_gpu]",
        "backend=host_gloo",
        "layout=1x2",
        "benchmark=all",
        "sizes=[12kB]",
        "window=3",
        "timing=fixed",
        "timing.repetitions=5",
        "timing.warmup_repetitions=1",
        "timing.warmup_s=0",
        env=shown(tmp_path, hgx(1), HOST_GPU),
    )
    cases = run.cases[~run.cases.benchmark.str.startswith(("copy_", "stream"))]
    assert set(cases.status) == {"ok"} and (cases.wrong_elements == 0).all()
    assert dict(zip(cases.benchmark, cases.staging, strict=True)) == {
        name: staging_of(name) for name in cases.benchmark
    }
    counters = commbench.load(run.output, table="counters")
    locked = counters[counters.name == "gpu.locked_buffers"].merge(
        cases[["case_id", "staging"]], on="case_id"
    )
    assert (locked[locked.staging == "pinned"].value > 0).all(), (
        "twins are locked while they are used"
    )
    assert (locked[locked.staging != "pinned"].value == 0).all(), "and unlocked with their case"
