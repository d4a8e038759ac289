"""Reference values of own runs: made, read by everybody, never merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from generated_results import run_of

from commbench.cli.report import report
from commbench.core.errors import ConfigError
from commbench.features.documents.command import reference
from commbench.features.documents.expectation import check_known_values, verdict_on_normal
from commbench.features.documents.reference import OWN, read_folder

NODE = {"host.hostname": "a", "host.cpu_model": "Some CPU (R)", "host.cpu_logical_cores": 48}
NODES: dict[str, Any] = {"provenance": {"nodes": [NODE]}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "team"
    made.mkdir()
    monkeypatch.setenv(OWN, str(made))
    return made


def test_a_run_becomes_the_value_of_its_machine(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path / "first", 0, **NODES)
    assert reference(["add", str(run), "--name", "our pods"]) == 0
    said = capsys.readouterr()
    assert said.err == "" and f"{folder}/our-pods.yaml: 100 values" in said.out
    assert "recognised by host.cpu_model=Some CPU (R), host.cpu_logical_cores=48" in said.out
    again = run_of(tmp_path / "second", 0, **NODES)
    assert report([str(again)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 MiB: " in shown and "normal on our pods" in shown and "30 of your own" in shown
    verdict = verdict_on_normal(str(again))
    assert verdict.met == 30 and not verdict.missed, "ends of rates and times"
    assert verdict_on_normal(str(run_of(tmp_path / "third", 0))).met == 0, "another machine"


def scaled(file: Path, factor: float) -> None:
    """Change its times by that factor, and its rates by the inverse."""
    machine = yaml.safe_load(file.read_text())
    for value in machine["documents"][0]["values"]:
        by = factor if value["unit"] == "us" else 1 / factor
        value["by_size"] = {size: by * number for size, number in value["by_size"].items()}
    file.write_text(yaml.safe_dump(machine))


def test_a_slower_run_of_the_machine_is_not_normal(folder: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "first", 0, **NODES)
    reference(["add", str(run), "--name", "our pods"])
    scaled(folder / "our-pods.yaml", 0.1)
    verdict = verdict_on_normal(str(run_of(tmp_path / "second", 0, **NODES)))
    assert (verdict.met, len(verdict.missed)) == (0, 30)
    assert "not your own: 48.7 us (our pods: " in verdict.missed[0]


def test_values_that_contradict_known_ones_are_said_and_both_stay(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path / "first", 0, **NODES)
    reference(["add", str(run), "--name", "our pods"])
    with pytest.raises(ConfigError, match="is there already, and values are never merged"):
        reference(["add", str(run), "--name", "our pods"])
    scaled(folder / "our-pods.yaml", 0.1)
    before = (folder / "our-pods.yaml").read_text()
    capsys.readouterr()
    assert reference(["add", str(run), "--name", "the same pods"]) == 0
    conflicts = capsys.readouterr().err.splitlines()
    differing = "commbench: differs from what is known, and both stay: "
    assert len(conflicts) == 11 and all(each.startswith(differing) for each in conflicts[:10])
    assert conflicts[10] == "commbench: 20 more values differ from what is known"
    assert (folder / "our-pods.yaml").read_text() == before
    assert {each.machine for each in read_folder(folder)} == {"our pods", "the same pods"}


def test_runs_of_two_kinds_of_machine_are_no_value(folder: Path, tmp_path: Path) -> None:
    run_of(tmp_path / "runs", 0, **NODES)
    run_of(tmp_path / "runs", 1, provenance={"nodes": [NODE | {"host.cpu_model": "Another"}]})
    with pytest.raises(ConfigError, match="these runs are of 2 kinds of machine"):
        reference(["add", str(tmp_path / "runs"), "--name", "both"])
    bare = run_of(tmp_path / "bare", 0, provenance={})
    with pytest.raises(ConfigError, match="measure with label=NAME"):
        reference(["add", str(bare), "--name", "bare"])
    assert not [*folder.iterdir()]


def test_a_folder_that_is_none_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN, str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="gone is not a folder"):
        check_known_values()


DAMAGED = {
    "nothing": "",
    "a list": "[1, 2]",
    "no documents": "machine: a\nrecognised_by: b\n",
    "an unknown key": "{colour: red}",
    "another column": "{column: colour}",
    "another unit": "{unit: parsec}",
    "a text for a number": "{by_size: {8B: fast}}",
    "a pattern": "{recognised_by: '('}",
    "a size": "{by_size: {8 parsecs: 1}}",
    "no machine": "{machine: 5}",
    "not a column of a row": "{where: {colour: red}}",
}
GOOD: dict[str, Any] = {
    "machine": "m",
    "recognised_by": "x",
    "source": "s",
    "date": "2026-01-02",
    "setting": "t",
    "where": {"backend": "gloo"},
    "column": "median_s",
    "unit": "us",
    "by_size": {"8B": 5},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_named_in_one_line(folder: Path, what: str) -> None:
    text = DAMAGED[what]
    if text.startswith("{"):
        value = GOOD | yaml.safe_load(text)
        head = {name: value.pop(name) for name in ("machine", "recognised_by")}
        text = yaml.safe_dump({**head, "documents": [{"values": [value]}]})
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match=r"bad\.yaml is not a file of reference values: "
    ) as error:
        check_known_values()
    assert "\n" not in str(error.value)
