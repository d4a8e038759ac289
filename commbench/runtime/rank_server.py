"""A process that has imported what every rank needs, and forks the ranks of one world after
another; and its client.

`launcher=local` starts it as `python -m commbench.runtime.rank_server`, with a socket as standard
input. It has no threads, no CUDA context and no open library, so that a fork is safe and a rank
reads the variables of the libraries as a fresh process would. A request has the number of ranks,
the arguments and the environment of a world, and behind it the descriptor that the ranks print to.
The answers: their process ids, then how each of them ended.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path

from commbench.core.extras import is_installed
from commbench.core.protocols import Launcher
from commbench.hardware.network import BACKLOG, LOOPBACK

from .output import LOG
from .running_world import RunningWorld
from .signals import SIGNAL_STATUS, die_with_parent, ignore_terminal

# unless the user exports another: torch's warnings would hide our one line
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}

# of variables that torch and its libraries read when a rank opens them, not when they are loaded
READ_BY_RANKS = (
    "COMMBENCH_",
    "GLOO_",
    "NCCL_",
    "TORCH_NCCL_",
    "OMPI_",
    "PMIX_",
    "PRTE_",
    "MPICH_",
    "MPIR_",
    "MV2_",
    "UCX_",
    "FI_",
    "MPI4PY_",
    "MASTER_",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
)
# rank 0's listening socket: no port is free in between, so nobody else can take it
STORE_FD = "COMMBENCH_STORE_FD"
# a fork copies one thread only: without these numpy's OpenBLAS and pyarrow's jemalloc start others
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
LONGEST_ERRORS = 1 << 20  # bytes
PRELOADED = (
    "torch.distributed.distributed_c10d",
    "commbench.cli.rank",
    "commbench.measure.session",
    "pyarrow.parquet",
)
# of a rank that was interrupted, as all ranks are then
ENDED_BY_SIGNAL = (SIGNAL_STATUS + signal.SIGINT, SIGNAL_STATUS + signal.SIGTERM)


# ---------------------------------------------------------------- its client, in the parent of the
# ranks


class RankServer:
    """A rank server, and the environment in which it has loaded torch. `trial` is that of the jobs
    it has served."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.trial: int | None = None
        self.connection, theirs = Pipe()
        with theirs:
            # ranks get a descriptor of their world: the server must not keep any of this command's
            # open
            self.errors = os.memfd_create("rank_server")  # what it writes to stderr
            self.process = subprocess.Popen(
                [sys.executable, "-m", "commbench.runtime.rank_server"],
                env=self.environment | ONE_THREAD,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                preexec_fn=partial(_belong_to, os.getpid()),
            )

    def suits(self, environment: Mapping[str, str], trial: int) -> bool:
        """Whether it can fork ranks with this environment: only what the ranks read may differ.

        Launches must be independent of each other, but ranks of one server share the addresses of
        all libraries.
        """
        names = {*self.environment, *environment}
        changed = (name for name in names if self.environment.get(name) != environment.get(name))
        fresh = self.trial in (None, trial) and self.process.poll() is None
        return fresh and all(name.startswith(READ_BY_RANKS) for name in changed)

    def close(self) -> None:
        """May be called again: a world whose ranks do not end closes it before its owner does."""
        self.process.kill()
        self.process.wait()
        if not self.connection.closed:
            self.connection.close()
            os.close(self.errors)


def _belong_to(parent: int) -> None:
    """Runs in the server before its imports: a command that ends meanwhile must not wait for it."""
    die_with_parent(signal.SIGKILL, parent)
    ignore_terminal()


_running: RankServer | None = None  # of this process, for its next world


def rank_server(environment: Mapping[str, str], trial: int | None = None) -> RankServer:
    """The running server if it suits a job of this trial and environment, else a fresh one in its
    place.

    `trial` is None before it is known.
    """
    global _running
    if _running is not None and (trial is None or not _running.suits(environment, trial)):
        stop_rank_server()
    _running = _running or RankServer(environment)
    _running.trial = trial
    return _running


def start_rank_server(launcher: Launcher) -> None:
    """Start the server before the job is known: it imports torch while this process composes the
    configuration."""
    rank_server(QUIET | launcher.environment(1) | inherited_environment())


def inherited_environment() -> dict[str, str]:
    """The environment of this process without an address that was exported for another job."""
    return {
        key: value for key, value in os.environ.items() if key not in ("MASTER_ADDR", "MASTER_PORT")
    }


def rest_rank_server() -> None:
    """Stop a server that may still import torch, before this process or a launcher measures. A
    server that has served a world sleeps, and is kept for later worlds."""
    if _running is not None and _running.trial is None:
        stop_rank_server()


