"""A `python` for tests whose start costs 20 ms: a server that has imported torch forks each
process.

`warm_python()` starts the server, where there is none yet, and gives the path of an executable that
takes the words of python; beside it, `commbench` and `torchrun` are the same. For `-m` of FORKED
below and `FILE.py` it hands its words, environment, working directory, namespaces and open files to
the server, passes signals on, and ends as the forked process does; everything else goes to the real
python. In the forked process `sys.executable` is that executable again, so launchers that it starts
get warm ranks.

The server imports and forks, nothing else: it has one thread, has opened no CUDA device and no MPI,
and forks only from its main loop. A process that it forks differs from a fresh one in its parent
and in what is imported.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import hashlib
import importlib
import json
import os
import platform
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

Request = dict[str, Any]
MODULES = (
    "torch.distributed.run",
    "torch.distributed.distributed_c10d",
    "numba",
    "pandas",
    "pyarrow.parquet",
    "psutil",
    "rich.console",
    "commbench.measure.session",
    "commbench.engines.native",
)
HIGH_FD = 500  # received files wait above the numbers that they will get
MAX_FILES = 64
LENGTH_BYTES = 8
FORWARDED = [
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
]
# what a process reads before it could be told: another value needs another server, or a fresh
# python
READ_AT_START = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONWARNINGS",
)
PROGRAMS = {"commbench": ["-m", "commbench"], "torchrun": ["-m", "torch.distributed.run"]}
# a virtual host's; processes in other namespaces of another kind start afresh
ENTERED = ("net", "uts", "mnt")

CLIENT = """\
#!{python} -IS
import array, os, signal, socket, struct, sys
REAL, SOCKET, START, FORWARDED = {real!r}, {socket!r}, {start!r}, {forwarded!r}
SPACES, ENTERED = {spaces!r}, {entered!r}
FORKED = ["commbench", "commbench.runtime.rank_server", "torch.distributed.run"]
PROGRAMS = {programs!r}

def is_warm(words):
    if any(os.environ.get(name) != value for name, value in START.items()):
        return False
    fixed = {{kind: space for kind, space in SPACES.items() if kind not in ENTERED}}
    if any(os.readlink("/proc/self/ns/" + kind) != space for kind, space in fixed.items()):
        return False
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    if any(os.path.exists(os.path.join(folder, "sitecustomize.py")) for folder in folders):
        return False
    # submitit's modules look for their own process id
    return words[:1] == ["-m"] and words[1:2] in [[name] for name in FORKED] or (
        bool(words) and words[0].endswith(".py"))

def run_warm(words):
    import json
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [number for number in listed if os.path.exists(f"/proc/self/fd/{{number}}")]
    server = socket.socket(socket.AF_UNIX)
    server.connect(SOCKET)
    about = dict(words=words, environment=dict(os.environ), cwd=os.getcwd(), files=files,
                 affinity=sorted(os.sched_getaffinity(0)))
    text = json.dumps(about).encode("utf-8", "surrogateescape")
    paths = ["/proc/self/ns/" + kind for kind in ENTERED]
    others = [path for path in paths if os.readlink(path) != SPACES[path[14:]]]
    spaces = [os.open(path, os.O_RDONLY) for path in others]
    sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files + spaces))]
    server.sendmsg([struct.pack("Q", len(text))], sent)
    server.sendall(text)
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:  # whoever started this wants it ignored
            signal.signal(number, lambda number, frame: server.send(bytes([number])))
    status = struct.unpack("i", server.recv(4, socket.MSG_WAITALL))[0]
    if status < 0:
        if -status != signal.SIGKILL:  # which has no other handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)

words = PROGRAMS.get(os.path.basename(sys.argv[0]), []) + sys.argv[1:]
unbuffered = words[:1] == ["-u"]
if is_warm(words[unbuffered:]):
    run_warm(words[unbuffered:])
