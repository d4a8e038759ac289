"""A rank ends once, by a signal, its main thread or its heartbeat, also while it is inside a
library's call.

Python runs a signal's handler in the main thread, between two of its instructions: not while that
thread waits in C for a rank that is gone. However, the interpreter's C code writes each signal to a
pipe at once (signal.set_wakeup_fd), and a second thread reads it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from .printing import LAST_TEXT_S, finish_printing

UNWIND_S = 1.0  # for the main thread to return from C by itself
SAVE_S = 10.0  # for saving results at the end; a file system may be what hangs
PR_SET_PDEATHSIG = 1  # linux/prctl.h
SIGNAL_STATUS = 128  # plus the signal's number: 130 and 143


def set_handlers(handlers: Mapping[int, Any]) -> dict[int, Any]:
    """Set handlers of signals; returns those before.

    It sets none in another thread than the main one, where Python forbids it: signals are then the
    matter of the program around. It keeps a handler that C code has set, which could not be put
    back.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not None
    }


class RunEnder:
    """A context in which SIGINT and SIGTERM raise KeyboardInterrupt and SystemExit(143) in the main
    thread; of another thread it leaves signals alone.

    It lets exactly one thread end the run.

    `on_signal` is called at once with the signal's number, in the second thread; it returns whether
    the main thread may unwind. If it may not, or is stuck for longer than UNWIND_S, the second
    thread calls `save` with the exit status, and exits.
    """

    def __init__(self, save: Callable[[int], None], on_signal: Callable[[int], bool]) -> None:
        self._save = save
        self._on_signal = on_signal
        self._main_thread_ends = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(
            target=self._read_signals, name="commbench-signals", daemon=True
        )

    def __enter__(self) -> RunEnder:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._thread.start()
        self._report = sys.unraisablehook
        sys.unraisablehook = self._end_in_callback
        self._before = set_handlers(dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._handle))
        if self._before:
            self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            set_handlers(self._before)
        sys.unraisablehook = self._report
        os.close(self._write_end)
        self._thread.join()
        os.close(self._read_end)

    def _handle(self, number: int, frame: Any) -> None:
        """The signal handler: the main thread has returned from C."""
        if self._main_thread_ends.is_set():
            return  # a second signal while the first one unwinds
        self.claim()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(SIGNAL_STATUS + number)

    def _end_in_callback(self, dropped: sys.UnraisableHookArgs) -> None:
        """A signal came within a callback, such as that of a weak reference, from which Python
        passes nothing on: it would go on, and ignore further signals. Imports make many."""
        if isinstance(dropped.exc_value, KeyboardInterrupt | SystemExit):
            status = getattr(dropped.exc_value, "code", SIGNAL_STATUS + signal.SIGINT)
            self._ending.release()
            self.finish(status, partial(self._save, status))
        else:
            self._report(dropped)

    def claim(self) -> None:
        """Called by the main thread when it ends the run."""
        if not self._main_thread_ends.is_set() and not self._ending.acquire(blocking=False):
            _wait_for_exit()
        self._main_thread_ends.set()

    def finish(self, status: int, save: Callable[[], None]) -> None:
        """Save and exit, unless a thread already does."""
        if not self._ending.acquire(blocking=False):
            return
        threading.Timer(SAVE_S, os._exit, [status]).start()
        try:
            save()
            status = finish_printing(status, LAST_TEXT_S)
        finally:
            os._exit(status)

    def _read_signals(self) -> None:
        while data := os.read(self._read_end, 1):
            number = data[0]
            if number in (signal.SIGINT, signal.SIGTERM):
                patience_s = UNWIND_S if self._on_signal(number) else 0.0
                if not self._main_thread_ends.wait(patience_s):
                    self.finish(SIGNAL_STATUS + number, partial(self._save, SIGNAL_STATUS + number))


def _wait_for_exit() -> None:
    """The other thread saves, and then exits this process."""
    time.sleep(6 * SAVE_S)


# ---------------------------------------------------------------- of a process's parent and
# terminal


def ignore_terminal() -> None:
    """Ignore what a terminal sends to all processes on it: the parent decides what it means, and
    signals the ranks."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)


def begin_session() -> None:
    """Give this rank a session of its own, as torchrun does. Linux divides the processor among
    sessions first (autogroup in sched(7)): ranks of one session, which wake each other, would wait
    for a core that the processes of other sessions have."""
    if os.getsid(0) == os.getpid():
        return
    with suppress(OSError):  # the parent is in another session, or has ended
        if os.getpgrp() == os.getpid():  # mpirun's ranks lead a group, which setsid refuses
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Have the kernel send this process a signal when its parent, the process `parent`, dies in any
    way."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it has died before the call
        os._exit(1)
