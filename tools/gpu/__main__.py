"""`make gpu-check`: what needs a GPU, in parts with time limits of their own.

`python tools/gpu [--call 1|2|3|several] [--total S] [--only NAME,...] [--archive FILE] FOLDER` runs
the parts, each in a folder and a process group of its own, and packs what they left after each of
them. A part that hangs costs its own limit only. The numbers are judged afterwards, anywhere:
`python tools/gpu/judge.py FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from machine import environment, gpu_count, gpu_name, removed
from part import Part
from parts import CALLS

GRACE_S = 3.0
LEAST_S = 8.0  # a part does not start with less time left
POLL_S = 0.05
RANK_RUNS_S = 3.0  # a rank is killed so long after its run has begun
MOST_BYTES = 4 << 20  # of a file in the archive
TIMED_OUT = "time limit"
TOTAL_S = {"3": 300.0}  # of a call, where its parts are to end within another time than USUAL_S
USUAL_S = 330.0
MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_CONTROL_S = 10.0
# short: a socket is made there
MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps", "CUDA_MPS_LOG_DIRECTORY": "/tmp/mps"}
SMI = (
    "timestamp,pstate,clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active,"
    "utilization.gpu,memory.used,pcie.link.gen.current,pcie.link.width.current"
)


class Running:
    """A part that has been started."""

    def __init__(self, part: Part, folder: Path, env: Mapping[str, str], left_s: float) -> None:
        self.part = part
        self.folder = folder / part.name
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "command.txt").write_text(part.command + "\n")
        self.begin_s = time.monotonic()
        # a process that ignores both signals ends within the time that is left, too
        self._until_s = self.begin_s + min(part.limit_s, left_s - 2 * GRACE_S)
        self._kill_s: float | None = None
        self._killed = False
        with (
            (self.folder / "stdout.txt").open("wb") as stdout,
            (self.folder / "stderr.txt").open("wb") as stderr,
        ):
            self.process = subprocess.Popen(
                ["bash", "-c", part.command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**env, **part.env, **(MPS if part.mps else {})},
                start_new_session=True,
            )

    def end(self) -> str:
        """Its exit status, or TIMED_OUT. A process that can't be killed is left behind."""
        while self.process.poll() is None and time.monotonic() < self._until_s:
            if self.part.kills is not None and not self._killed:
                self._kill_rank(self.part.kills)
            time.sleep(POLL_S)
        if self.process.poll() is not None:
            return f"exit {self.process.returncode}"
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(self.process.pid, number)
            if self._has_ended_within(GRACE_S):
                return TIMED_OUT
        return f"{TIMED_OUT}, and it can't be killed"

    def _has_ended_within(self, seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)
        return self.process.poll() is not None

    def _kill_rank(self, rank: int) -> None:
        pid = process_of_rank(self.folder / "results", rank)
        if pid is None:
            return
        self._kill_s = self._kill_s or time.monotonic() + RANK_RUNS_S
        if time.monotonic() >= self._kill_s:
            self._killed = True
            os.kill(pid, signal.SIGKILL)


def process_of_rank(results: Path, rank: int) -> int | None:
    """The process that run.json names for a rank."""
    for file in results.glob("*/run.json"):
        for pid, name in json.loads(file.read_text()).get("processes", {}).items():
            if f"rank {rank}" in name:
                return int(pid)
    return None


def pack(folder: Path, archive: Path) -> None:
    """Replaces the archive, so it is complete at any time."""
    fresh = archive.with_suffix(".tmp")
    with tarfile.open(fresh, "w:gz", compresslevel=1) as tar:
        for file in sorted(folder.rglob("*")):
            inside = file.relative_to(folder)
            is_evidence = inside.parts[0] != "site" and file not in (archive, fresh)
            if file.is_file() and is_evidence and file.stat().st_size < MOST_BYTES:
                tar.add(file, Path("gpu-check") / inside)
    fresh.replace(archive)


def grouped(parts: Iterable[Part]) -> list[list[Part]]:
    """Parts that run at the same time."""
    together: list[list[Part]] = []
    for part in parts:
        if part.beside and together:
            together[-1].append(part)
        else:
            together.append([part])
    return together


