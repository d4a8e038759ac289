"""`commbench report`: answers from real runs, what is left out, what is refused, and a thousand
runs in bounds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import run_of, with_column

import commbench
from commbench.cli.report import report as command
from commbench.core.errors import ConfigError

WORDS = ("backend=simulated", "timing=quick", "timing.warmup_s=0", "writer=parquet")
RUNS = (30, 150)  # enough to tell what one more run takes
LARGE_RUNS = 1000
LARGE_CPU_S = 60.0
LARGE_BYTES = 2**30  # CPU time; 12 s on a quiet machine, 22 s on a slow one


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("measured")
    commbench.run(
        *WORDS,
        "sizes=[8,1KiB,64KiB,1MiB]",
        "benchmark=[p2p_latency,all_reduce]",
        f"output={output}",
    )
    return output


def output_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    capsys.readouterr()
    assert command(list(words)) == 0
    out, err = capsys.readouterr()
    return out, err


def test_one_run_says_that_it_is_one_launch(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = output_of(capsys, str(measured))
    assert (
        "over simulated in 1x2 (nodes x ranks per node), 8 B to 1 MiB." in " ".join(out.split())
        and err == ""
    )
    assert "No backends or layouts can be compared" in out and "measured in one launch" in out


def test_the_best_backend_and_the_crossover_are_the_planted_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """gloo: 60 us and 1.2 GB/s; mpi: 0.5 us and 0.9 GB/s: equal at 214 kB."""
    for number in (0, 1):
        run_of(tmp_path, number)
    out, _ = output_of(capsys, str(tmp_path), "--benchmark", "all_reduce")
    words = " ".join(out.split())
    assert "fastest in this run all_reduce 8 B 60.2 us ±2% 0.514 us ±2% mpi 1x2 (native)" in words
    assert "all_reduce 2 MiB 1740 us ±2% 2351 us ±2% not distinguishable" in words  # 1.3 x
    for number in (12, 13, 24, 25, 36, 37, 48, 49, 60, 61):
        run_of(tmp_path, number)
    out, _ = output_of(capsys, str(tmp_path), "--benchmark", "all_reduce")
    words = " ".join(out.split())
    assert re.search(r"fastest all_reduce 8 B .* mpi 1x2 \(native\) all_reduce 2 MiB", words)
    assert re.search(r"all_reduce 2 MiB [^*]* gloo 1x2 \(python\) \*", words)
    assert "mpi (native) below 2" in words and "gloo (python) above" in words


def test_one_benchmark_is_asked_for_and_shown(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\np2p_latency" in output_of(capsys, str(measured))[0]
    out, _ = output_of(capsys, str(measured), "--benchmark", "all_reduce")
    assert "\nall_reduce" in out and "\np2p_latency" not in out


def test_labels_are_compared_and_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label, words in (("tuned", ()), ("", ("backend.model.latency_s=4e-6",))):
        commbench.run(
            *WORDS,
            "sizes=[8]",
            "benchmark=all_reduce",
            f"label={label}",
            f"output={tmp_path}",
            *words,
        )
    out, _ = output_of(capsys, str(tmp_path))
    words = " ".join(out.split())
    assert "operation message label tuned no label fastest in this run" in words
    assert "all_reduce 8 B 4.00 us ±0% 8.00 us ±0% not distinguishable" in words
    assert "all_reduce no label us ± busbw MB/s tuned us ±" in words
    assert "2 ranks on 1 node," in out


@pytest.mark.parametrize(
    ("overrides", "command"),
    [
        ([["backend=mpi", "trial=0"], ["backend=mpi", "trial=1"]], "backend=mpi timing=rigorous"),
        (
            [["sizes=[8,64]", "backend=gloo"], ["sizes=[8,64]", "backend=mpi", "timing=quick"]],
            "-m backend=gloo,mpi 'sizes=[8,64]' timing=rigorous",
        ),
        ([["backend=gloo", "layout=1x2"], ["backend=mpi", "layout=1x4"]], ""),
        ([["backend=gloo"], None], ""),
        ([["experiment=mlbench_p2p"], ["experiment=mvapich_cloud"]], ""),
        ([["experiment=mlbench_p2p", "part=1"], ["experiment=mlbench_p2p", "part=2"]], ""),
    ],
)
def test_what_covers_launches_is_one_command_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[Any], command: str
) -> None:
    for number, words in enumerate(overrides):
        run_of(tmp_path, 12 * number, overrides=words)
    out, _ = output_of(capsys, str(tmp_path))
    assert [line for line in out.splitlines() if line.startswith("commbench ")] == (
        [f"commbench {command}"] if command else []
    )
    how = "the command below" if command else "timing=rigorous"
    assert f"{how} measures several" in " ".join(out.split()) and "trial=" not in out


def test_several_launches_are_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 12, 24):  # the same way and layout
        run_of(tmp_path, number)
    out, _ = output_of(capsys, str(tmp_path))
    assert "up to 3" in out and "measured in one launch" not in out


def test_intervals_of_three_visits_are_called_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        run_of(tmp_path, number, interval_of="visits", interval_level=0.75, visits=3)
    page = tmp_path / "page.html"
    out, _ = output_of(capsys, str(tmp_path), "--benchmark", "all_reduce", "--html", str(page))
    for text in (out, page.read_text()):
        assert "±: 75 % confidence interval over 3 visits" in text and "95 %" not in text


def test_a_rigorous_run_counts_its_launches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        run_of(tmp_path, number, launches=6)
    out, _ = output_of(capsys, str(tmp_path), "--benchmark", "all_reduce")
    words = " ".join(out.split())
    assert "fastest all_reduce 8 B" in words and " 6 launches" in words
    assert (
        "measured in one launch" not in words
        and "in this run" not in words
        and "several runs" not in words
    )
    assert "±: 99 % confidence interval over 6 launches" in words


def test_top_cuts_tables_and_says_so(
    measured: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for number in (0, 1):
        run_of(tmp_path, number)
    out, _ = output_of(capsys, str(tmp_path), "--top", "3")
    assert "... and 97 more: --top 100" in out


def test_one_figure_is_written_with_its_title_and_the_report_is_not_printed_again(
    measured: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [str(tmp_path / f"figure.{form}") for form in ("png", "svg")]
    words = (str(measured), "--benchmark", "all_reduce", "--png", files[0], "--svg", files[1])
    out, _ = output_of(capsys, *words)
    assert Path(files[0]).read_bytes().startswith(b"\x89PNG")
    drawn = "".join(ElementTree.fromstring(Path(files[1]).read_bytes()).itertext())
    assert "all_reduce: time of one operation over message size" in drawn
    assert out.startswith("Answers\n") and "Machines" not in out
    assert out.splitlines()[-2:] == [f"figure: {file}" for file in files]


def test_results_without_a_figure_say_so(tmp_path: Path) -> None:
    run = commbench.run(*WORDS, "benchmark=barrier", f"output={tmp_path}")
    with pytest.raises(ConfigError, match="--png: these results have no figure; measure several"):
        command([str(run / "cases.parquet"), "--png", str(tmp_path / "x.png")])


def test_a_table_is_printed_as_markdown(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output_of(capsys, str(measured), "--markdown")
    heads, rule, *rows = out.partition("\n\n")[0].splitlines()
    assert heads == "| operation | message | simulated virtual |" and rule == "| --- | --- | --- |"
    assert [row.split(" | ")[0] for row in rows] == ["| p2p_latency"] * 2 + ["| all_reduce"] * 2
    out, _ = output_of(capsys, str(measured), "--markdown", "--benchmark", "all_reduce")
    assert "\ntime in us\n\n| size | " in out and out.count("| 64 KiB | ") == 2


def test_a_foreign_name_is_printable_in_all_forms(
    measured: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also one that matplotlib's font lacks: it is drawn without a warning."""
    file = tmp_path / "cases.parquet"
    cases = pq.read_table(next(measured.rglob("cases.parquet")))
    pq.write_table(with_column(cases, "backend", "\x1b[31m\u7bc0"), file)
    png = str(tmp_path / "figure.png")
    for words in ((), ("--markdown", "--benchmark", "all_reduce"), ("--png", png)):
        out, err = output_of(capsys, str(file), *words)
        assert "\x1b" not in out and err == "", words
        assert "\\x1b\\[31m\u7bc0" in out or "\\x1b[31m\u7bc0" in out, words


