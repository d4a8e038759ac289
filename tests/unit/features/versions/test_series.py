"""Series over a variable: what belongs together, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from version_rows import planted, results_of

from commbench.core.errors import ConfigError
from commbench.features.versions.series import all_series
from commbench.report.summary import Results


def test_machines_and_labels_are_series_of_their_own() -> None:
    rows = planted(1.0, 2, 0.01, 0)
    names = {"1.9-0": "A", "2.0-0": "A", "1.9-1": "B", "2.0-1": "B"}
    rows = [row for row in rows if row.run_id in names]
    records = tuple(
        {"run_id": run, "provenance": {"nodes": [{"gpu.0.name": gpu}]}}
        for run, gpu in names.items()
    )
    series = all_series(Results(rows, records, {}, ()), "library_version")
    assert len(series.rows) == 60, "30 of each machine"
    labelled = [replace(row, label=row.library_version) for row in rows]
    assert len(all_series(results_of(labelled), "library_version").rows) == 30, "they say it again"


def test_values_of_which_no_two_are_of_a_case_are_no_values() -> None:
    rows = planted(1.0, 2, 0.01, 0)
    other = [replace(row, backend="mpi", library_version="1.10.1") for row in rows[:1]]
    series = all_series(results_of([*other, *rows]), "library_version")
    assert series.values == ("1.9", "1.10", "1.11", "1.12", "2.0")
    assert not series.common, "no step of all"


@pytest.mark.parametrize(
    ("over_what", "message"),
    [
        ("colour", "--over colour is no variable of these results"),
        ("env", "--over env has several values a case; take one, as in env.NAME"),
        ("message_bytes", "--over message_bytes is no variable of these results"),
    ],
)
def test_what_can_not_be_a_series_is_refused_in_one_line(over_what: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        all_series(results_of(planted(1.0, 1, 0.01, 0)), over_what)
    assert "\n" not in str(error.value)
