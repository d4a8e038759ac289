"""Playing a combination: start the world, let the fault happen, watch how the world ends."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import psutil
from combination import (
    CTRL_S,
    FINISHED,
    FULL_SHM,
    FULL_STDOUT,
    HOSTS,
    LATE_S,
    PAUSE_S,
    RENAMED,
    Combination,
)
from planted import PLAN, Plan
from sizes import as_given, in_order
from stack import STACKS, command, commands_on_hosts
from traces import TOKEN, Traces, command_of
from virtual_hosts import Host, VirtualHosts, virtual_hosts

TERMINALS = ("SIGHUP", CTRL_S)  # faults that need one
NOISE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\0")  # prterun ends its own messages with a zero byte
LIMIT_S = 120.0  # of a combination; a run that has not ended by then hangs
TICK_S = 0.05
LOOK_S = 1.0
TIMING = (
    "timing=fixed",
    "timing.repetitions=30",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
)

# a mount namespace of its own: nobody else's /dev/shm is touched
FULL = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$@"', "sh")

Act = Callable[[subprocess.Popen[bytes]], object]


@dataclass
class Scene:
    """What was observed. Times are from time.time(); `lines` are those of stderr; `status` is None
    if it was killed."""

    combination: Combination
    sizes: list[int]  # in the order the cases run
    folder: Path
    begun: float = 0.0
    ended: float = 0.0
    status: int | None = None
    marks: list[float] = field(default_factory=list)  # when the fault began
    lines: list[tuple[float, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    # the launcher still waits for a host that is gone, but all other ranks have ended
    stays: bool = False

    @property
    def output(self) -> Path:
        return self.folder / "results"

    @property
    def stderr(self) -> str:
        return "\n".join(line for _, line in self.lines)

    @property
    def stdout(self) -> str:
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self.folder.glob("out-*"))
        )


def play(combination: Combination, folder: Path) -> Scene:
    """Run it in this folder, which must be empty and a path without symbolic links."""
    scene = Scene(combination, in_order(combination), folder)
    traces = Traces(secrets.token_hex(8))
    environment = _environment(scene, traces.token)
    where = virtual_hosts(2, folder / "hosts") if combination.world in HOSTS else nullcontext()
    with where as hosts, _ends(combination) as ends:
        budget = [
            f"budget.restarts={combination.restarts}",
            f"budget.late_s={LATE_S if combination.waits else 60.0:g}",
        ]
        words = [*TIMING, *budget, as_given(scene.sizes), f"output={scene.output}"]
        lines = (
            [command(combination.world, words)]
            if hosts is None
            else commands_on_hosts(combination.world, hosts, words)
        )
        lines = [[*FULL, *line] for line in lines] if combination.fault == FULL_SHM else lines
        processes = [
            _start(scene, number, line, environment, ends) for number, line in enumerate(lines)
        ]
        try:
            _watch(
                scene,
                processes,
                traces,
                _act(scene, hosts, ends),
                _remaining_host(combination, hosts),
            )
            _end_launcher(scene, traces)
            scene.left = traces.left()
        finally:
            traces.end()
            for process in processes:
                process.wait()
    return scene


def _environment(scene: Scene, token: str) -> dict[str, str]:
    combination = scene.combination
    size = scene.sizes[FINISHED - 1 if combination.phase == "between cases" else FINISHED]
    plan = Plan(
        combination.fault,
        combination.phase,
        combination.rank,
        size,
        combination.times,
        str(scene.folder),
    )
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment["RES_OPTIONS"] = "timeout:1 attempts:1"  # torch asks DNS for the name of 127.0.0.1
    if combination.fault == RENAMED:  # where the run leaves what it can't store
        environment["TMPDIR"] = str(scene.folder)
    if os.geteuid() == 0:
        environment |= {
            f"{kind}_ALLOW_RUN_AS_ROOT{more}": "1"
            for kind in ("OMPI", "PRTE")
            for more in ("", "_CONFIRM")
        }
    return environment | {TOKEN: token, PLAN: json.dumps(asdict(plan))}


def _start(
    scene: Scene, number: int, line: list[str], environment: dict[str, str], ends: list[int]
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, on the terminal or with the pipe if there is one."""
    scene.begun = time.time()
    fault = scene.combination.fault
    on_terminal = fault in TERMINALS
    before = _take_terminal if on_terminal else _listen
    stdout = Path("/dev/full") if fault == FULL_STDOUT else scene.folder / f"out-{number}"
    with (
        stdout.open("wb") as out,
        (scene.folder / f"err-{number}").open("wb") as err,
    ):
        return subprocess.Popen(
            line,
            env=environment,
            cwd=scene.folder,
            stdin=ends[1] if on_terminal else subprocess.DEVNULL,
            stdout=ends[1] if ends else out,
            stderr=err,
            start_new_session=True,
            preexec_fn=_close_stdout if fault == "stdout closed" else before,
        )


