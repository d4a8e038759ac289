"""Traffic of a mixture of experts."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.core.errors import ConfigError, Unsupported
from commbench.features.traffic.experts import USUAL, WORKLOADS, ExpertTraffic
from commbench.features.traffic.matrices import traffic_elements

MODELS = st.builds(
    ExpertTraffic,
    name=st.sampled_from(sorted(USUAL)),
    tokens=st.integers(1, 60),
    hidden=st.integers(1, 500),
    experts=st.sampled_from([12, 24, 48]),
    top_k=st.integers(1, 6),
    dtype=st.sampled_from(["bf16", "fp8"]),
    copies=st.sampled_from(["rank", "expert"]),
    seed=st.integers(0, 5),
    step=st.integers(0, 12),
)
RANKS = st.sampled_from([1, 2, 3, 4, 6, 12])


@settings(deadline=None)
@given(model=MODELS, ranks=RANKS, sender=st.integers(0, 11))
def test_each_token_chooses_top_k_different_experts(
    model: ExpertTraffic, ranks: int, sender: int
) -> None:
    experts = model.chosen(sender, ranks)
    assert experts.shape == (model.tokens, model.top_k)
    assert experts.min() >= 0 and experts.max() < model.experts
    assert all(len(set(row)) == model.top_k for row in experts.tolist())


@settings(deadline=None)
@given(model=MODELS, ranks=RANKS)
def test_combine_is_dispatch_in_the_other_direction(model: ExpertTraffic, ranks: int) -> None:
    dispatch = model.matrix(ranks, 1)
    combine = replace(model, phase="combine").matrix(ranks, 1)
    assert (combine == dispatch.T).all()


@settings(deadline=None)
@given(model=MODELS, ranks=RANKS)
def test_the_bytes_are_those_of_the_copies_of_all_tokens(model: ExpertTraffic, ranks: int) -> None:
    copies = model.matrix(ranks, 1) / model.token_bytes
    assert (copies == np.round(copies)).all()
    if model.copies == "expert":
        assert (copies.sum(axis=1) == model.tokens * model.top_k).all()
        return
    on_ranks = [
        len({expert * ranks // model.experts for expert in row})
        for row in model.chosen(0, ranks).tolist()
    ]
    assert copies[0].sum() == sum(on_ranks)
    assert copies.max() <= model.tokens


def test_every_machine_draws_the_same_experts() -> None:
    """Frozen: another routing would make results of the same name incomparable."""
    digests = {
        name: hashlib.sha256(USUAL[name].chosen(1, 4).tobytes()).hexdigest()[:8]
        for name in sorted(USUAL)
    }
    assert digests == {
        "W0_balanced": "8ff82003",
        "W1_hot_expert_set": "8197852b",
        "W2_hot_rank": "19c2b2a7",
        "W3_spread_hot_experts": "6ccedafe",
        "W5_zero_expert_rank": "e59c39b9",
        "W6_rotating_hotspot": "6143dad2",
        "W7_burst": "4fb40cb8",
        "moe": "f5a3ef05",
    }


def test_another_process_draws_the_same_experts() -> None:
    code = (
        "from commbench.features.traffic.experts import USUAL;"
        "print(USUAL['W1_hot_expert_set'].matrix(4, 1).tolist())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == str(USUAL["W1_hot_expert_set"].matrix(4, 1).tolist())


@pytest.mark.parametrize(
    ("dtype", "token_bytes"), [("bf16", 2 * 7168), ("fp8", 7168 + 4 * 7168 // 128)]
)
def test_a_token_has_the_bytes_of_its_type_and_scales(dtype: str, token_bytes: int) -> None:
    assert replace(USUAL["moe"], dtype=dtype).token_bytes == token_bytes


@pytest.mark.parametrize("imbalance", [1, 4])
def test_imbalance_is_the_weight_of_the_experts_of_the_first_rank(imbalance: int) -> None:
    model = ExpertTraffic.parse(f"moe tokens=4000 top_k=1 imbalance={imbalance}")
    received = model.matrix(4, 1).sum(axis=0)
    expected = imbalance / (imbalance + 3)
    assert received[0] / received.sum() == pytest.approx(expected, abs=0.02)


def heat(name: str, step: int = 0) -> list[float]:
    """The share of all choices that each of 8 experts has."""
    model = replace(USUAL[name], tokens=4000, step=step)
    return (np.bincount(model.chosen(0, 4).ravel(), minlength=8) / 8000).tolist()


def test_the_workloads_heat_the_experts_that_they_are_named_for() -> None:
    cold = 0.25 / 8
    hot = 0.75 / 2 + cold
    block = [hot, hot] + [cold] * 6
    assert heat("W0_balanced") == [0.125] * 8
    assert heat("W1_hot_expert_set") == pytest.approx(block, abs=0.02)
    assert heat("W2_hot_rank") == pytest.approx(block, abs=0.02)
    second = [0.75 / 4 + cold, cold] * 4
    assert heat("W3_spread_hot_experts") == pytest.approx(second, abs=0.02)
    assert heat("W5_zero_expert_rank") == pytest.approx([0] * 4 + [0.25] * 4, abs=0.02)
    assert heat("W6_rotating_hotspot", 2) == pytest.approx(block, abs=0.02)
    assert heat("W6_rotating_hotspot", 3) == pytest.approx(block[-2:] + block[:-2], abs=0.02)
    assert heat("W7_burst", 2) == pytest.approx([0.125] * 8, abs=0.02)
    assert heat("W7_burst", 3) == pytest.approx([0.3125] * 2 + [0.0625] * 6, abs=0.02)


@given(model=MODELS)
def test_the_text_of_a_model_is_read_as_the_same_model(model: ExpertTraffic) -> None:
    if model.name == "moe":
        model = replace(model, step=0)
    assert ExpertTraffic.parse(model.text) == model


def test_a_text_names_only_what_is_not_usual() -> None:
    assert ExpertTraffic.parse("moe top_k=8 tokens=16").text == "moe tokens=16"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("moe token=3", "moe has no parameter token; it has: tokens, hidden"),
        ("moe step=3", "moe has no parameter step"),
        ("W7_burst imbalance=3", "W7_burst has no parameter imbalance"),
        ("moe tokens", "tokens is not a whole number from 1 to 1048576; write e.g. tokens=4096"),
        ("moe tokens=0", "tokens=0 is not a whole number from 1"),
        ("moe tokens=1e3", "tokens=1e3 is not a whole number"),
        ("moe dtype=int4", "dtype=int4 is not one of bf16, fp8"),
        ("moe experts=4", "a token can't choose 8 of 4 experts"),
        ("W5_zero_expert_rank top_k=5", "a token can't choose 5 of 4 experts"),
    ],
)
def test_a_wrong_parameter_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ExpertTraffic.parse(text)


def test_ranks_that_can_not_share_the_experts_are_refused() -> None:
    with pytest.raises(Unsupported, match="256 experts can't be shared evenly by 3 ranks"):
        USUAL["moe"].matrix(3, 1)


def test_all_workloads_are_also_models() -> None:
    assert set(WORKLOADS) < set(USUAL)


def test_experts_are_drawn_once_for_all_sizes_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not depend on the size, and drawing those of many ranks takes seconds."""
    drawn = []
    draw = ExpertTraffic.matrix
    monkeypatch.setattr(
        ExpertTraffic,
        "matrix",
        lambda self, ranks, elements: drawn.append(ranks) or draw(self, ranks, elements),
    )
    for elements in range(1, 50):
        traffic_elements("moe tokens=2 seed=77", 2, elements, itemsize=4)
    assert drawn == [2]
