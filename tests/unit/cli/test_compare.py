"""`commbench compare` end to end, on results of the simulated world."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flipped_bits import read_as_other
from generated_results import with_column

import commbench
from commbench.analysis.compare import compare
from commbench.cli.compare import compare_command
from commbench.cli.main import main
from commbench.core.errors import ConfigError
from commbench.core.terminal import TERMINAL
from commbench.results.columns import arrow_schema

FIXED = (
    "timing=fixed",
    "timing.repetitions=100",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)
WORDS = (
    "backend=simulated",
    "writer=parquet",
    "benchmark=[all_reduce,p2p_latency]",
    "sizes=[8,1MiB]",
    *FIXED,
)
LAUNCHES = 5


def measured(output: Path, launch: int, seed: int, *words: str) -> None:
    seeds = (f"trial={launch}", f"backend.seed={seed}", "backend.model.noise=0.02")
    commbench.run(*WORDS, f"output={output}", *seeds, *words)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two alike and one with a latency that is 20 % longer: 1 MiB hardly feels it. Interleaved."""
    folder = tmp_path_factory.mktemp("sides")
    for launch in range(LAUNCHES):
        measured(folder / "base", launch, launch)
        measured(folder / "same", launch, 100 + launch)
        measured(folder / "slow", launch, 200 + launch, "backend.model.latency_s=2.4e-6")
    return {name: str(folder / name) for name in ("base", "same", "slow")}


