"""A line of the table, and running commands with a time limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

LAUNCHES = int(os.environ.get("COMMBENCH_PERF_LAUNCHES", "5"))  # fewer only show that it works
MIB = 2**20


class Skipped(Exception):
    """A section cannot be measured on this machine; the message is the reason."""


@dataclass(frozen=True)
class Claim:
    """A ratio of two sides, or a number, with its upper bound."""

    name: str
    value: float
    bound: float
    detail: str

    @property
    def holds(self) -> bool:
        return self.value <= self.bound

    def __str__(self) -> str:
        verdict = "ok  " if self.holds else "MISS"
        return (
            f"{verdict} {self.name:<52} {self.value:7.3f}  bound {self.bound:5.2f}   {self.detail}"
        )


def run(
    command: list[str], limit_s: int = 300, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command; raises CalledProcessError if it fails, with status 124 after `limit_s`.

    An exception in this process ends the command too.
    """
    words = ["timeout", "-k", "5", str(limit_s), *command]
    pipe = subprocess.PIPE
    exports = {**os.environ, **(environment or {})}
    with subprocess.Popen(words, text=True, env=exports, stdout=pipe, stderr=pipe) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.terminate()  # not kill: timeout forwards SIGTERM to the ranks
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, out, err)
    return subprocess.CompletedProcess(words, 0, out, err)
