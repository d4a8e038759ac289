"""`commbench import`: runs that every other command reads, and one line for what is not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from other_tools import all_reduce_bench, nccl_text, osu_text

from commbench.analysis.compare import compare
from commbench.cli.main import main
from commbench.core.errors import ConfigError, Unreadable
from commbench.features.documents.reference import OWN
from commbench.features.other_tools.command import import_results
from commbench.results.load import find_runs, load, load_run


def stored(folder: Path, name: str, text: str, *words: str) -> Path:
    file = folder / name
    file.write_text(text)
    output = folder / f"results-{file.stem}"
    import_results([str(file), "--output", str(output), *words])
    return output


def test_a_log_becomes_a_run_that_show_report_and_export_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = stored(tmp_path, "a.log", nccl_text(), "--machine", "rack 7")
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("1 run, 4 cases; the tables: commbench show ")
    (run,) = find_runs(output)
    record = load_run(run)
    assert record["imported"]["files"][0]["name"].endswith("a.log")
    assert record["provenance"]["nodes"][0]["gpu.0.name"] == "NVIDIA H100 80GB HBM3"
    assert record["provenance"]["nodes"][0]["machine"] == "rack 7"
    cases = load(output)
    assert set(cases["imported_from"]) == {
        f"nccl-tests, sha256 {record['imported']['files'][0]['sha256']}"
    }
    assert cases["ci_low_s"].isna().all() and set(cases["visits"]) == {1}
    assert cases["busbw_gb_per_s"].max() == pytest.approx(67108864 / 390e-6 / 1e9 * 1.75)
    for words in (["show"], ["report"], ["export"]):
        assert main([*words, str(output)]) == 0
        assert "all_reduce" in capsys.readouterr().out


def test_what_a_file_does_not_say_is_said_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = str(stored(tmp_path, "a.log", nccl_text(), "--machine", "rack 7"))
    monkeypatch.setenv(OWN, str(tmp_path))
    assert main(["reference", "add", log, "--name", "our pods"]) == 0
    assert "date" not in yaml.safe_load((tmp_path / "our-pods.yaml").read_text())["documents"][0]
    capsys.readouterr()
    assert main(["report", log]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "requested ?, effective ?" in said, "CUDA IPC"
    assert "normal on our pods" in said and "one measurement)" in said, "without a date"


def test_last_years_log_is_compared_with_a_run_of_today(tmp_path: Path) -> None:
    old = stored(tmp_path, "old.log", nccl_text())
    new = stored(tmp_path, "new.log", nccl_text(version="2.18.3", times_us=(500.0, 490.0)))
    compared = compare(old, new)
    assert len(compared) == 4 and set(compared["sides"]) == {"both"}
    assert compared["ratio"].iloc[0] == pytest.approx(1.25, rel=0.02)


def test_results_of_which_little_is_known_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = [
        stored(tmp_path, "osu.txt", osu_text()),
        stored(tmp_path, "bench.txt", all_reduce_bench()),
    ]
    for output in outputs:
        assert load(output)["layout"].isna().all()
        assert main(["show", str(output)]) == main(["report", str(output)]) == 0
    told = stored(tmp_path, "told.txt", osu_text(), "--layout", "2x1")
    assert set(load(told)["layout"]) == {"2x1"}
    # what one side does not say is compared with any value of the other
    assert set(compare(outputs[0], told)["sides"]) == {"both"}


def test_sizes_of_one_rank_need_the_number_of_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = osu_text("Allgather Latency", "# Size       Avg Latency(us)", ("1024   5.00",))
    with pytest.raises(ConfigError, match="say it with --layout"):
        stored(tmp_path, "a.txt", text)
    told = load(stored(tmp_path, "b.txt", text, "--layout", "2x4"))
    assert list(told["message_bytes"]) == [8192]
    assert told["busbw_gb_per_s"].iloc[0] == pytest.approx(8192 / 5e-6 / 1e9 * 7 / 8)


def test_a_case_that_comes_again_in_one_start_is_another_visit(tmp_path: Path) -> None:
    cases = load(stored(tmp_path, "a.log", nccl_text(sizes=(8388608, 8388608))))
    assert list(cases["visits"]) == [2, 2]


def test_a_file_is_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = stored(tmp_path, "a.log", nccl_text())
    stored(tmp_path, "a.log", nccl_text())
    assert len(find_runs(output)) == 1
    assert "imported before, and not again" in capsys.readouterr().err


def test_wrong_data_is_invalid_and_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(nccl_text(wrong="3"))
    output = tmp_path / "results"
    assert import_results([str(tmp_path / "a.log"), "--output", str(output)]) == 1
    assert set(load(output)["status"]) == {"invalid"}


def test_what_is_no_result_is_refused_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    with pytest.raises(Unreadable, match="no results that commbench knows; known are: the parquet"):
        import_results([str(tmp_path / "a.txt")])


@pytest.mark.parametrize("layout", ["1x4", "2x4"])
def test_a_layout_that_the_file_contradicts_is_refused(tmp_path: Path, layout: str) -> None:
    with pytest.raises(ConfigError, match="--layout"):
        stored(tmp_path, "a.log", nccl_text(), "--layout", layout)


def test_half_a_file_gives_what_is_whole_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = stored(tmp_path, "a.log", nccl_text(concluded=False))
    assert "it ended early: the cases before count" in capsys.readouterr().out
    record = json.loads((find_runs(output)[0] / "run.json").read_text())
    assert record["imported"]["ended_early"] is True
