"""One line of the table, and how its commands are run."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

LAUNCHES = int(os.environ.get("COMMBENCH_PERF_LAUNCHES", "5"))  # fewer show that it works, not how fast it is
MIB = 2**20


class Skipped(Exception):
    """Why a section can't be measured on this machine."""


@dataclass(frozen=True)
class Claim:
    """A ratio of two sides, or a number, with its bound."""

    name: str
    value: float
    bound: float
    detail: str

    @property
    def holds(self) -> bool:
        return self.value <= self.bound

    def __str__(self) -> str:
        verdict = "ok  " if self.holds else "MISS"
        return f"{verdict} {self.name:<52} {self.value:7.3f}  bound {self.bound:5.2f}   {self.detail}"


def run(command: list[str], limit_s: int = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Raises CalledProcessError, with status 124 after `limit_s`. Whatever ends this call ends the command too."""
    words = ["timeout", "-k", "5", str(limit_s), *command]
    pipe, exports = subprocess.PIPE, {**os.environ, **environment}
    with subprocess.Popen(words, text=True, env=exports, stdout=pipe, stderr=pipe) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.terminate()  # not killed: timeout passes it on to the ranks
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, out, err)
    return subprocess.CompletedProcess(words, 0, out, err)