def run_group(
    group: Sequence[Part], folder: Path, env: Mapping[str, str], left_s: float
) -> list[str]:
    """Lines of the table."""
    if left_s < LEAST_S:
        return [f"{'no time left':<12} {part.name}" for part in group]
    lines = []
    with processes_at_once(any(part.mps for part in group)):
        for running in [Running(part, folder, env, left_s) for part in group]:
            ended = running.end()
            took_s = time.monotonic() - running.begin_s
            lines.append(f"{ended:<12} {running.part.name:<16} {took_s:6.1f} s")
    return lines


@contextmanager
def processes_at_once(asked: bool) -> Iterator[None]:
    """NVIDIA's Multi-Process Service runs in the block. Without its program processes take
    turns."""
    if not asked or shutil.which(MPS_CONTROL) is None:
        yield
        return
    Path(MPS["CUDA_MPS_PIPE_DIRECTORY"]).mkdir(parents=True, exist_ok=True)
    _mps_control(["-d"], "")
    try:
        yield
    finally:
        _mps_control([], "quit -t 2\n")


def _mps_control(words: Sequence[str], text: str) -> None:
    """Its daemon keeps what it inherits open, so it inherits no pipe."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [MPS_CONTROL, *words],
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **MPS},
            timeout=MPS_CONTROL_S,
            check=False,
        )


def watch_clocks(file: Path) -> subprocess.Popen[bytes] | None:
    """`nvidia-smi` in the background, which also keeps the driver loaded between parts."""
    if shutil.which("nvidia-smi") is None:
        return None
    return subprocess.Popen(
        ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv", "-lms", "500", "-f", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu-check"))
    parser.add_argument("--call", choices=list(CALLS), default="1")
    parser.add_argument("--total", type=float, help="seconds for all parts")
    parser.add_argument("--only", default="", help="names of parts")
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--list", action="store_true")
    return parser.parse_args(words)


def chosen_parts(call: str, only: str) -> list[Part]:
    """Raises SystemExit for an unknown name."""
    names = set(filter(None, only.split(",")))
    known = {part.name: part for part in CALLS[call]}
    unknown = sorted(names - known.keys())
    if unknown:
        raise SystemExit(
            f"gpu-check: unknown parts: {', '.join(unknown)}; allowed: {', '.join(known)}"
        )
    return [part for name, part in known.items() if not names or name in names]


def needed(parts: Iterable[Part], gpu: str) -> list[Part]:
    """Without those that were measured on such a GPU."""
    return [part for part in parts if part.measured_on is None or part.measured_on not in gpu]


def main(words: Sequence[str]) -> int:
    chosen = arguments(words)
    parts = chosen_parts(chosen.call, chosen.only)
    if chosen.list:
        for part in parts:
            print(f"{part.limit_s:4.0f} s  {part.name}: {part.command.strip()}")
        return 0
    gpus = gpu_count()
    if isinstance(gpus, str):
        print(f"gpu-check: {gpus}; run it on a machine with an NVIDIA GPU", file=sys.stderr)
        return 2
    total_s = chosen.total or TOTAL_S.get(chosen.call, USUAL_S)
    run(needed(parts, gpu_name()), chosen.folder.resolve(), chosen.archive, total_s)
    return 0


def run(parts: Sequence[Part], folder: Path, archive: Path | None, total_s: float) -> None:
    begin_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    archive = archive or folder / "gpu-check.tar.gz"
    env = environment()
    (folder / "removed.txt").write_text("\n".join(removed()))
    clocks = watch_clocks(folder / "smi.csv")
    try:
        for group in grouped(parts):
            left_s = total_s - (time.monotonic() - begin_s)
            lines = run_group(group, folder, env, left_s)
            print("\n".join(lines), flush=True)
            with (folder / "table.txt").open("a") as table:
                table.write("\n".join(lines) + "\n")
            pack(folder, archive)
    finally:
        if clocks is not None:
            clocks.kill()
        pack(folder, archive)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
