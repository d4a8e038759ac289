"""The list of sections of a report: verdicts first, then figures, numbers and what they rest on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from generated_results import run_of
from places import HARDWARE_TEXTS

import commbench
from commbench.core import annexes
from commbench.core.terminal import Terminal
from commbench.hardware.topology import TOPOLOGY_FACT, parse_topo
from commbench.report.distributions import RawData
from commbench.report.reporting import Reporting
from commbench.report.section import Section, report_text
from commbench.report.sections import answers, sections
from commbench.report.summary import Comparison, Summary, read_results
from commbench.results.row import plain_values, row_of
from commbench.runtime.folder_lock import is_measured_into


def summary_of(folder: Path, benchmark: str | None = "all_reduce") -> Summary:
    return Summary(read_results([folder], benchmark), is_measured_into)


def by_title(summary: Summary) -> dict[str, Section]:
    return {section.title: section for section in sections(summary, RawData())}


@pytest.fixture(scope="module")
def three_ways(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gloo, mpi from C, mpi from Python."""
    folder = tmp_path_factory.mktemp("runs")
    for number in range(3):
        run_of(folder, number)
    return folder


def only(monkeypatch: pytest.MonkeyPatch, *features: Reporting) -> None:
    """Reports ask these features and no others."""
    monkeypatch.setattr(
        annexes, "_registered", lambda kind: features if kind == "Reporting" else ()
    )


