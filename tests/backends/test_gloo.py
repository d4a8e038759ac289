"""gloo's tables against gloo itself: what they allow is exact in real worlds, what they refuse has a reason."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commbench.backends import gloo
from commbench.backends.gloo import Gloo
from commbench.contracts import Case
from commbench.dtypes import DTYPES

EVERY_STEP = str(Path(__file__).parent / "every_step.py")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_step_is_exact_or_refused(world: Callable[..., Any], size: int) -> None:
    done = world(sys.executable, EVERY_STEP, "gloo", str(size))
    assert done.status == 0, done.explain()
    found = [json.loads((done.output / f"{rank}.json").read_text()) for rank in range(size)]
    assert [rank["wrong"] for rank in found] == [[]] * size
    assert min(rank["ran"] for rank in found) > 150
    refused = {(*label.split()[::3], label.split()[4]): reason for label, reason in found[0]["refused"].items()}
    assert {operation for operation, *_ in refused} == {"all_reduce", "reduce", "reduce_scatter", "all_to_all"}
    for (operation, in_place, reduction), reason in refused.items():
        if operation == "all_to_all":
            assert in_place == "True" and "not sent yet" in reason
        elif operation != "reduce_scatter" and in_place == "False":
            assert "in place only" in reason
        else:
            assert reduction == "avg" and "no reduction avg of" in reason and "int" in reason


def case(**more: Any) -> Case:
    values = {"in_place": True, "reduction": None, "pair": None, "dtype": "float32"} | more
    return Case(
        backend="gloo", engine="python", timing_mode="host", timing="quick", sync="barrier", device="cpu",
        layout="1x2", message_bytes=8, count=2, window=None, root=None, schedule=None, streams=None, staging="none",
        cache="warm", cuda_ipc="auto", interface=None, **values,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_averages_are_of_floating_types(dtype: str) -> None:
    reason = Gloo().supports(case(benchmark="all_reduce", reduction="avg", dtype=dtype), 2)
    assert reason == (None if "float" in dtype else f"gloo has no reduction avg of {dtype}")


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
    asked = case(benchmark=benchmark, reduction=reduction)
    assert Gloo().supports(asked, 2) is None, "the installed torch has it"
    monkeypatch.setattr(gloo, "_installed", lambda: "2.7.1+cpu")
    reason = Gloo().supports(asked, 2)
    assert (reason is None) == (since is None)
    assert reason is None or (f"before torch {since}" in reason and "2.7.1" in reason)
    monkeypatch.setattr(gloo, "_installed", lambda: "2.10.0")
    assert Gloo().supports(asked, 2) is None


def test_a_message_to_oneself_is_refused() -> None:
    assert Gloo().supports(case(benchmark="p2p_latency", pair="0-1 2-2", in_place=None), 3)
    assert Gloo().supports(case(benchmark="p2p_latency", pair="0-1", in_place=None), 3) is None
