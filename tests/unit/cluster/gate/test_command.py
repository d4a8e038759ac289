"""`commbench accept`: its statuses, text, JUnit XML and page, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from healthy_runs import Change, healthy_run, slower

from commbench.cli.main import main
from commbench.cluster.baseline.command import baseline
from commbench.cluster.gate.answers import CaseAnswer, GateResult
from commbench.cluster.gate.command import accept
from commbench.cluster.gate.text import gate_section, junit_text
from commbench.core.terminal import Terminal
from commbench.runtime.folder_lock import locked
from commbench.stats.interval import Interval
from commbench.stats.verdict import Comparison


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Made by the command, of eight healthy runs on four days."""
    for number in range(8):
        healthy_run(tmp_path / "healthy", number, day=1 + number % 4)
    words = ["add", str(tmp_path / "healthy"), "--baseline", str(tmp_path / "store")]
    assert baseline(words) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'store'}: 8 runs added\n"
    return tmp_path / "store"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Five launches of a healthy cluster."""
    for number in range(100, 105):
        healthy_run(tmp_path / "results", number, day=number - 90)
    return tmp_path / "results"


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refusal(words): the one line with which the command ends, with exit status 2."""

    def refused(*words: str | Path) -> str:
        assert main(list(map(str, words))) == 2
        seen = capsys.readouterr()
        assert seen.out == "" and seen.err.count("\n") == 1
        return seen.err

    return refused


# ---------------------------------------------------------------- answers