def run_compare(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = compare_command(list(words))
    return status, capsys.readouterr().out


def test_a_slower_side_is_found_and_fails(
    sides: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = run_compare(capsys, sides["base"], sides["slow"], "--fail-on", "slower")
    assert status == 1
    assert "config.backend.model.latency_s: 2e-06 -> 2.4e-06" in text
    assert "one side came before" not in text
    assert text.index("verdict") < text.index("differs, BASE -> NEW:")
    assert text.count("SLOWER") == 5  # a sentence, two rows, what it means, what --fail-on saw
    sentence = r"2 of 4 cases SLOWER, the worst \w+ 1x2 (0-1 )?8 B: 1\.\d{3} x ±[\d.]+%; 2 SAME\n"
    assert re.match(sentence, text)
    status, text = run_compare(capsys, sides["slow"], sides["base"], "--fail-on=slower")
    assert status == 0 and "2 of 4 cases FASTER" in text


@pytest.mark.parametrize("new", ["slow", "same"])
def test_a_gate_that_could_not_fail_does_not_pass(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], new: str
) -> None:
    """4 launches per side have p = 0.03 at least, which among 4 cases is nothing."""
    for name in ("base", new):
        for run in sorted(Path(sides[name]).iterdir())[:4]:
            shutil.copytree(run, tmp_path / name / run.name)
    paths = [str(tmp_path / name) for name in ("base", new)]
    few = "4 launches of each side can't show SLOWER or FASTER among 4 cases: at least 5 are needed"
    status, text = run_compare(capsys, *paths)
    assert status == 0 and few in " ".join(text.split())
    assert ("2 of 4 cases SUSPECT" in text) == (new == "slow")
    with pytest.raises(ConfigError) as refused:
        compare_command([*paths, "--fail-on", "slower"])
    assert str(refused.value) == f"--fail-on slower could not fail: {few}"
    assert compare_command([*paths, "--fail-on", "slower,suspect"]) == (new == "slow")


def test_the_gate_of_pairs_agrees_with_their_verdict(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine drifts by 18 % from launch to launch, and NEW takes 10 % longer each time."""
    source = next(Path(sides["base"]).iterdir())
    for launch in range(8):
        for name, factor in (("base", 1.0), ("new", 1.1)):
            with_times(source, tmp_path / name / f"{name}{launch}", launch, factor * 1.18**launch)
    words = [str(tmp_path / "base"), str(tmp_path / "new"), "--fail-on=slower"]
    status, text = run_compare(capsys, *words, "--paired")
    assert status == 1 and "4 of 4 cases SLOWER" in text
    status, text = run_compare(capsys, *words)
    assert status == 0 and "4 of 4 cases UNDECIDED" in text


def with_times(source: Path, target: Path, launch: int, factor: float) -> None:
    """A copy of a run as another launch that took `factor` times as long."""
    target.mkdir(parents=True)
    record = json.loads((source / "run.json").read_text()) | {"run_id": target.name}
    (target / "run.json").write_text(json.dumps(record))
    rows = pq.read_table(source / "cases.parquet").to_pylist()
    for row in rows:
        row |= {
            "run_id": target.name,
            "trial": launch,
            "median_s": row["median_s"] * factor,
            "algbw_gb_per_s": None,
        }
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("cases")), target / "cases.parquet")


def test_a_table_is_plain_and_fits(
    sides: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TERMINAL, "80")
    status, text = run_compare(capsys, sides["base"], sides["slow"])
    assert status == 0 and "\x1b" not in text, "without --fail-on no verdict is a failure"
    table = text[text.index("backend simulated") : text.index("x: NEW / BASE")]
    assert max(map(len, table.splitlines())) <= 80
    row = next(
        line for line in table.splitlines() if line.startswith("all_reduce") and " 8 " in line
    )
    assert row.split()[:2] == ["all_reduce", "8"] and row.split()[-1] == "SLOWER"
    assert "launches" not in table and row.count(" x") == 1
    monkeypatch.delenv(TERMINAL)
    _, text = run_compare(capsys, sides["base"], sides["slow"])
    row = next(
        line for line in text.splitlines() if line.startswith("all_reduce") and " 8 " in line
    )
    # in a file; ratio and p95
    assert re.search(r"BASE median +NEW median", text) and row.count(" x") == 2
    assert "cuda_ipc auto" in table and "layout 1x2" in table


def test_equal_sides_are_the_same(
    sides: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = run_compare(
        capsys, sides["base"], sides["same"], "--fail-on", "slower,undecided,missing"
    )
    assert status == 0
    assert text.startswith("4 of 4 cases SAME")
    assert "varies within a side: " not in text.replace(
        "varies within a side: config.backend.seed", ""
    )


@pytest.mark.long
def test_a_baseline_file_is_kept_and_used(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "baseline.parquet")
    _, text = run_compare(capsys, sides["base"], sides["same"], "--save", file)
    assert read_as_other(Path(file), "cases") == 0, "a flipped bit is found"
    assert f"saved: {file}: NEW, 20 rows, without samples" in text
    assert run_compare(capsys, file, sides["slow"], "--fail-on", "slower")[0] == 1


def test_the_first_baseline_has_nothing_to_be_compared_with(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = run_compare(capsys, sides["base"], "--save", str(tmp_path / "first.parquet"))
    assert (status, text.count("\n")) == (0, 2)
    assert f"NEW  {sides['base']}: 5 launches, 20 rows" in text
    with pytest.raises(ConfigError, match="--fail-on needs a BASE"):
        compare_command(
            [sides["base"], "--save", str(tmp_path / "first.parquet"), "--fail-on", "slower"]
        )
    assert (
        run_compare(
            capsys,
            str(tmp_path / "first.parquet"),
            sides["same"],
            "--fail-on",
            "slower",
        )[0]
        == 0
    )


def test_unequal_sides_are_enough_where_their_launches_are(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among 4 cases 10 launches of BASE and 3 of NEW suffice, 2 of BASE tell nothing."""
    source = next(Path(sides["base"]).iterdir())
    for name, count, factor in (("base", 10, 1.0), ("new", 3, 1.3), ("few", 2, 1.0)):
        for trial in range(count):
            with_times(source, tmp_path / name / f"{name}{trial}", trial, factor + 0.001 * trial)
    base, new, few = (str(tmp_path / name) for name in ("base", "new", "few"))
    status, text = run_compare(capsys, base, new, "--fail-on", "slower")
    assert status == 1 and text.startswith("4 of 4 cases SLOWER")
    with pytest.raises(ConfigError, match="SUSPECT needs 3 launches of BASE"):
        compare_command([few, new, "--fail-on", "suspect"])


def test_one_launch_is_at_most_suspect_and_can_not_pass_a_gate(
    sides: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    launch = str(sorted(Path(sides["slow"]).iterdir())[0])
    status, text = run_compare(capsys, sides["base"], launch)
    assert status == 0 and text.startswith("2 of 4 cases SUSPECT")
    assert "95 % confidence interval" not in text and "5 / 1" in text
    with pytest.raises(ConfigError, match="--fail-on slower could not fail: 1 launch of each"):
        compare_command([sides["base"], launch, "--fail-on", "slower"])
    assert compare_command([sides["base"], launch, "--fail-on", "suspect"]) == 1


def test_a_gate_does_not_pass_where_nothing_was_measured(tmp_path: Path) -> None:
    words = ("backend=simulated", "benchmark=all_reduce", "sizes=[64TiB]", "timing=quick")
    assert main([*words, f"output={tmp_path}"]) == 0, "skipped for memory"
    with pytest.raises(ConfigError, match="no case has a number on both sides"):
        compare_command([str(tmp_path), str(tmp_path), "--fail-on", "slower"])
    assert compare_command([str(tmp_path), str(tmp_path), "--fail-on", "missing"]) == 1


def test_what_is_on_one_side_only_is_listed(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for launch in range(4):
        measured(tmp_path, launch, launch, "benchmark=all_reduce", "sizes=[8,16]")
    file = max(tmp_path.rglob("cases.parquet"))
    table = pq.read_table(file)
    wrong = {"status": "invalid", "reason": "2 elements are not what they must be"}
    for name, text in wrong.items():
        table = with_column(table, name, text)
    pq.write_table(table, file)
    status, text = run_compare(capsys, sides["base"], str(tmp_path), "--fail-on", "missing")
    assert status == 1
    assert "4 launches, 8 rows, 2 invalid" in " ".join(text.split())
    assert "only in BASE: 3 cases\n  all_reduce 1x2 1 MiB\n  p2p_latency 1x2 0-1 8 B" in text
    assert "only in NEW: 1 case\n  all_reduce 1x2 16 B" in text
    assert "launches not used: 2 cases\n  all_reduce 1x2 8 B (BASE 0, NEW 1: " in text
    assert "elements are not what they must be" in text
    assert text.startswith("1 of 1 case SAME")


def test_unreadable_launches_are_named(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tmp_path, 0, 0)
    measured(tmp_path, 1, 1)
    broken, good = sorted(tmp_path.iterdir())
    (broken / "cases.parquet").write_bytes(b"")
    _, text = run_compare(capsys, sides["base"], str(tmp_path))
    words = " ".join(text.split())
    assert f"note: a cases file of {broken} can't be read" in words or f"note: {broken}" in words
    assert "1 launch, 4 rows" in words and str(good) not in words


@pytest.mark.long
def test_variables_are_compared_in_one_folder(
    sides: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for launch in range(LAUNCHES):
        measured(tmp_path, launch, launch, "benchmark=all_reduce", "in_place=[true,false]")
    status, text = run_compare(
        capsys, str(tmp_path), "--by", "in_place=true:false", "--fail-on", "slower,missing"
    )
    assert status == 0
    assert "in_place true -> false" in text and "2 of 2 cases SAME" in text
    counts = f"{LAUNCHES} launches, {2 * LAUNCHES} rows"
    assert " ".join(text.split()).count(counts) == 2, "of each side its own"
    assert (
        "on both sides" not in text
        and "on both sides" in run_compare(capsys, sides["base"], sides["base"])[1]
    )
    with pytest.raises(ConfigError, match=r"BASE has in_place \w+ and \w+ for the same case"):
        compare_command([str(tmp_path), str(tmp_path), "--ignore", "in_place"])


def test_two_labels_in_one_folder_are_compared_with_their_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B has twice the latency and half the bandwidth of A, with noise of 2 %."""
    slow = ("backend.model.latency_s=4e-6", "backend.model.bandwidth_gb_per_s=5")
    for launch in range(LAUNCHES):
        for label, words in (("A", ()), ("B", slow)):
            measured(
                tmp_path,
                launch,
                launch,
                f"label={label}",
                "benchmark=[p2p_bandwidth,p2p_latency]",
                "sizes=[8,1MiB]",
                "window=4",
                *words,
            )
    status, text = run_compare(capsys, str(tmp_path), "--by", "label")
    assert status == 0
    gain = re.search(
        r"^A -> B: p2p_bandwidth 1x2 0-1 1 MiB: bandwidth ([\d.]+) -> ([\d.]+) GB/s,"
        r" (0\.[45]\d\d) x ±",
        text,
        re.MULTILINE,
    )
    assert gain and float(gain[3]) == pytest.approx(float(gain[2]) / float(gain[1]), rel=0.02)
    trip = re.search(
        r"^A -> B: p2p_latency 1x2 0-1 8 B: round trip ([\d.]+) us -> ([\d.]+) us, [\d.]+ x ±",
        text,
        re.MULTILINE,
    )
    assert trip and 1.9 < float(trip[2]) / float(trip[1]) < 2.1
    assert float(trip[1]) == pytest.approx(4.0, rel=0.1), "twice the latency of 2 us"
    assert re.search(r"^BASE .*, label A: 5 launches", text, re.MULTILINE)
    with pytest.raises(ConfigError, match="--by layout takes two values or more"):
        compare_command([str(tmp_path), "--by", "layout"])


@pytest.mark.parametrize(
    ("name", "words", "base", "same", "slow"),
    [
        ("label", ("label=A", "label=B", "label=C"), "A", "B", "C"),
        ("env.BUFFER", ("env.BUFFER=64", "label=''", "env.BUFFER=9"), "none", "64", "9"),
    ],
)
def test_each_of_several_settings_has_a_verdict_against_one_of_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: tuple[str, ...],
    base: str,
    same: str,
    slow: str,
) -> None:
    """The last one takes 20 % longer. Without a value is BASE, and p is corrected for both."""
    one = ("benchmark=p2p_latency", "sizes=[8]")
    for launch in range(LAUNCHES):
        for number, word in enumerate(words):
            longer = ("backend.model.latency_s=2.4e-6",) if number == 2 else ()
            measured(tmp_path, launch, 10 * launch + number, word, *one, *longer)
    file = tmp_path / "verdicts.xml"
    asked = ("--by", name, "--fail-on", "slower", "--junit", str(file), "--delta", "5")
    status, text = run_compare(capsys, str(tmp_path), *asked)
    verdicts = dict(re.findall(rf"^{name} {base} -> (\w+): 1 of 1 case (\w+)", text, re.MULTILINE))
    assert status == 1 and verdicts == {slow: "SLOWER", same: "SAME"}
    assert f"{name} {base} -> {slow}: --fail-on slower: exit 1" in " ".join(text.split())
    cases = ElementTree.parse(file).findall(".//testcase")
    failed = [case.get("name", "") for case in cases if case.find("failure") is not None]
    assert len({case.get("name") for case in cases}) == 2 and f"{base} -> {slow}: " in failed[0]
    (p_alone,) = compare(tmp_path, tmp_path, by=f"{name}={base}:{slow}").p_holm
    assert re.search(rf" SLOWER .*{2 * p_alone:.2g}", text), "corrected for both settings"


def test_a_side_without_a_label_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((), ("label=A",)):
        measured(tmp_path, 0, 0, *words, "benchmark=p2p_latency", "sizes=[8]")
    text = run_compare(capsys, str(tmp_path), "--by", "label")[1]
    assert re.search(r"^no label -> A: p2p_latency", text, re.MULTILINE)
    assert re.search(r"^BASE .*, no label: 1 launch", text, re.MULTILINE)


@pytest.mark.long
def test_options_of_the_statistic(
    sides: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    both = (sides["base"], sides["slow"])
    assert "4 of 4 cases SAME" in run_compare(capsys, *both, "--delta", "50")[1]
    text = run_compare(capsys, *both, "--aa", sides["base"], "--aa", sides["same"], "--seed", "3")[
        1
    ]
    assert (
        "or the noise of the A/A launches (95th percentile)" in text
        and "2 of 4 cases SLOWER" in text
    )
    assert "at least 8 are needed" in run_compare(capsys, *both, "--paired")[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "the following arguments are required: PATH; see commbench compare --help"),
        (["a"], "compare takes BASE and NEW; seen: a"),
        (["a", "b", "c"], "compare takes BASE and NEW; seen: a b c"),
        (
            ["a", "b", "--fail-on", "faster"],
            "--fail-on faster is unknown; allowed: slower, suspect, undecided, missing",
        ),
        (["a", "b", "--delta", "nan"], "argument --delta: nan is not a percentage above 0"),
        (["a", "b", "--delta", "0"], "argument --delta: 0 is not a percentage above 0"),
        (["a", "b", "--seed", "-1"], "argument --seed: "),
        (["a", "b", "--by", "message_bytes"], "different payloads can't be compared"),
        (["a", "b", "--colour"], "unrecognized arguments: --colour"),
        (
            ["a", "b", "--save", "/nowhere/c.parquet"],
            "--save /nowhere/c.parquet: there is no folder /nowhere",
        ),
        (["/nowhere/a", "/nowhere/b"], "BASE=/nowhere/a is neither a folder with runs"),
    ],
)
def test_bad_options_are_refused_in_one_line(words: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compare_command(words)
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        compare_command(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert "--save" in text and "Exit status:" in text


def test_reading_loads_no_torch(sides: dict[str, str]) -> None:
    launches = [str(next(Path(sides[name]).iterdir())) for name in ("base", "slow")]
    run = f"from commbench.cli.compare import compare_command; compare_command({launches})"
    code = f"{run}; import sys; assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_frame_has_what_was_printed(sides: dict[str, str]) -> None:
    assert sorted(compare(sides["base"], sides["slow"]).verdict) == [
        "SAME",
        "SAME",
        "SLOWER",
        "SLOWER",
    ]


@pytest.mark.parametrize(("options", "failures"), [((), 2), (("--fail-on=missing",), 0)])
def test_junit_has_the_verdicts(
    sides: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    failures: int,
) -> None:
    file = tmp_path / "compare.xml"
    run_compare(capsys, sides["base"], sides["slow"], "--junit", str(file), *options)
    (suite,) = ElementTree.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("4", str(failures))
    kinds = {each.get("type") for each in suite.findall("testcase/failure")}
    assert kinds == ({"SLOWER"} if failures else set())
    assert len({case.get("name") for case in suite.findall("testcase")}) == 4


def test_a_junit_case_is_named_with_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, layout in enumerate(("1x2", "2x1")):
        words = (f"layout={layout}", "benchmark=all_reduce", "sizes=[8]")
        measured(tmp_path, 0, number, *words)
    file = tmp_path / "compare.xml"
    run_compare(capsys, str(tmp_path), "--by", "layout=1x2:2x1", "--junit", str(file))
    (case,) = ElementTree.parse(file).findall(".//testcase")
    assert case.get("name") == "all_reduce 1x2 8 B -> all_reduce 2x1 8 B"