os.execv(REAL, [REAL, *words])
"""


def warm_python(library_path: str | None = None) -> Path:
    """The executable; `library_path` is the LD_LIBRARY_PATH that it takes, if any.

    All processes of one pytest-xdist share a server, which ends with the one that has started them.
    The file `pid` beside the executable names the server, whose children all forked processes are.
    """
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    born = Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[19]
    # this user's alone, with a short name: a socket's path has at most 107 bytes
    name = hashlib.sha256(f"{owner} {born} {library_path}".encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"warm-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "pid").exists():
            _start(folder, owner, {} if library_path is None else {"LD_LIBRARY_PATH": library_path})
    return folder / "python"


# they outlive this process if another one has started it
_started: list[subprocess.Popen[bytes]] = []


def _start(folder: Path, owner: int, environment: dict[str, str]) -> None:
    path = folder / "python"
    address = folder / "socket"
    at_start = {name: (os.environ | environment).get(name) for name in READ_AT_START}
    forwarded = [int(number) for number in FORWARDED]
    real = os.path.realpath(sys.executable)
    spaces = {
        path.name: str(path.readlink())
        for path in Path("/proc/self/ns").iterdir()
        if "_for_" not in path.name
    }
    client = CLIENT.format(
        python=real, real=sys.executable, socket=str(address), start=at_start, forwarded=forwarded,
        spaces=spaces, entered=ENTERED, programs=PROGRAMS,
    )  # fmt: skip
    path.write_text(client)
    path.chmod(0o755)
    for program in PROGRAMS:
        (folder / program).symlink_to(path)
    # torch reads its log level at its import; no pools of threads, which would not survive a fork
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    quiet["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # of pyarrow
    command = [sys.executable, __file__, str(address), str(path), str(owner)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command,
            stdin=-3,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | quiet | environment,
            start_new_session=True,
        )
    assert server.stdout is not None
    with server.stdout as ready:
        if ready.readline() != b"ready\n":
            raise RuntimeError(f"no warm python: {(folder / 'log').read_text()[-3000:]}")
    _started.append(server)
    (folder / "pid").write_text(str(server.pid))


# ---------------------------------------------------------------- the server


def main() -> None:
    address, executable, owner = sys.argv[1:]
    ended = os.pidfd_open(int(owner))
    prepare()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        threads = len(list(Path("/proc/self/task").iterdir()))
        if threads > 1:
            sys.exit(f"{threads} threads after the imports: a fork would be unsafe")
        print("ready", flush=True)
        request = Server(listener, ended).serve()
    if request is None:
        shutil.rmtree(Path(address).parent, ignore_errors=True)
    else:
        become(request, executable)
        status = run(request["words"])
        if "mpi4py.MPI" in sys.modules:  # it is finalised by the interpreter's end
            sys.exit(status)
        os._exit(status)


def prepare() -> None:
    """Import what ranks import, by composing a job, too; no collection of garbage touches it
    later."""
    for module in MODULES:
        importlib.import_module(module)
    from commbench.config.compose import ConfigComposer

    with ConfigComposer() as composer:
        composer.jobs(["backend=gloo", "benchmark=all"], multirun=False)
    gc.collect()
    gc.freeze()


class Server:
    """Forks for each client, passes its signals on, and tells it how its process ended."""

    def __init__(self, listener: socket.socket, ended: int) -> None:
        self.listener = listener
        self.ended = ended
        self.processes: dict[socket.socket, int] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.selector.register(ended, selectors.EVENT_READ)

    def serve(self) -> Request | None:
        """Until its owner has ended; then None, and in each forked process its request."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == self.ended:
                    for pid in self.processes.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                if key.fileobj is self.listener:
                    request = self.fork()
                    if request is not None:
                        return request
                elif isinstance(key.fileobj, socket.socket):
                    # else `report` has closed it since select() returned
                    if key.fileobj in self.processes:
                        self.forward(key.fileobj)
                else:
                    self.report(key.fd, key.data)

    def fork(self) -> Request | None:
        """Accept a client; its request in the new process, None in this one."""
        client = self.listener.accept()[0]
        request, files = receive(client)
        pid = os.fork()
        if pid == 0:
            self.selector.close()
            os.close(self.ended)
            for other in (self.listener, client, *self.processes):
                other.close()
            numbers = request["files"]
            # the last one is the file system's, whose root becomes the directory
            for space in files[len(numbers) :]:
                if ctypes.CDLL(None, use_errno=True).setns(space, 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                os.close(space)
            for file, number in zip(files, numbers, strict=False):
                os.dup2(file, number)
                os.close(file)
            return request
        for file in files:
            os.close(file)
        self.processes[client] = pid
        self.selector.register(client, selectors.EVENT_READ)
        self.selector.register(os.pidfd_open(pid), selectors.EVENT_READ, client)
        return None

    def forward(self, client: socket.socket) -> None:
        signals = client.recv(16)
        for number in signals or [signal.SIGKILL]:  # a client that is gone was killed
            os.kill(self.processes[client], number)
        if not signals:
            self.selector.unregister(client)

    def report(self, pidfd: int, client: socket.socket) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(self.processes.pop(client), 0)[1])
        self.selector.unregister(pidfd)
        os.close(pidfd)
        with suppress(KeyError):
            self.selector.unregister(client)
        with suppress(OSError):
            client.sendall(array("i", [status]).tobytes())
        client.close()


def receive(client: socket.socket) -> tuple[Request, list[int]]:
    """A client's request, and its open files in the order of their numbers in the request, then its
    namespaces."""
    length, ancillary, _, _ = client.recvmsg(
        LENGTH_BYTES, socket.CMSG_SPACE(MAX_FILES * array("i").itemsize)
    )
    received = array("i")
    for _, _, data in ancillary:
        received.frombytes(data)
    files = [fcntl.fcntl(number, fcntl.F_DUPFD, HIGH_FD) for number in received]
    for number in received:
        os.close(number)
    text = client.recv(int.from_bytes(length, sys.byteorder), socket.MSG_WAITALL)
    return json.loads(text.decode("utf-8", "surrogateescape")), files


# ---------------------------------------------------------------- a forked process


def become(request: Request, executable: str) -> None:
    """Take the client's environment, place and files, as if they had been there from the start."""
    import torch

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["affinity"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(request["affinity"]))))
    for file in (sys.stdout, sys.stderr):
        file.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.executable = executable
    tempfile.tempdir = None  # of the server's environment
    platform._uname_cache = None  # type: ignore[attr-defined]  # has the server's host name
    words = request["words"]
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
    here = request["cwd"] if words[0] == "-m" else str(Path(words[0]).resolve().parent)
    sys.path[:] = [here, *folders, *sys.path[1:]]  # the first one is this file's folder


def run(words: list[str]) -> int:
    """Run the program to its end; its exit status. What python does after that mostly frees
    memory."""
    status = 0
    try:
        if words[0] == "-m":
            sys.argv[:] = words[1:]
            sys.modules.pop(words[1], None)  # else runpy warns that it is imported already
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    main()
