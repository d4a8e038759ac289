"""`pytest -p cpu_times`: the processor time of each test file, with that of all processes it
started.

In several processes (-n), what a shared warm python forks counts for the one that has started it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

MOST_FILES = 30
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NAME = "cpu_s"

_file_s = Counter[str]()


def used_s() -> float:
    """Of this process, of the children that it has waited for, and of all that still run below
    it."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + _running_s()


def _running_s() -> float:
    total = 0
    parents = [os.getpid()]
    while parents:
        with suppress(OSError):  # it has ended meanwhile
            for children in Path(f"/proc/{parents.pop()}/task").glob("*/children"):
                for child in map(int, children.read_text().split()):
                    parents.append(child)
                    words = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    total += sum(map(int, words[11:15]))  # own and ended children's, proc(5)
    return total / TICKS_PER_S


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.user_properties.append((NAME, -used_s()))
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield
    item.user_properties.append((NAME, used_s()))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that prints, of the tests of all."""
    if report.when == "teardown":
        file = report.nodeid.partition("::")[0]
        _file_s[file] += sum(float(str(s)) for name, s in report.user_properties if name == NAME)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section(f"processor time: {sum(_file_s.values()):.0f} s")
    for file, seconds in _file_s.most_common(MOST_FILES):
        terminalreporter.write_line(f"{seconds:6.1f} s  {file}")
