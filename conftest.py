"""Real worlds for tests: the command line in a process of its own, bounded in time, results as a
data frame."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import settings
from processes import AS_ROOT
from schemas import check_record
from warm_python import warm_python

import commbench
from commbench.core.garbage_collection import collection_paused
from commbench.core.launchers import rank_variables
from commbench.results.load import load_run

BIN = Path(sys.executable).parent
WORLD_S = 120
RANK_VARIABLES = (
    *rank_variables().own,
    "TORCHELASTIC_",
    "PMI",
    "FLUX_",
    "PALS_",
    "COMMBENCH_",
    "MPI4PY_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
)

# in the background SIGINT is ignored, which the commands that tests interrupt would inherit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# no database: tests work in folders of their own, and a failure prints how to replay it
settings.register_profile("quick", max_examples=25, deadline=None, database=None, print_blob=True)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=200)
settings.load_profile("quick")


APART = ("long", "serial")  # the marks of tests that the first part of `make test` leaves out


def _leaves_out_marks(config: pytest.Config) -> bool:
    """Whether neither marks (-m) nor single tests (FILE::TEST) are asked for."""
    return not config.option.markexpr and not any("::" in word for word in config.args)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without collections of garbage, which would look at all tests found so far again and again:
    a third of the time. The tests stay."""
    with collection_paused():
        found = yield
    gc.freeze()
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _leaves_out_marks(config):
        return
    apart = [item for item in items if any(map(item.get_closest_marker, APART))]
    config.hook.pytest_deselected(items=apart)
    items[:] = [item for item in items if item not in set(apart)]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _leaves_out_marks(config):
        terminalreporter.write_line(
            "without the tests marked serial, which run alone (-m 'serial and not long'), and those"
            " marked long (-m long)"
        )


@dataclass(frozen=True)
class World:
    """How a command ended, and what it left."""

    status: int
    stdout: str
    stderr: str
    output: Path

    @property
    def cases(self) -> pd.DataFrame:
        return commbench.load(self.output)

    @property
    def samples(self) -> pd.DataFrame:
        return commbench.load(self.output, table="samples")

    @property
    def record(self) -> dict[str, Any]:
        """run.json of the only run: only rank 0 may make a folder."""
        (folder,) = self.output.iterdir()
        record = load_run(folder)
        check_record(record)
        return record

    def explain(self) -> str:
        return f"exit {self.status}\n{self.stdout[-3000:]}\n{self.stderr[-6000:]}"


@pytest.fixture(autouse=True)
def impatient_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks DNS for the name of 127.0.0.1 with each connection; where no one answers, that
    takes 5 s."""
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(autouse=True)
def no_safe_path_left() -> Iterator[None]:
    """A command sets PYTHONSAFEPATH for the processes that it starts; the test's process goes on,
    and starts scripts that import what lies beside them."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture(autouse=True)
def usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the one who runs the tests has chosen for terminals."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_rank_server_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in the test's process would start one each time, which imports torch for what is
    refused or planned."""
    monkeypatch.setattr("commbench.runtime.rank_server.start_rank_server", lambda launcher: None)


@pytest.fixture
def outside_any_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, and an environment without what launchers export to their
    ranks."""
    for name in [name for name in os.environ if name.startswith(RANK_VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def warm() -> Callable[[str | None], Path]:
    """warm(LD_LIBRARY_PATH): a python that starts at once (tests/support/warm_python.py), one
    server per value."""
    return cache(warm_python)


@pytest.fixture
def warm_executable(warm: Callable[[str | None], Path]) -> Path:
    """The `python` of the fixture `world`, for tests that need the process itself."""
    return warm(os.environ.get("LD_LIBRARY_PATH"))


def run_command(
    tmp_path: Path,
    words: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    path: str,
    status: int | None,
) -> World:
    output = tmp_path / "results"
    command = ["timeout", "-k", "5", str(WORLD_S), *words, f"output={output}"]
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", **AS_ROOT, **env}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd or tmp_path, check=False
    )
    ended = World(
        done.returncode, done.stdout, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stderr), output
    )
    assert status is None or ended.status == status, ended.explain()
    return ended


@pytest.fixture
def started_world(tmp_path: Path) -> Callable[..., World]:
    """As `world`, and every process is started as a user's is: for tests of launchers and of
    starting."""

    def start(
        *words: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        status: int | None = 0,
    ) -> World:
        # an activated environment
        return run_command(tmp_path, words, env or {}, cwd, str(BIN), status)

    return start


@pytest.fixture
def world(tmp_path: Path, warm: Callable[[str | None], Path]) -> Callable[..., World]:
    """world("torchrun", "--nproc-per-node", "2", "-m", "commbench", "backend=gloo"): run, wait,
    return.

    Fails if the exit status is not `status`; None allows any. `commbench`, `torchrun` and `python`
    without a path are forked from a process that has imported torch, and so are the ranks that they
    start, also where mpirun or srun starts them or on a virtual host.
    """

    def start(
        *words: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        status: int | None = 0,
    ) -> World:
        env = env or {}
        python = warm(env.get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH")))
        return run_command(tmp_path, words, env, cwd, f"{python.parent}:{BIN}", status)

    return start
