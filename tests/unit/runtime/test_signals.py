"""Signals are acted on in time: in Python at once, in C after a second, and only once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from commbench.runtime.signals import RunEnder, set_handlers

WORK = """
import ctypes, sys, time
from commbench.runtime.signals import RunEnder

def save(status):
    print("saved", status, flush=True)

try:
    with RunEnder(save, lambda number: True):
        print("ready", flush=True)
        {work}
except SystemExit as stop:
    print("unwound", stop.code, flush=True)
    raise
except KeyboardInterrupt:
    print("unwound 130", flush=True)
    sys.exit(130)
"""
IN_PYTHON = "time.sleep(30)"
# a mutex that is locked twice: unlike a system call, a signal does not end the wait
IN_C = (
    "lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None);"
    " [libc.pthread_mutex_lock(lock) for _ in 'ab']"
)


def ended(work: str, number: signal.Signals) -> tuple[int, list[str], float]:
    code = WORK.format(work=work)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        begin = time.monotonic()
        process.send_signal(number)
        lines = process.stdout.read().splitlines()
        return process.wait(20), lines, time.monotonic() - begin


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_python_unwinds_at_once(number: signal.Signals) -> None:
    status, lines, seconds = ended(IN_PYTHON, number)
    assert (status, lines) == (128 + number, [f"unwound {128 + number}"])
    assert seconds < 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_does_not_come_back_is_left_after_saving(number: signal.Signals) -> None:
    status, lines, seconds = ended(IN_C, number)
    assert (status, lines) == (128 + number, [f"saved {128 + number}"])
    assert seconds < 5


IN_A_CALLBACK = """
import os, signal, sys, time, weakref
from commbench.runtime.signals import RunEnder

def saved(status):
    print("saved", status, flush=True)

def callback(_):
    os.kill(os.getpid(), {number})
    time.sleep(0.1)

with RunEnder(saved, lambda number: True):
    planted = {{1}}
    watched = weakref.ref(planted, callback)
    del planted
    print("goes on")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_callback_is_not_lost(number: signal.Signals) -> None:
    """Python prints what a callback raises, and goes on; a module that is loaded has some."""
    code = IN_A_CALLBACK.format(number=int(number))
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (128 + number, f"saved {128 + number}\n")
    assert not ended.stderr, "no traceback"


FAILING = """
from commbench.runtime.signals import RunEnder

class Failing:
    def __del__(self):
        raise ValueError("planted")

with RunEnder(lambda status: None, lambda number: True):
    Failing()
print("goes on")
"""


def test_another_error_of_a_callback_is_reported_as_ever() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILING], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (0, "goes on\n")
    assert "ValueError: planted" in ended.stderr


@pytest.mark.parametrize("before", ["os.setpgrp", "None", "os.setsid"])
def test_a_rank_has_a_session_of_its_own_however_its_launcher_has_started_it(before: str) -> None:
    """In a group of its own, as of mpirun; in that of its launcher; with a session, as of
    torchrun."""
    rank = "import os; from commbench.runtime.signals import begin_session; begin_session()"
    rank += "; print(os.getpid(), os.getpgrp(), os.getsid(0))"
    launcher = f"import os, subprocess, sys; words = [sys.executable, '-c', {rank!r}]"
    launcher += f"; subprocess.run(words, preexec_fn={before}, check=True)"
    words = [sys.executable, "-c", launcher]
    pid, group, session = subprocess.check_output(words, text=True).split()
    assert pid == group == session


def test_another_thread_than_the_main_one_leaves_signals_alone() -> None:
    """As a server, an actor of Ray or asyncio.to_thread runs commbench."""
    before = signal.getsignal(signal.SIGTERM)

    def run() -> bool:
        with RunEnder(lambda status: None, lambda number: True):
            return signal.getsignal(signal.SIGTERM) == before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result(10)


def test_a_handler_of_c_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a program that embeds Python: it could not be put back."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    assert set_handlers({signal.SIGTERM: signal.SIG_IGN}) == {}