# ---------------------------------------------------------------- faults from outside


def _act(scene: Scene, hosts: VirtualHosts | None, ends: list[int]) -> Act | None:
    """What this process does when the rank reaches the planned moment; None if the rank breaks by
    itself."""
    combination = scene.combination
    acts: dict[str, Act] = {
        "SIGINT": lambda process: process.send_signal(signal.SIGINT),
        "SIGTERM": lambda process: process.send_signal(signal.SIGTERM),
        "Ctrl-C": lambda process: os.killpg(process.pid, signal.SIGINT),
        "SIGHUP": lambda process: os.close(ends.pop(0)),
        "reader gone": lambda process: os.close(ends.pop(0)),
        CTRL_S: partial(_stop_terminal, ends),
    }
    acts |= {
        f"launcher {signal.Signals(number).name}": partial(_signal_launcher, number)
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
    }
    acts |= {"parent SIGKILL": lambda process: process.kill(), "parent SIGSTOP": _pause}
    acts[RENAMED] = lambda process: _rename(scene.output)
    if hosts is not None:
        down = ["ip", "-n", hosts.hosts[combination.rank].name, "link", "set", "eth0", "down"]
        acts["link down"] = lambda process: subprocess.run(down, check=True, timeout=10)
    return acts.get(combination.fault)


def _signal_launcher(number: int, process: subprocess.Popen[bytes]) -> None:
    """To what commbench has started: the rank server, torchrun or mpirun."""
    psutil.Process(process.pid).children()[0].send_signal(number)


def _rename(output: Path) -> None:
    (folder,) = output.iterdir()
    folder.rename(output / "elsewhere")


def _pause(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    threading.Timer(PAUSE_S, process.send_signal, [signal.SIGCONT]).start()


def _stop_terminal(ends: list[int], process: subprocess.Popen[bytes]) -> None:
    """Stop the terminal as Ctrl-S does, and end the command."""
    termios.tcflow(ends[1], termios.TCOOFF)
    process.send_signal(signal.SIGTERM)


@contextmanager
def _ends(combination: Combination) -> Iterator[list[int]]:
    """Both ends of a terminal or pipe, the one to close and the one to print to; empty if none is
    needed."""
    ends = list[int]()
    if combination.fault in TERMINALS:
        ends += os.openpty()
    elif combination.fault == "reader gone":
        ends += os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def _listen() -> None:
    """Handle signals as in a shell: a process started in the background inherits an ignored SIGINT
    (nohup: SIGHUP)."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _close_stdout() -> None:
    _listen()
    os.close(1)


def _take_terminal() -> None:
    _listen()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


# ---------------------------------------------------------------- watching


def _watch(
    scene: Scene,
    processes: list[subprocess.Popen[bytes]],
    traces: Traces,
    act: Act | None,
    remaining: Host | None,
) -> None:
    """Watch until all commands have ended, the time limit is reached, or all ranks on the remaining
    host have ended."""
    looked = 0.0
    read = dict.fromkeys(sorted(scene.folder.glob("err-*")), 0)
    running = True
    while running and not scene.stays and time.time() < scene.begun + LIMIT_S:
        time.sleep(TICK_S)
        running = any(process.poll() is None for process in processes)
        scene.stays = (
            running
            and remaining is not None
            and bool(scene.marks)
            and not any(map(_is_rank, remaining.pids()))
        )
        _read_on(scene, read)
        if _new_marks(scene) and act is not None:
            traces.look()
            scene.marks[-1] = time.time()
            act(processes[0])
        if time.time() > looked + LOOK_S:
            traces.look()
            looked = time.time()
    scene.ended = time.time()
    scene.status = processes[0].poll()


def _remaining_host(combination: Combination, hosts: VirtualHosts | None) -> Host | None:
    """The remaining host, if mpirun was started on it: it waits for the other host for minutes."""
    return (
        hosts.hosts[0]
        if hosts is not None and STACKS[combination.world].library is not None
        else None
    )


def _is_rank(pid: int) -> bool:
    words = command_of(pid).split()
    return words[:1] == [sys.executable] and "commbench" in words[1:4]


def _end_launcher(scene: Scene, traces: Traces) -> None:
    """If the launcher stays, kill everything but the ranks, which must end by themselves."""
    for pid in traces.pids() if scene.stays else ():
        if not _is_rank(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _new_marks(scene: Scene) -> bool:
    paths = sorted(scene.folder.glob("mark-*"))
    new = paths[len(scene.marks) :]
    scene.marks += [float(path.read_text()) for path in new]
    return bool(new)


def _read_on(scene: Scene, read: dict[Path, int]) -> None:
    """Append the complete lines that were written to the files since the last call."""
    for path, begin in read.items():
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        read[path] += len(whole)
        scene.lines += [
            (time.time(), NOISE.sub("", line).strip())
            for line in whole.decode(errors="replace").splitlines()
        ]
