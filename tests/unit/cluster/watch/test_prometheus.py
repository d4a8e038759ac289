"""The file for Prometheus: its format, as the exposition format demands it, and its labels."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from sample_cases import CASE

from commbench.cluster.watch.prometheus import (
    CASE_LABELS,
    METRIC_NAMES,
    VERDICT_LABELS,
    WatchedCase,
    case_labels,
    metrics_text,
)
from commbench.core.variables import Case

SAMPLE = re.compile(
    r'(?P<name>[a-z_]+)\{(?P<labels>[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    r'(?:,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*)\} (?P<value>\S+)'
)
MEASURED = WatchedCase(
    {"benchmark": "all_reduce"}, "SLOWER", 1.2e-5, 1.1e-5, 1.3e-5, 0.9e-5, 1.05e-5, 14
)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Metric -> labels and values; fails for a line that is none."""
    read: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match["labels"]))
        read.setdefault(match["name"], []).append((labels, float(match["value"])))
    return read


def values(**differing: Any) -> Case:
    return replace(CASE, **differing)


def test_each_metric_has_its_help_and_type_right_above_its_samples() -> None:
    text = metrics_text("tp_dp", 1.7e9, [MEASURED, replace(MEASURED, labels={"benchmark": "b"})])
    order = [line.split("{")[0].split(" ") for line in text.splitlines()]
    heads = [words for words in order if words[0] == "#"]
    assert [words[1] for words in heads] == ["HELP", "TYPE"] * (len(heads) // 2)
    for help_words, type_words in zip(heads[::2], heads[1::2], strict=True):
        assert help_words[2] == type_words[2]
        assert type_words[3] == "gauge"
    names = [words[2] for words in heads[::2]]
    assert names == list(METRIC_NAMES)
    blocks = [words[0] for words in order if words[0] != "#"]
    assert list(dict.fromkeys(blocks)) == names
    assert text.endswith("\n")


def test_names_end_with_their_unit() -> None:
    for name in METRIC_NAMES:
        assert name.startswith("commbench_")
        assert name.endswith(("_seconds", "_verdict", "_runs"))


def test_a_measured_case_has_all_numbers_and_one_verdict() -> None:
    read = samples(metrics_text("tp_dp", 1.7e9, [MEASURED]))
    assert read["commbench_median_seconds"] == [
        ({"suite": "tp_dp", "benchmark": "all_reduce"}, 1.2e-5)
    ]
    assert read["commbench_healthy_runs"][0][1] == 14
    verdicts = {labels["verdict"]: value for labels, value in read["commbench_verdict"]}
    assert [*verdicts] == VERDICT_LABELS
    assert [name for name, value in verdicts.items() if value] == ["slower"]
    assert read["commbench_last_run_timestamp_seconds"] == [({"suite": "tp_dp"}, 1.7e9)]


def test_a_number_that_is_not_known_has_no_series() -> None:
    text = metrics_text("s", 1.0, [WatchedCase({"benchmark": "barrier"}, "UNDECIDED")])
    assert "commbench_median_seconds" not in text
    assert samples(text)["commbench_healthy_runs"][0][1] == 0


def test_labels_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    text = metrics_text(odd, 1.0, [replace(MEASURED, labels={"benchmark": odd})])
    label = samples(text)["commbench_median_seconds"][0][0]["benchmark"]
    assert label == r"a\"b\\c\nd"


def test_labels_are_the_main_variables_and_those_that_differ() -> None:
    rows = [values(pair="0-1"), values(pair="1-2"), values(pair="1-2", env=(("A", "1"),))]
    labels = case_labels(rows)
    assert [list(each) for each in labels] == [[*CASE_LABELS, "pair", "env"]] * 3
    assert labels[2]["env"] == "A=1"
    assert len({tuple(each.items()) for each in labels}) == 3, "no two cases share a series"


def test_a_new_version_of_the_library_begins_no_new_series() -> None:
    labels = case_labels([values(library="NCCL 2.27"), values(library="NCCL 2.28", pair="0-1")])
    assert "library" not in labels[0]


def test_no_label_names_a_host_or_a_run() -> None:
    names = set(case_labels([values(pair="0-1"), values(dtype="int8")])[0])
    assert not names & {"hosts", "run_id", "trial", "label", "case_id", "started_at"}
