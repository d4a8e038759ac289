"""Which stages of an acceptance can run, and that the network cards are tried one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from commbench.__main__ import main
from commbench.cluster.acceptance import stages as acceptance_stages
from commbench.cluster.acceptance.stages import (
    check_words,
    new_acceptance,
    read_acceptance_file,
    recorded_words,
    stage_jobs,
)
from commbench.config.compose import ConfigComposer
from commbench.config.experiments import requested_jobs
from commbench.core.errors import ConfigError
from commbench.hardware import network
from commbench.runtime.launch import CONFIG_DIR, SWEEP

TWO_CARDS = {
    f"network.interface.{name}.{key}": value
    for name in ("eth0", "eth1")
    for key, value in (("state", "up"), ("network", "10.0.0.0/24"), ("speed_mbit_per_s", 100_000))
}
PORTS = {f"network.rdma.mlx5_{number}:1.rate_gbit_per_s": 400.0 for number in range(2)}


def stages(*words: str) -> tuple[list[tuple[str, Sequence[str]]], list[str]]:
    """The stage and the last override of each job, and the lines of those left out."""
    given = ["experiment=acceptance", *words]
    with ConfigComposer() as composer:
        jobs, left_out = stage_jobs(composer, requested_jobs(composer, given, False).jobs)
    return [(job.settings.stage, recorded_words(job)[-1]) for job in jobs], left_out


@pytest.mark.parametrize(
    ("backend", "facts", "cards"),
    [
        ("gloo", TWO_CARDS, ["interface=eth0", "interface=eth1"]),
        ("nccl", TWO_CARDS, ["interface=eth0", "interface=eth1"]),
        (
            "nccl",
            TWO_CARDS | PORTS,
            ["++env.NCCL_IB_HCA='=mlx5_0:1'", "++env.NCCL_IB_HCA='=mlx5_1:1'"],
        ),
    ],
)
def test_pairs_are_measured_on_each_network_card(
    backend: str, facts: dict[str, object], cards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "collect", lambda: facts)
    jobs, left_out = stages(f"backend={backend}", "layout=8x2")
    assert [stage for stage, _ in jobs] == ["alone", "pairs", "rails", "rails", "scaling", "soak"]
    assert [word for stage, word in jobs if stage == "rails"] == cards
    assert left_out == []


def test_one_card_or_a_given_one_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {key: value for key, value in TWO_CARDS.items() if "eth1" not in key}
    monkeypatch.setattr(network, "collect", lambda: one)
    jobs, left_out = stages("backend=gloo", "layout=8x2")
    assert [stage for stage, _ in jobs] == ["alone", "pairs", "scaling", "soak"]
    assert left_out == [
        "stage rails is left out: this machine has one network card for it (interface=eth0)"
    ]
    monkeypatch.setattr(network, "collect", lambda: TWO_CARDS)
    _, left_out = stages("backend=gloo", "layout=8x2", "interface=eth1")
    assert left_out == ["stage rails is left out: all stages use interface=eth1"]


def timings(*words: str) -> dict[str, tuple[str, float | None, float, int]]:
    """Of each stage: its timing's name, duration_s, case_s and visits."""
    with ConfigComposer() as composer:
        words = ("experiment=acceptance", "backend=gloo", "layout=8x2", "scale=cpu", *words)
        jobs = requested_jobs(composer, words, False).jobs
    each = {job.settings.stage: job.settings.timing for job in jobs}
    return {
        stage: (timing.name, timing.duration_s, timing.case_s, timing.visits)
        for stage, timing in each.items()
    }


def test_a_timing_of_the_user_is_for_the_stages_that_are_no_soak() -> None:
    usual = timings()
    of_all = timings("timing=default", "timing.case_s=3", "timing.visits=2")
    assert of_all["soak"] == usual["soak"]
    assert {of_all[stage] for stage in ("alone", "pairs", "scaling")} == {("default", None, 3.0, 2)}


def test_the_keys_that_only_a_soak_has_are_for_the_soak() -> None:
    usual = timings()
    longer = timings("timing.duration_s=86400")
    assert longer["soak"][1] == 86400.0
    assert {**longer, "soak": None} == {**usual, "soak": None}


def test_one_stage_alone_takes_all_words() -> None:
    assert timings("part=5", "timing=quick")["soak"][:2] == ("quick", None)


def test_words_that_would_make_something_else_of_the_stages_are_refused() -> None:
    with ConfigComposer() as composer:
        check_words(composer, ["sizes=[8]", "timing=quick"])
        with pytest.raises(ConfigError, match="set pairs themselves; leave it out, or measure one"):
            check_words(composer, ["sizes=[8]", "pairs=all"])


def test_stages_that_compare_pairs_need_three_ranks() -> None:
    jobs, left_out = stages("backend=gloo", "layout=1x2")
    assert [stage for stage, _ in jobs] == ["alone", "scaling", "soak"]
    assert len(left_out) == 2 and "layout=1x2 has 2 ranks" in left_out[0]


def test_the_folder_remembers_what_was_asked_for(tmp_path: Path) -> None:
    folder, words = new_acceptance(
        ["experiment=acceptance", "output=elsewhere"], str(tmp_path), {SWEEP: "s", CONFIG_DIR: "c"}
    )
    assert words == ["experiment=acceptance", f"output='{folder}'"]
    assert read_acceptance_file(folder) == (words, {SWEEP: "s", CONFIG_DIR: "c"})


@pytest.mark.parametrize("text", ["{", "[]", '{"overrides": 1}'])
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "acceptance.json").write_text(text)
    with pytest.raises(ConfigError, match=r"acceptance.json can't be read.*begin the acceptance"):
        read_acceptance_file(tmp_path)


def test_force_resumes_also_the_stages_on_a_machine_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["experiment=acceptance", "backend=simulated", "layout=6x2"]
    folder, words = new_acceptance(words, str(tmp_path / "results"), {})
    with ConfigComposer() as composer:
        jobs, _ = stage_jobs(composer, requested_jobs(composer, words, False).jobs)
    for number, job in enumerate(jobs):
        run = folder / f"20260101T00000{number}.000000-0000"
        run.mkdir()
        (run / "run.json").write_text(json.dumps({"overrides": recorded_words(job)}))
    resumed: list[list[str]] = []

    def take(own: list[str]) -> int:
        resumed.append(own)
        return 0

    monkeypatch.setattr(acceptance_stages, "resume", take)
    assert main(["resume", str(folder), "--force"]) == 1, "no stage has results"
    assert [own[1:] for own in resumed] == [["--force"]] * len(jobs)