def test_a_file_of_cases_is_a_source(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next(measured.rglob("cases.parquet"))
    assert "over simulated in 1x2" in output_of(capsys, str(file))[0]


def test_unreadable_files_are_named_and_the_others_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, broken, old, foreign = (run_of(tmp_path, number) for number in range(4))
    (broken / "cases.parquet").write_bytes(b"PAR1 no parquet")
    record = json.loads((old / "run.json").read_text())
    (old / "run.json").write_text(json.dumps(record | {"schema_version": 0}))
    (foreign / "run.json").write_text("[1]")
    (tmp_path / "empty.parquet").touch()
    out, err = output_of(
        capsys, str(tmp_path), str(tmp_path / "empty.parquet"), str(tmp_path / "nowhere")
    )
    assert "over gloo in 1x2 (nodes x ranks per node), 8 B" in out and good.name not in err
    lines = err.splitlines()
    assert len(lines) == 5 and all(line.startswith("left out: ") for line in lines)
    for word in (
        broken.name,
        f"{old.name}/run.json has schema version 0",
        foreign.name,
        "is empty",
        "nowhere",
    ):
        assert sum(word in line for line in lines) == 1, word
    assert out.count("Left out:") == 5


def test_of_two_runs_the_one_that_can_be_read_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As few runs are shown with their own tables."""
    run_of(tmp_path, 0)
    broken = run_of(tmp_path, 3)
    (broken / "cases.parquet").write_bytes(b"PAR1 no parquet")
    out, err = output_of(capsys, str(tmp_path))
    assert "over gloo in 1x2 (nodes x ranks per node), 8 B" in out and broken.name in err


@pytest.mark.parametrize("content", ["empty", "foreign", "missing", "folder"])
def test_nothing_to_report_is_one_line_and_exit_status_2(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cases.parquet"
    if content == "empty":
        path.touch()
    if content == "foreign":
        pd.DataFrame({"colour": ["red"]}).to_parquet(path)
    if content == "folder":
        path.mkdir()
    words = [sys.executable, "-m", "commbench", "report", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert str(path) in done.stderr and "give a folder with runs" in done.stderr


def test_wrong_options_are_refused_before_anything_is_read(tmp_path: Path, measured: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        command([str(measured), "--html", str(tmp_path)])
    with pytest.raises(ConfigError, match="there is no folder"):
        command([str(measured), "--html", str(tmp_path / "no" / "page.html")])
    with pytest.raises(ConfigError, match="whole number"):
        command([str(measured), "--top", "0"])
    with pytest.raises(ConfigError, match="they have: all_reduce, p2p_latency"):
        command([str(measured), "--benchmark", "barrier"])


MEASURE = """
import sys, time
# not counted
import jinja2, matplotlib.backends.backend_svg, matplotlib.figure, pandas, pyarrow.parquet
import commbench.report.page
from commbench.backends.buffers.memory import resident_bytes
from commbench.cli.report import report as command
print(time.process_time(), resident_bytes(peak=True), file=sys.stderr)
for folder in sys.argv[1:]:
    command([folder, "--benchmark", "all_reduce", "--html", f"{folder}.html"])
    print(time.process_time(), resident_bytes(peak=True), file=sys.stderr)
"""


@pytest.mark.long
def test_a_thousand_runs_are_read_in_bounded_time_and_memory(tmp_path: Path) -> None:
    """By what further runs take; tools/perf/reading.py reads and draws a thousand."""
    few = tmp_path / "few"
    many = tmp_path / "many"
    copies = [run_of(few, number) for number in range(12)]
    read = [
        (json.loads((copy / "run.json").read_text()), pq.read_table(copy / "cases.parquet"))
        for copy in copies
    ]
    # a table with another run_id is quicker than a hundred rows made again
    for number in range(12, sum(RUNS)):
        folder = few if number < RUNS[0] else many
        write_renamed(*read[number % 12], folder / f"20260101T000000.{number:06d}-0000")
    words = [sys.executable, "-c", MEASURE, str(many), str(few)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=True)
    assert "1500 cases of 150 runs" in (tmp_path / "many.html").read_text()
    begin_s, begin_bytes, after_many_s, many_bytes, after_few_s, _ = map(float, done.stderr.split())
    many_s = after_many_s - begin_s
    few_s = after_few_s - after_many_s
    large_s = many_s + (many_s - few_s) * (LARGE_RUNS - RUNS[1]) / (RUNS[1] - RUNS[0])
    large_bytes = begin_bytes + (many_bytes - begin_bytes) * LARGE_RUNS / RUNS[1]
    assert large_s < LARGE_CPU_S and large_bytes < LARGE_BYTES, done.stderr
    few_page, many_page = (path.with_suffix(".html").stat().st_size for path in (few, many))
    assert many_page < 1.1 * few_page < 2**20, "a page draws so many runs and no more"


def write_renamed(record: dict[str, Any], cases: pa.Table, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record | {"run_id": folder.name}))
    pq.write_table(
        with_column(cases, "run_id", folder.name), folder / "cases.parquet", compression="none"
    )
