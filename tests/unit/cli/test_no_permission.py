"""Runs, traces and folders of another user, which this one may not read: the same line in each
command."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import commbench
from commbench.cli.main import main
from commbench.core.errors import CommbenchError

CAPABILITY_VERSION = 0x20080522
READS_EVERYTHING = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
WORDS = ("backend=simulated", "writer=parquet", "sizes=[8]", "benchmark=all_reduce")
COMMANDS = {
    "show": ["show", "RUN"],
    "report": ["report", "RUN"],
    "compare": ["compare", "RUN", "OTHER"],
    "compare new": ["compare", "OTHER", "RUN"],
    "export": ["export", "RUN", "--csv", "-"],
    "accept": ["accept", "RUN"],
    "accept store": ["accept", "OTHER", "--baseline", "RUN"],
    "baseline add": ["baseline", "add", "RUN", "--baseline", "STORE"],
    "replay from": ["replay", "ddp", "params=1e6", "--from", "RUN"],
    "replay": ["replay", "RUN"],
    "resume": ["resume", "RUN"],
    "config dir": ["--config-dir", "RUN", "backend=simulated", "plan=true"],
}

OF_FOLDERS = ("replay", "config dir", "accept store")  # read none of a run's own files


@contextmanager
def as_user() -> Iterator[None]:
    """Without the rights of root, which may read everything, and still as the owner of this
    checkout, whose modules the commands import."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, and their upper halves
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, held) == 0
    fewer = (ctypes.c_uint32 * 6)(*held)
    fewer[0] &= ~READS_EVERYTHING
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, outside_any_world: None) -> Iterator[Path]:
    """A folder that everyone may read, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp()).resolve()
    folder.chmod(0o777)
    monkeypatch.chdir(folder)
    commbench.run(*WORDS, "timing=fixed", "timing.repetitions=5", f"output={folder / 'tree'}")
    (run,) = (folder / "tree").iterdir()
    run.rename(folder / "tree" / "readable")
    shutil.copytree(folder / "tree" / "readable", folder / "tree" / "private")
    yield folder
    shutil.rmtree(folder)


@contextmanager
def closed(path: Path) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(0)
    try:
        with as_user():
            yield
    finally:
        path.chmod(before)


def line_of(path: Path) -> str:
    return f"{path} can't be read: Permission denied; ask its owner for access"


@pytest.mark.parametrize(
    ("name", "below"),
    [
        *((name, "") for name in COMMANDS),
        *((name, "run.json") for name in COMMANDS if name not in OF_FOLDERS),
        *((name, "cases.parquet") for name in COMMANDS if name not in (*OF_FOLDERS, "resume")),
    ],
)
def test_each_command_says_the_same_of_a_run_that_may_not_be_read(
    name: str, below: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "tree" / "private"
    places = {"RUN": run, "OTHER": place / "tree" / "readable", "STORE": place / "store"}
    words = [str(places.get(word, word)) for word in COMMANDS[name]]
    with closed(run / below):
        status = main(words)
    _, err = capsys.readouterr()
    assert (status, len(err.splitlines())) == (2, 1), err
    assert line_of(run / below) in err


@pytest.mark.parametrize("name", ["show", "export", "baseline add", "replay from"])
def test_a_tree_with_a_folder_that_may_not_be_read_is_refused(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": place / "tree", "STORE": place / "store"}
    words = [str(places.get(word, word)) for word in COMMANDS[name]]
    with closed(place / "tree" / "private"):
        status = main(words)
    _, err = capsys.readouterr()
    assert line_of(place / "tree" / "private") in err and len(err.splitlines()) == 1
    assert status == 2 or name == "replay from"


def test_report_names_what_it_leaves_out_of_a_tree(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", str(place / "tree" / "readable")])  # imports what the other user may not read
    capsys.readouterr()
    with closed(place / "tree" / "private"):
        assert main(["report", str(place / "tree")]) == 0
    out, err = capsys.readouterr()
    assert err == f"left out: {line_of(place / 'tree' / 'private')}\n"
    assert "all_reduce" in out


def test_load_raises_or_leaves_out_with_a_warning(place: Path) -> None:
    private = place / "tree" / "private"
    with closed(private):
        with pytest.raises(CommbenchError, match="can't be read: Permission denied"):
            commbench.load(place / "tree")
        for table in ("cases", "samples"):
            with pytest.warns(UserWarning) as caught:
                rows = commbench.load(place / "tree", table=table, skip_damaged=True)
            assert [str(each.message) for each in caught] == [f"{line_of(private)}; it is left out"]
            assert len(rows)


def test_parts_that_may_not_be_read_are_not_taken_for_none(place: Path) -> None:
    parts = place / "tree" / "private" / "parts"
    parts.mkdir(exist_ok=True)
    with closed(parts), pytest.raises(CommbenchError, match="parts can't be read: Permission"):
        commbench.load(place / "tree")


def test_a_trace_that_may_not_be_read_is_named(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("traces", "traces/below"):
        (place / folder).mkdir()
        (place / folder / "rank0.json").write_text("{}")
    for path in ("traces/below", "traces/rank0.json"):
        with closed(place / path):
            assert main(["replay", str(place / "traces")]) == 2
        assert capsys.readouterr().err == f"commbench: {line_of(place / path)}\n"


def test_what_may_not_be_written_is_said_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "store").mkdir(mode=0o755)
    with as_user():
        if os.access(place / "store", os.W_OK, effective_ids=True):
            (place / "store").chmod(0o555)
        status = main(["baseline", "add", str(place / "tree/readable"), "--baseline", "store"])
    _, err = capsys.readouterr()
    assert status == 2 and len(err.splitlines()) == 1 and "Permission denied" in err
