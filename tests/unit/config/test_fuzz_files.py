"""Files from strangers: configuration, run.json and parquet. No code runs, nothing is unpickled,
one line says why."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import commbench
from commbench.__main__ import main
from commbench.core.errors import CommbenchError

OWNED = "owned"  # a file that hostile code would make in the working folder
ESCAPE = "\x1b]0;title\x07\x1b[31m"
MINE = "# @package benchmarks.mine\n_target_: {}\n"


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {OWNED}",)


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("evil.py").write_text(f"import os\nos.system('touch {OWNED}')\n")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = (
        "backend=simulated",
        "sizes=[8]",
        "timing=fixed",
        "timing.repetitions=5",
        "benchmark=all_reduce",
    )
    return Path(
        commbench.run(*words, "writer=parquet", f"output={tmp_path_factory.mktemp('good')}")
    )


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            (
                "# @package benchmarks.mine\n_target_: !!python/object/apply:os.system ['touch"
                " owned']\n"
            ),
            "python/object",
        ),
        (MINE.format("os.system"), "permit it with allow=[os]"),
        (MINE.format("evil.Evil"), "permit it with allow=[evil]"),
        (MINE.format("commbench.core.protocols.os.system"), "is outside commbench.benchmarks.*"),
        (
            MINE.format("commbench.backends.torch.gloo.__builtins__"),
            "is outside commbench.benchmarks.*",
        ),
        (
            MINE.format("commbench.benchmarks.all_reduce.__builtins__"),
            "not a dataclass that can be imported",
        ),
        (MINE.format("commbench.benchmarks..evil.Evil"), "not a dataclass that can be imported"),
        (
            MINE.format("commbench.benchmarks.all_reduce.AllReduce") + "_partial_: true\n",
            "_partial_",
        ),
        (
            MINE.format("commbench.benchmarks.all_reduce.AllReduce")
            + "x: ${oc.env:SECRET_TOKEN}\n",
            "credential",
        ),
        (
            "# @package _global_\nlabel: ${oc.env:SECRET_TOKEN}\n",
            "would write a credential into every result",
        ),
        ("# @package _global_\nlabel: ${hydra:runtime.cwd}\n", "HydraConfig was not set"),
        (
            "# @package _global_\nallow: [evil]\n",
            "which permits foreign modules; give allow=... on the command line",
        ),
        (
            "# @package _global_\nenv: {LD_PRELOAD: /tmp/x.so}\n",
            "a file sets env.LD_PRELOAD, which may load code or write files",
        ),
        (
            "# @package _global_\nenv: {PYTHONPATH: /tmp}\n",
            "give env.PYTHONPATH=... on the command line",
        ),
    ],
)
def test_a_hostile_configuration_runs_nothing(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group = "experiment" if "_global_" in text else "benchmark"
    Path("conf", group).mkdir(parents=True)
    Path("conf", group, "mine.yaml").write_text(text)
    word = "experiment=mine" if group == "experiment" else "benchmark=[all_reduce,mine]"
    assert main(["--config-dir", "conf", word, "plan=true", "sizes=[8]"]) == 2
    _, err = capsys.readouterr()
    assert message in err and len(err.splitlines()) == 1 and "hunter2" not in err
    assert not Path(OWNED).exists()


# ---------------------------------------------------------------- results


def commands(path: Path, good: Path) -> list[list[str]]:
    return [
        ["compare", str(path), str(good)],
        ["export", str(path), "--csv", "-"],
        ["replay", "ddp", "params=1e6", "--from", str(path)],
        ["report", str(path), "--html", "page.html"],
    ]


def check(path: Path, lines: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    for words in lines:
        status = main(words)
        out, err = capsys.readouterr()
        assert status in (0, 1, 2)
        assert "Traceback" not in err and (words[0] == "export" or "\x1b" not in out + err)
        assert status != 2 or len(err.splitlines()) == 1
    with suppress(CommbenchError):
        commbench.load(path)
    assert not Path(OWNED).exists()


DEEP = "[" * 100_000
RUNS: dict[str, Any] = {
    "provenance a number": {"provenance": 7},
    "provenance a list": {"provenance": [1]},
    "nodes a number": {"provenance": {"nodes": 7}},
    "nodes of numbers": {"provenance": {"nodes": [7]}},
    "escapes": {
        "provenance": {"nodes": [{"host.kernel": ESCAPE}]},
        "label": ESCAPE,
        "config": {ESCAPE: ESCAPE},
    },
    "config a list": {"config": [1], "world": 7, "started_at": 7},
    "settings a number": {"settings": 7, "config": {"timing": {"interval_s": "x"}}},
    "settings of another form": {"settings": [7, {"name": ESCAPE}]},
}


def test_runs_of_wrong_types_and_hostile_texts(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in one folder, whose runs every command reads, and each in the commands that end with its
    first error."""
    record = json.loads((good / "run.json").read_text())
    results = tmp_path / "results"
    for name, change in RUNS.items():
        shutil.copytree(good, results / name)
        (results / name / "run.json").write_text(json.dumps(record | change | {"run_id": name}))
    for damage in (pickled, deep, escaping):
        shutil.copytree(good, results / damage.__name__)
        damage(results / damage.__name__ / "cases.parquet")
    check(results, commands(results, good), capsys)
    for run in results.iterdir():
        check(run, [["show", str(run)], ["export", str(run), "--csv", "-"]], capsys)


TEXTS = {
    "deep": b'{"schema_version":1,"a":' + DEEP.encode(),
    "not UTF-8": b'\xff\xfe{"schema_version":1}',
    "a list": b"[1]",
    "an escape for a version": json.dumps({"schema_version": ESCAPE}).encode(),
    "a number without end": b'{"schema_version":1,"n":' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_a_run_json_that_is_none(
    content: bytes, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    (run / "run.json").write_bytes(content)
    check(run, commands(run, good), capsys)


def foreign(file: Path) -> None:
    pq.write_table(pa.table({"a\x1b[31m": [1]}), file)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-50])


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def pickled(file: Path) -> None:
    evil = pickle.dumps(Evil())
    names = (b"pandas", b"commbench_run", b"commbench_runs", b"ARROW:extension:metadata")
    pq.write_table(pq.read_table(file).replace_schema_metadata(dict.fromkeys(names, evil)), file)


def deep(file: Path) -> None:
    metadata = {b"schema_version": b"1", b"commbench_run": DEEP.encode()}
    pq.write_table(pq.read_table(file).replace_schema_metadata(metadata), file)


def escaping(file: Path) -> None:
    table = pq.read_table(file)
    for name in ("benchmark", "label", "layout", "backend"):
        place = table.schema.get_field_index(name)
        table = table.set_column(
            place, table.schema.field(name), pa.array([ESCAPE] * table.num_rows)
        )
    pq.write_table(table, file)


@pytest.mark.parametrize("damage", [foreign, truncated, folder, loop, pickled, deep, escaping])
def test_a_hostile_file_of_cases(
    damage: Callable[[Path], None], good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(good, run)
    damage(run / "cases.parquet")
    check(run / "cases.parquet", commands(run / "cases.parquet", good), capsys)
    if damage in (foreign, truncated, folder, loop):  # nothing of the run can be read
        check(run, commands(run, good), capsys)
