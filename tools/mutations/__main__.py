"""Does the test suite notice? Changes one token of the package at a time and runs the tests that
should fail.

`python tools/mutations` runs every mutation of mutations.yaml in a copy of the repository, and
prints the test that failed first. `python tools/mutations WORD` runs those whose text contains
WORD. Exit status 1 if more than MOST_SURVIVORS survive or one does not apply.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
MOST_SURVIVORS = 2
AT_ONCE = 2
TEST_S = 600
TESTS_FAILED = 1  # pytest's exit status; others mean that the tests could not run


@dataclass(frozen=True)
class Mutation:
    """`find` occurs once in `file` and is replaced; `tests` are the part of `make test` that should
    fail."""

    file: str
    find: str
    replace: str
    tests: str


@dataclass(frozen=True)
class Outcome:
    mutation: Mutation
    failed: str | None  # the first test that failed; None where the mutation survived
    problem: str | None = None  # why it could not be tried

    @property
    def text(self) -> str:
        return self.problem or (self.failed or "survived")


def run(mutation: Mutation) -> Outcome:
    """One mutation in a copy of the tracked files."""
    with tempfile.TemporaryDirectory(prefix="commbench-mutation-") as name:
        copy = Path(name)
        tracked = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for file in tracked.splitlines():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            # commbench/conf is a link to a folder
            shutil.copy2(ROOT / file, copy / file, follow_symlinks=False)
        target = copy / mutation.file
        source = target.read_text()
        if source.count(mutation.find) != 1:
            return Outcome(mutation, None, f"found {source.count(mutation.find)} times")
        target.write_text(source.replace(mutation.find, mutation.replace))
        return _tested(mutation, copy)


def _tested(mutation: Mutation, copy: Path) -> Outcome:
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'replay'}",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
    }
    try:
        done = subprocess.run(
            [*words, *mutation.tests.split()],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TEST_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(mutation, f"no end within {TEST_S} s")
    if done.returncode == 0:
        return Outcome(mutation, None)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.M)
    if done.returncode != TESTS_FAILED or failed is None:
        return Outcome(
            mutation,
            None,
            f"pytest exited with {done.returncode}: {(done.stdout + done.stderr)[-300:]}",
        )
    return Outcome(mutation, failed[1].removeprefix("tests/"))


def _one_line(code: str) -> str:
    return " ".join(code.split())


def main(words: Sequence[str]) -> int:
    listed: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).parent / "mutations.yaml"))
    chosen = [
        Mutation(**entry)
        for entry in listed
        if not words or any(word in str(entry) for word in words)
    ]
    outcomes = list[Outcome]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(run, chosen):
            outcomes.append(outcome)
            print(
                f"{outcome.mutation.file}: {_one_line(outcome.mutation.find)}: {outcome.text}",
                flush=True,
            )
    survivors = sum(outcome.failed is None for outcome in outcomes)
    print(f"{len(outcomes) - survivors} of {len(outcomes)} are found")
    return 1 if survivors > MOST_SURVIVORS or any(outcome.problem for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
