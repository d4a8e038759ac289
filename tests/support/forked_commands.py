"""Commands of a copy of the package that a test has changed, in forks of a python that has imported
all but commbench.

`python -S forked_commands.py` imports what commbench needs, but not commbench. Each line on stdin
is a request in JSON; its fork finds commbench in the `tree` alone, and runs the command lines one
after another. A fresh python would take 2 s of CPU time for each of them.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

MODULES = (
    "pandas",
    "psutil",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "rich.console",
    "rich.table",
)
# a fork copies one thread only
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass(frozen=True)
class Command:
    """How a command line ended."""

    returncode: int
    stdout: str
    stderr: str


@cache
def packages() -> Path:
    """All installed packages but commbench."""
    from uninstalled import packages_without_commbench

    place = Path(tempfile.mkdtemp(prefix="packages-"))
    atexit.register(shutil.rmtree, place)
    return packages_without_commbench(place / "packages")


@cache
def _server() -> subprocess.Popen[str]:
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(packages())}
    process = subprocess.Popen(
        [sys.executable, "-S", __file__], stdin=-1, stdout=-1, text=True, env=environment
    )
    atexit.register(process.wait)
    atexit.register(process.kill)
    return process


def commands(
    tree: Path, folder: Path, *lines: Sequence[str], env: Mapping[str, str] | None = None
) -> list[Command]:
    """Each line of words as a user's command in `folder`, by the package in `tree`."""
    request = {"tree": str(tree), "folder": str(folder), "env": dict(env or {}), "lines": lines}
    return [Command(**ended) for ended in _answer(request)]


def command(tree: Path, folder: Path, *words: str, env: Mapping[str, str] | None = None) -> Command:
    """One line of `commands`."""
    return commands(tree, folder, words, env=env)[0]


def _answer(request: dict[str, Any]) -> Any:
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    assert isinstance(answer, list), answer
    return answer


# ---------------------------------------------------------------- the server


def _serve() -> None:
    sys.path.pop(0)  # this file's folder
    for module in MODULES:
        importlib.import_module(module)
    _compose()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            print(json.dumps(_ended(**json.loads(line))), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


def _compose() -> None:
    """Hydra finds its plugins and learns its grammar with its first configuration."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("hydra.conf", version_base="1.3"):
        compose(overrides=["+backend=gloo", "+sizes=[8,1KiB]"], return_hydra_config=True)


def _ended(
    tree: str, folder: str, env: dict[str, str], lines: list[list[str]]
) -> list[dict[str, Any]] | str:
    """How each line ended; or why none could be run."""
    os.environ.update(env)
    os.chdir(folder)
    sys.path.insert(0, tree)
    try:
        import commbench.runtime.rank_server as servers

        # what is refused or simulated has no ranks that wait for its imports
        servers.start_rank_server = lambda launcher: None
        from commbench.cli.main import main
    except Exception:
        return traceback.format_exc()
    ended = []
    for words in lines:
        with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
            try:
                status: Any = main(words)
            except SystemExit as end:
                status = end.code
            except BaseException:
                traceback.print_exc()
                status = 70
        ended.append(
            {"returncode": status, "stdout": stdout.getvalue(), "stderr": stderr.getvalue()}
        )
    return ended


if __name__ == "__main__":
    _serve()
