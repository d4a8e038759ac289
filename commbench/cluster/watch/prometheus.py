"""What `commbench watch` knows, as a file for the textfile collector of Prometheus' node_exporter.

The labels of a case are the variables in CASE_LABELS and those in which the cases of its suite
differ; they hold no name of a host and nothing of a single run. So the number of series depends on
the suite alone: at most MOST_SERIES_CASES cases, each with a series for each metric and verdict.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.cluster.baseline.suite_key import UPGRADED
from commbench.cluster.watch.changes import JudgedCase
from commbench.cluster.watch.state import CHANGES, CaseVerdict
from commbench.core.errors import ConfigError
from commbench.core.units import value_text
from commbench.core.variables import NAMES, Variables
from commbench.results.run_folder import replace_file

CASE_LABELS = ("backend", "benchmark", "layout", "dtype", "message_bytes")  # of every case
SUITE_LABEL = "suite"
VERDICT_LABEL = "verdict"
VERDICT_LABELS = [each.lower() for each in ("SAME", *CHANGES, "UNDECIDED")]
MOST_SERIES_CASES = 500
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class WatchedCase:
    """A case after a turn. `low_s`, `high_s`: the interval of the median; `least_s`, `most_s`: what
    a healthy run may have. A number that is not known is None, and has no series."""

    labels: Mapping[str, str]
    verdict: CaseVerdict
    median_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    least_s: float | None = None
    most_s: float | None = None
    healthy_runs: int = 0


# fields of a WatchedCase
CASE_METRICS = (
    ("median_s", "commbench_median_seconds", "Median time of an operation in the last run."),
    ("low_s", "commbench_interval_low_seconds", "Lower end of the interval of that median."),
    ("high_s", "commbench_interval_high_seconds", "Upper end of the interval of that median."),
    ("least_s", "commbench_healthy_low_seconds", "Least median that is expected of a healthy run."),
    (
        "most_s",
        "commbench_healthy_high_seconds",
        "Largest median that is expected of a healthy run.",
    ),
    ("healthy_runs", "commbench_healthy_runs", "Healthy runs of the case in the store."),
)
VERDICT_METRIC = "commbench_verdict"
LAST_RUN_METRIC = "commbench_last_run_timestamp_seconds"
METRIC_NAMES = (*(name for _, name, _ in CASE_METRICS), VERDICT_METRIC, LAST_RUN_METRIC)


def write_metrics(path: Path, suite: str, judged: Iterable[JudgedCase]) -> None:
    """Replace the file. Raises ConfigError where it can't be written."""
    cases = list(judged)
    labels = case_labels([each.case for each in cases])
    watched = [_watched_case(each, own) for each, own in zip(cases, labels, strict=True)]
    try:
        replace_file(path, metrics_text(suite, time.time(), watched).encode())
    except OSError as error:
        raise ConfigError(
            f"--prometheus {path} can't be written: {error.strerror}; the turn is stored"
        ) from error


def _watched_case(judged: JudgedCase, labels: Mapping[str, str]) -> WatchedCase:
    row, expected = judged.row, judged.expected
    return WatchedCase(
        labels,
        judged.verdict,
        median_s=None if row is None else row.median_s,
        low_s=None if row is None else row.ci_low_s,
        high_s=None if row is None else row.ci_high_s,
        least_s=None if expected is None else expected.low,
        most_s=None if expected is None else expected.high,
        healthy_runs=len(judged.history.healthy),
    )


def case_labels(cases: Sequence[Variables]) -> list[dict[str, str]]:
    """The labels of each case, from its variables: CASE_LABELS, and where the cases differ."""
    differing = [
        name
        for name in NAMES
        if name != UPGRADED and len({getattr(case, name) for case in cases}) > 1
    ]
    names = [*CASE_LABELS, *(name for name in differing if name not in CASE_LABELS)]
    return [{name: _label_text(getattr(case, name)) for name in names} for case in cases]


def _label_text(value: Any) -> str:
    """Prometheus takes an empty label for one that is absent."""
    return "" if value is None else value_text(value)


def metrics_text(suite: str, last_run_s: float, cases: Sequence[WatchedCase]) -> str:
    """The text of the file; `last_run_s` is seconds since 1970."""
    lines: list[str] = []
    for field, name, meaning in CASE_METRICS:
        values = [(case, getattr(case, field)) for case in cases]
        samples = [
            _sample(name, {SUITE_LABEL: suite, **case.labels}, float(value))
            for case, value in values
            if value is not None
        ]
        lines += _family(name, meaning, samples)
    verdicts = [
        _sample(
            VERDICT_METRIC,
            {SUITE_LABEL: suite, **case.labels, VERDICT_LABEL: label},
            float(case.verdict.lower() == label),
        )
        for case in cases
        for label in VERDICT_LABELS
    ]
    lines += _family(VERDICT_METRIC, "1 for the verdict on the case, 0 for all others.", verdicts)
    last_run = [_sample(LAST_RUN_METRIC, {SUITE_LABEL: suite}, last_run_s)]
    lines += _family(LAST_RUN_METRIC, "When the last run ended, in seconds since 1970.", last_run)
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, meaning: str, samples: Sequence[str]) -> list[str]:
    """The lines of a metric; none where no case has a value."""
    heading = [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
    return [*heading, *samples] if samples else []


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    texts = [f'{label}="{text.translate(ESCAPES)}"' for label, text in labels.items()]
    return f"{name}{{{','.join(texts)}}} {value!r}"
