"""Where published values are told: in a report, and at the end of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_results import run_of

from commbench.cli import jobs
from commbench.cli.report import report
from commbench.cli.run import run
from commbench.report.distributions import RawData
from commbench.report.section import Section
from commbench.report.sections import sections
from commbench.report.summary import Summary, read_results


def by_title(folder: Path, benchmark: str = "all_reduce") -> dict[str, Section]:
    summary = Summary(read_results([folder], benchmark))
    return {section.title: section for section in sections(summary, RawData())}


def test_whether_numbers_are_normal_is_said_in_these_words_or_with_the_value(
    tmp_path: Path,
) -> None:
    run_of(tmp_path, 1, label="somewhere")
    first, *without, how = by_title(tmp_path)["Is this number normal?"].sentences
    assert "no value for this kind of machine" in first
    assert without == ["all_reduce mpi 1x2: no value of any machine"]
    assert how.startswith("Add your own: commbench reference add RUN --name ")
    vm = {"host.hostname": "a", "host.cpu_model": "AMD EPYC", "host.cpu_logical_cores": 2}
    run_of(tmp_path / "vm", 1, provenance={"nodes": [vm]})
    titles = by_title(tmp_path / "vm", "p2p_latency")
    (line,) = titles["Is this number normal?"].sentences
    assert (
        line.startswith("p2p_latency 32 B: ") and "normal on virtual machine with 2 cores" in line
    )
    assert "218 ns .. 2.17 us (" in line
    in_detail = titles["Known values of this kind of machine"]
    ((case, _, known, _, which, source, _, _),) = in_detail.tables[0].rows
    assert case.startswith("p2p_latency 32 B") and known.endswith("218 ns .. 2.17 us")
    assert which.endswith("2 cores of an AMD EPYC: MPI over shared memory")
    assert source.startswith("commbench docs/perf.md, 2026-11-21")
    assert in_detail.is_folded and not in_detail.is_on_terminal


def test_what_a_layer_adds_is_drawn(tmp_path: Path) -> None:
    """gloo, mpi from C, mpi from Python."""
    for number in range(3):
        run_of(tmp_path, number)
    assert "What a layer adds" in by_title(tmp_path)


def test_the_quiz_ends_with_its_answer_and_the_report_has_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its document publishes how many ranks and ints there are: no result to compare."""
    words = ["experiment=exchange_quiz", "backend=simulated", "scale=cpu", f"output={tmp_path}"]
    assert run(words) == 0
    answer = capsys.readouterr().out.split("The quiz\n")[-1]
    assert "recvbuf[i][i]" in answer and "published" not in answer
    assert report([str(tmp_path)]) == 0
    assert answer.split("\n\n")[0].strip() in capsys.readouterr().out


def test_what_keeps_an_experiment_from_its_answer_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["experiment=exchange_quiz", "backend=simulated", "scale=cpu", f"output={tmp_path}"]
    assert run(words) == 0
    (folder,) = tmp_path.iterdir()
    (folder / "cases.parquet").unlink()
    capsys.readouterr()
    jobs.print_answer("exchange_quiz", [folder])
    assert "its cases.parquet is gone" in capsys.readouterr().err
    jobs.print_answer("exchange_quiz", [tmp_path])  # a world that did not start
    assert "".join(capsys.readouterr()) == ""


def test_without_the_report_an_experiment_says_how_to_get_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "is_installed", lambda module: module != "pandas")
    words = ["experiment=exchange_quiz", "backend=simulated", "scale=cpu", f"output={tmp_path}"]
    assert run(words) == 0
    said = capsys.readouterr()
    assert "pip install 'commbench[report]'" in said.err and "published" not in said.out