def test_a_verdict_comes_first_then_answers_and_what_an_annex_adds_behind_them(
    three_ways: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annex = Reporting(
        sections={
            "verdict": lambda summary: [Section("Acceptance", ["all pass"])],
            "answers": lambda summary: [Section("Replay", ["as measured"])],
        }
    )
    only(monkeypatch, annex)
    listed = sections(summary_of(three_ways), RawData())
    titles = [section.title for section in listed[:4]]
    assert titles == ["Acceptance", "Answers", "Replay", "all_reduce"]


def test_what_to_choose_comes_last_with_what_it_rests_on(
    three_ways: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooses = Reporting(choices=lambda summary: ["mpi above all."])
    knows = Reporting(answers=lambda summary: ["All are stable."])
    only(monkeypatch, chooses, knows)
    *_, known, choice, basis = answers(summary_of(three_ways))
    assert (known, choice) == ("All are stable.", "mpi above all.")
    assert basis.startswith("Each case was measured in one launch")


def test_of_runs_that_are_all_compared_the_comparison_is_the_answer(three_ways: Path) -> None:
    found = Comparison(three_ways, "NEW is faster.", Section("Comparison", ["FASTER"]))
    results = read_results([three_ways], "all_reduce")
    compared = Summary(replace(results, comparisons=(found,)))
    assert answers(compared)[0] == "NEW is faster."
    assert "Comparison" in by_title(compared)
    assert list(compared.basis_of_choices()) == []
    elsewhere = replace(results, comparisons=(found._replace(folder=three_ways / "ab"),))
    assert list(Summary(elsewhere).basis_of_choices()) != []


def test_what_has_nothing_to_show_is_left_out(three_ways: Path) -> None:
    titles = by_title(summary_of(three_ways))
    assert {"Best backend and layout for each size", "Machines"} <= set(titles)
    assert not {"All pairs", "Over time", "Groups at once", "Not measured"} & set(titles)


def test_the_answers_say_how_well_the_numbers_are_known_and_why(tmp_path: Path) -> None:
    node = {"host.hostname": "a", "host.load_1min": 9.0, "host.cpu_logical_cores": 2}
    run_of(tmp_path, 0, provenance={"nodes": [node]})
    notes = " ".join(by_title(summary_of(tmp_path))["Answers"].notes)
    assert "Of 10 numbers these are known: 10 to 5 %" in notes
    assert "busy: load 9.00 on 2 cores" in notes and "±: 95 % confidence interval" in notes


def test_a_run_that_did_not_end_is_the_first_answer_on_terminal_and_page(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0, status="interrupted", cases=128)
    listed = sections(summary_of(tmp_path), RawData())
    assert listed[0].sentences[0].startswith(f"Run {run.name} was interrupted: 10 of 128")
    assert f"* Run {run.name} was interrupted" in report_text(listed, 30, Terminal(None))


def test_cases_that_no_figure_shows_are_named(three_ways: Path) -> None:
    results = read_results([three_ways], "all_reduce")
    rows = [
        replace(row, engine="virtual" if at < 3 else "python")
        for at, row in enumerate(results.rows)
    ]
    (sentence,) = by_title(Summary(replace(results, rows=rows)))["Not measured"].sentences
    assert sentence.startswith("Left out: 3 cases simulated or of one rank")


def test_machines_are_one_table_in_which_what_differs_comes_first(tmp_path: Path) -> None:
    for number, kernel in enumerate(("6.1", "6.12")):
        node = {"host.hostname": f"n{number}", "host.cpu_model": "Test CPU", "host.kernel": kernel}
        run_of(tmp_path, number, provenance={"nodes": [node]})
    tables = by_title(summary_of(tmp_path))["Machines"].tables
    (facts,) = [table for table in tables if table.heads[0] == "fact"]
    assert list(facts.heads) == ["fact", "n0", "n1"]
    assert list(facts.rows) == [("kernel", "6.1", "6.12"), ("CPU", "Test CPU", "Test CPU")]


def test_the_topology_matrix_stands_with_the_machines_on_a_terminal(tmp_path: Path) -> None:
    table = (HARDWARE_TEXTS / "topo_dgx_a100.txt").read_text()
    node = {"host.hostname": "n0", TOPOLOGY_FACT: table, "topology.reason": None}
    run_of(tmp_path, 0, provenance={"nodes": [node]})
    text = by_title(summary_of(tmp_path))["Machines"].text(30, Terminal(80))
    assert parse_topo(text.partition("\ntopology of n0\n")[2]) == parse_topo(table)
    assert "\\" not in text and "No topology matrix" not in text


def test_every_measured_case_is_listed_by_name_and_size(three_ways: Path) -> None:
    listed = by_title(summary_of(three_ways))["30 distinct measured cases"]
    (table,) = listed.tables
    assert listed.is_folded and not listed.is_on_terminal
    names = [str(row[0]) for row in table.rows]
    assert [name.split(", ")[1].split()[0] for name in names] == ["gloo"] * 10 + ["mpi"] * 20
    assert names[:2] == ["all_reduce 8 B, gloo python", "all_reduce 32 B, gloo python"]


def test_flags_and_lost_cases_have_their_reason(three_ways: Path) -> None:
    results = read_results([three_ways], "all_reduce")
    values = {"reason": "a call failed", "warnings": ["skewed"]}
    cases = [
        row_of(plain_values(row) | values | {"status": "ok" if at else "failed"})
        for at, row in enumerate(results.rows)
    ]
    titles = by_title(Summary(replace(results, rows=cases)))
    assert list(titles["Flags"].tables[0].rows[0])[:2] == ["skewed", str(len(cases) - 1)]
    assert list(titles["Not measured"].tables[0].rows[0])[:3] == ["failed", "1", "a call failed"]


PAIRS = Reporting(
    on_matrix=lambda matrix: [f"{len(matrix.rows)} pairs"],
    answers=lambda summary: [f"{len(summary.results.rows)} cases"],
)


def test_many_pairs_come_first_with_their_symmetry_and_what_features_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("backend=simulated", "layout=2x2", "pairs=all", "benchmark=p2p_bandwidth")
    few = ("timing=fixed", "timing.repetitions=50", "sizes=[8]", "writer=parquet")
    commbench.run(*words, *few, f"output={tmp_path}")
    only(monkeypatch, PAIRS)
    listed = sections(Summary(read_results([tmp_path])), RawData())
    assert [section.title for section in listed[:2]] == ["Answers", "All pairs"]
    symmetry, *added = listed[0].sentences
    assert re.search(r"\d of 6 pairs (not )?(symmetric|undecided)", symmetry)
    assert added[:2] == ["16 pairs", "16 cases"]
    assert all("GB/s (" in text for text in listed[1].sentences), "as the matrix"