@atexit.register  # else Python warns of a process that still runs
def stop_rank_server() -> None:
    global _running
    if _running is not None:
        _running.close()
    _running = None


class ForkedWorld(RunningWorld):
    """Ranks that a rank server has forked. It serves the next world if this one leaves it alive."""

    name = "the rank server"
    kills_ranks = False

    def __init__(
        self,
        server: RankServer,
        size: int,
        words: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        folder: Path,
    ) -> None:
        super().__init__()
        self._server = server
        self.pid = server.process.pid
        self._folder = folder
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which `wait` sees
            server.connection.send((size, list(words), dict(environment)))
            send_handle(server.connection, output, self.pid)

    def wait(self, timeout_s: float) -> list[int]:
        ended = list[int]()
        while self.status is None and self._server.connection.poll(timeout_s):
            timeout_s = 0.0  # then only what has arrived by now
            try:
                answer = self._server.connection.recv()
            except (EOFError, OSError):
                self.status = self._server.process.wait()
                if errors := os.pread(self._server.errors, LONGEST_ERRORS, 0):
                    with suppress(OSError), (self._folder / LOG).open("ab") as file:
                        file.write(errors)
                break
            if isinstance(answer, dict):
                self.ranks = answer
                continue
            pid, code = answer
            self.codes[pid] = code
            ended.append(pid)
            if len(self.codes) == len(self.ranks):
                self.status = int(any(self.codes.values()))
        return ended

    def end(self, patience_s: float) -> None:
        """A server that is stopped or still importing, or whose ranks do not end, is ended with
        them."""
        self.signal_ranks(signal.SIGTERM)
        if self.signal_ranks(signal.SIGCONT):
            self.wait_for_end(patience_s)
        if self.status is None and self.signal_ranks(signal.SIGKILL):
            self.wait_for_end(1.0)
        if self.status is None:
            self._server.close()
            self.status = -signal.SIGKILL


# ---------------------------------------------------------------- the server


def main() -> int:
    """Serve worlds until the socket closes."""
    for module in PRELOADED:
        if is_installed(module.partition(".")[0]):
            import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a rank would otherwise copy every page that the ranks share
    with Connection(os.dup(0)) as parent:
        _ForkServer(parent).serve()
    return 0


class _ForkServer:
    """Forks the ranks of one world after another for the process at the other end of `parent`."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._pid = os.getpid()
        self._ranks = dict[int, int]()
        self._wakeup, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._signal(signal.SIGTERM))

    def serve(self) -> None:
        """Serve worlds until the parent has ended."""
        while True:
            ready = wait([self._parent, self._wakeup])
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._report_ends()
            if self._parent in ready:
                try:
                    size, words, environment = self._parent.recv()
                    output = recv_handle(self._parent)
                except (EOFError, OSError):
                    return
                self._start(size, words, environment, output)

    def _start(
        self, size: int, words: Sequence[str], environment: Mapping[str, str], output: int
    ) -> None:
        # a rank that gets SIGTERM before it has a handler of its own is ended by it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listener:
            for rank in range(size):
                own = rank_environment(rank, size, listener.getsockname()[1])
                own |= {STORE_FD: str(listener.fileno())} if rank == 0 else {}
                pid = os.fork()
                if pid == 0:
                    if rank != 0:
                        listener.close()
                    self._become_rank({**environment, **own}, words, output)
                self._ranks[pid] = rank
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(output)
        self._answer(self._ranks)

    def _become_rank(
        self, environment: Mapping[str, str], words: Sequence[str], output: int
    ) -> None:
        """Runs in the new process; does not return."""
        status = 1
        try:
            die_with_parent(signal.SIGKILL, self._pid)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            self._parent.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            os.close(output)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["commbench", *words]
            runpy.run_module("commbench", run_name="__main__")  # as `python -m commbench`
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _report_ends(self) -> None:
        """The first rank that fails ends the others, as torchrun and mpirun do."""
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if self._ranks.pop(pid, None) is not None:
                code = os.waitstatus_to_exitcode(status)
                self._answer((pid, code))
                if code not in (0, *ENDED_BY_SIGNAL):
                    self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for pid in self._ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _answer(self, answer: dict[int, int] | tuple[int, int]) -> None:
        """Send the ranks by process id, or how one of them has ended."""
        # the parent has just ended; so does this process, by die_with_parent
        with suppress(OSError):
            self._parent.send(answer)


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The variables that torchrun exports on one node, except those of its restarts."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(size)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
    }


if __name__ == "__main__":
    sys.exit(main())