def test_the_status_says_pass_fail_suspect_and_undecided(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(200, 208):
        healthy_run(tmp_path / "slow", number, day=number - 180, change=slower(2.0))
    (once, *_) = (tmp_path / "slow").iterdir()
    few = tmp_path / "few"
    for number in range(2):
        healthy_run(tmp_path / "healthy of few", number)
    assert baseline(["add", str(tmp_path / "healthy of few"), "--baseline", str(few)]) == 0
    capsys.readouterr()
    words = ["--baseline", str(store)]
    answered = {
        "PASS": ([str(results), *words, "--margin", "20%"], 0),
        "FAIL": ([str(tmp_path / "slow"), *words], 1),
        "SUSPECT": ([str(once), *words], 1),
        "UNDECIDED": ([str(results), "--baseline", str(few)], 4),
    }
    for answer, (given, status) in answered.items():
        assert accept(given) == status
        assert capsys.readouterr().out.startswith(f"{answer}: ")
    assert accept([str(once), *words, "--suspect", "allow"]) != 1


def test_the_first_line_says_what_is_worst_and_by_how_much(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = healthy_run(tmp_path / "slow", 200, day=20, change=slower(2.0, "broadcast"))
    accept([str(slow), "--baseline", str(store), "--margin", "20"])
    text = " ".join(capsys.readouterr().out.split())
    assert re.match(
        r"SUSPECT: broadcast 1x2 \S+ \S*B: takes \d+\.\d % longer than 8 healthy launches; not"
        r" certain with 1 launch; of 12 cases 4 are suspect, ",
        text,
    )
    assert "Not measured again: this machine, " in text


def test_the_table_has_failures_first_and_says_why(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = healthy_run(tmp_path / "slow", 200, day=20, change=slower(2.0, "broadcast"))
    accept([str(slow), "--baseline", str(store), "--top", "4"])
    text = capsys.readouterr().out
    rows = re.findall(r"^(\w+) 1x2 .*(FAIL|SUSPECT|UNDECIDED|PASS)", text, re.MULTILINE)
    assert rows == [("broadcast", "SUSPECT")] * 4
    assert "... and 8 more: --top 12" in text
    assert re.search(r"broadcast 1x2 8 B +SUSPECT .* takes \d+\.\d % longer than", text)


def test_without_a_baseline_it_says_that_only_guidelines_limits_and_known_values_decide(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = accept([str(results)])
    text = capsys.readouterr().out
    assert "No baseline was given: guidelines, limits of the hardware and known values" in text
    assert (status, text.partition(":")[0]) in ((0, "PASS"), (1, "FAIL"), (4, "UNDECIDED"))


def test_without_a_baseline_nothing_to_decide_by_is_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = healthy_run(tmp_path, 1)
    assert accept([str(run)]) == 4
    assert capsys.readouterr().out.startswith("UNDECIDED: no case was judged")


def test_without_a_baseline_what_was_not_measured_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = healthy_run(
        tmp_path, 1, change=lambda values: values | {"status": "skipped", "reason": "planted"}
    )
    assert accept([str(run)]) == 1
    first_line = capsys.readouterr().out.partition("\n")[0]
    assert "skipped: planted; of 12 cases 12 fail" in first_line


def test_without_a_baseline_a_rate_above_its_limit_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planted(values: dict[str, Any]) -> dict[str, Any]:
        return values | {"warnings": ["impossible"], "busbw_gb_per_s": 14.0}

    run = healthy_run(tmp_path, 1, change=planted)
    accept([str(run)])
    assert "14.0 GB/s is above the limit of 12.5 GB/s" in capsys.readouterr().out


def test_other_bits_than_the_healthy_runs_are_a_finding_that_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_bits(text: str) -> Change:
        return lambda values: (
            values | {"launch_hashes": [text if values["message_bytes"] == 8 else "a"]}
        )

    for number in range(8):
        healthy_run(tmp_path / "healthy", number, day=1 + number % 4, change=with_bits("a"))
    baseline(["add", str(tmp_path / "healthy"), "--baseline", str(tmp_path / "store")])
    for number in range(100, 105):
        healthy_run(tmp_path / "results", number, day=number - 90, change=with_bits("b"))
    assert accept([str(tmp_path / "results"), "--baseline", str(tmp_path / "store")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "finding: all_reduce 1x2 8 B: other bits than the healthy runs" in out
    assert out.count("other bits") == 3, "of each operation one size"


def test_bits_that_the_older_healthy_runs_have_are_not_other_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_bits(text: str) -> Change:
        return lambda values: values | {"launch_hashes": [text]}

    for number in range(8):
        bits = with_bits("newest" if number == 7 else "usual")
        healthy_run(tmp_path / "healthy", number, day=1 + number, change=bits)
    baseline(["add", str(tmp_path / "healthy"), "--baseline", str(tmp_path / "store")])
    for number in range(100, 105):
        healthy_run(tmp_path / "results", number, day=number - 90, change=with_bits("usual"))
    assert accept([str(tmp_path / "results"), "--baseline", str(tmp_path / "store")]) == 0
    assert "other bits" not in capsys.readouterr().out


# ---------------------------------------------------------------- files


def test_junit_has_a_test_case_for_each_case_with_failures_in_words(
    store: Path, tmp_path: Path
) -> None:
    slow = healthy_run(tmp_path / "slow", 200, day=20, change=slower(2.0))
    file = tmp_path / "answers.xml"
    words = [str(slow), "--baseline", str(store), "--junit", str(file)]
    accept(words)
    (suite,) = ElementTree.parse(file).getroot()
    cases = suite.findall("testcase")
    assert suite.tag == "testsuite" and suite.get("tests") == "12" == str(len(cases))
    failed = [case for case in cases if case.find("failure") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    assert suite.get("failures") == str(len(failed)) == "4"
    assert suite.get("skipped") == str(len(skipped))
    assert {case.get("classname") for case in failed} == {"commbench.all_reduce"}
    failure = failed[0].find("failure")
    assert failure is not None and "longer than 8 healthy launches" in (failure.text or "")
    assert failure.get("type") == "SUSPECT"
    assert len({case.get("name") for case in cases}) == 12
    accept([*words, "--suspect", "allow"])
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.get("failures") == "0" and "SUSPECT: takes" in file.read_text()


def test_names_and_reasons_that_xml_forbids_are_written_all_the_same() -> None:
    answer = CaseAnswer("all\x01reduce", "<a & \x1b[31m>", "FAIL", 'said "\x00"')
    root = ElementTree.fromstring(junit_text(GateResult((answer,), ("basis",))))
    case = root[0].findall("testcase")[0]
    assert (case.get("classname"), case.get("name")) == (
        "commbench.all\ufffdreduce",
        "<a & \ufffd[31m>",
    )


def test_the_page_begins_with_the_answers(store: Path, results: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    accept([str(results), "--baseline", str(store), "--html", str(file), "--margin", "20"])
    html = file.read_text()
    assert "PASS: of 12 cases 12 pass" in html
    assert html.index("<h2>PASS: ") < html.index("<h2>Answers</h2>")


def test_the_text_fits_a_terminal_of_100_columns() -> None:
    ratio = Interval(3.0, 2.5, 3.6, 0.95, 4, "launches")
    numbers = Comparison(1e-4, 3e-4, ratio, 0.001, 1.2, (10, 4))
    reason = "takes 200.0 % longer than 10 healthy launches"
    answers = tuple(
        CaseAnswer(
            "all_reduce",
            f"all_reduce 64x8 {size} MiB in_place true",
            "FAIL",
            reason,
            comparison=numbers,
        )
        for size in (1, 2, 1024)
    )
    section = gate_section(GateResult(answers, ("basis " * 40,)))
    text = section.text(30, Terminal(100))
    assert max(map(len, text.splitlines())) <= 100
    assert "300" in text and "loss" in text


# ---------------------------------------------------------------- what is refused


def test_a_store_that_is_none_or_of_others_is_refused(
    store: Path, results: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    node = {"host.hostname": "n1", "host.cpu_model": "Other CPU"}
    other = healthy_run(tmp_path / "other", 1, provenance={"nodes": [node]})
    (tmp_path / "empty").mkdir()
    seen = {
        refusal("accept", results, "--baseline", tmp_path / "absent"): "is not a folder",
        refusal("accept", results, "--baseline", tmp_path / "empty"): "is not a store of baselines",
        refusal("accept", other, "--baseline", store): "has no baseline for RESULTS",
        refusal("accept", tmp_path / "absent", "--baseline", store): "does not exist",
    }
    for line, words in seen.items():
        assert words in line


def test_a_store_with_a_damaged_run_or_another_schema_is_refused(
    store: Path, results: Path, refusal: Callable[..., str]
) -> None:
    (first, second, *_) = store.glob("*/*/*/cases.parquet")
    first.write_bytes(first.read_bytes()[:200])
    assert "out of the store" in refusal("accept", results, "--baseline", store)
    first.write_bytes(second.read_bytes())
    record = first.with_name("run.json")
    record.write_text(record.read_text().replace('"schema_version": 4', '"schema_version": 1'))
    assert "has schema version 1" in refusal("accept", results, "--baseline", store)


def test_results_that_are_still_measured_or_did_not_end_or_are_damaged_are_refused(
    store: Path, results: Path, refusal: Callable[..., str]
) -> None:
    run = next(results.iterdir())
    with locked(run):
        line = refusal("accept", results, "--baseline", store)
    assert "is being measured into; judge it when it has ended" in line
    record = (run / "run.json").read_text()
    (run / "run.json").write_text(record.replace('"done"', '"running"'))
    line = refusal("accept", results, "--baseline", store)
    assert "has not ended; finish it with: commbench resume" in line
    (run / "run.json").write_text(record.replace('"schema_version": 4', '"schema_version": 2'))
    assert "RESULTS can't be judged" in refusal("accept", results, "--baseline", store)


def test_files_that_can_not_be_written_and_percentages_that_are_none_are_refused(
    store: Path, results: Path, refusal: Callable[..., str]
) -> None:
    given = ("accept", results, "--baseline", store)
    assert "there is no folder" in refusal(*given, "--junit", "absent/answers.xml")
    assert "is not a percentage" in refusal(*given, "--margin", "much")
    assert "is not a percentage below 100" in refusal(*given, "--false-alarms", "100")


def test_baseline_says_what_was_added_and_refuses_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = healthy_run(tmp_path / "runs", 1)
    bad = healthy_run(tmp_path / "runs", 2, status="running")
    store = str(tmp_path / "store")
    assert main(["baseline", "add", str(tmp_path / "runs"), "--baseline", store]) == 2
    seen = capsys.readouterr()
    assert seen.out == f"{store}: 1 run added, 1 refused\n"
    assert f"not added: {bad} has not ended (status running)" in seen.err
    assert main(["baseline", "add", str(good), "--baseline", store]) == 0
    assert capsys.readouterr().out == f"{store}: 0 runs added, 1 in it already\n"


def test_baseline_lists_what_the_store_has(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert baseline(["list", "--baseline", str(store)]) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["Test-CPU", "torch-2.13.0-cpu-gloo", "8", "12", "8", "4", "1"]


def test_baseline_without_a_run_or_a_store_is_refused(
    tmp_path: Path, refusal: Callable[..., str]
) -> None:
    assert "needs a RUN" in refusal("baseline", "add", "--baseline", tmp_path)
    assert "--baseline" in refusal("baseline", "add", "run")
    assert "takes no RUN" in refusal("baseline", "list", "run", "--baseline", tmp_path)
