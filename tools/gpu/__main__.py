"""`make gpu-check`: every check that needs a GPU, in at most 8 minutes, with all evidence in one folder.

`python tools/gpu [FOLDER] [CHECK ...]`; exit status 0 if nothing failed, 1 if a check failed, 2 without a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import checks
from check import Check, run
from machine import REFERENCE, ROOT, Machine, answer, environment, gpu_count, importable, look

BOUND_S = 480.0
LEAST_S = 15.0  # a check does not start with less time left
SITE = "site"
KEPT = ("run.json", "cases.parquet", "counters.parquet", "command.txt", "stdout.txt", "stderr.txt")


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
        reason = f"the {BOUND_S:.0f} s are used up; run it alone: python tools/gpu FOLDER {check.name}"
    if reason is not None:
        return Line(check.name, "not possible", 0.0, reason)
    try:
        end = run(check, out, env, left_s)
        missed = [f"{one.text}: {seen}" for one in check.seen if (seen := one.missed(end)) is not None]
    except Exception as error:
        (out / check.name).mkdir(parents=True, exist_ok=True)
        (out / check.name / "error.txt").write_text(traceback.format_exc())
        return Line(check.name, "failed", 0.0, f"{type(error).__name__}: {error}; see {check.name}/error.txt")
    return Line(check.name, "failed" if missed else "ok", end.seconds, "; ".join(missed))


def evidence(machine: Machine, env: dict[str, str]) -> dict[str, Any]:
    """A description of this machine, independent of the checks."""
    asked = {
        "topology": ["nvidia-smi", "topo", "-m"],
        "nvidia_smi": ["nvidia-smi"],
        "nvlink": ["nvidia-smi", "nvlink", "-s"],
        "packages": [sys.executable, "-m", "pip", "list", "--format=freeze"],
    }
    texts = {name: spoken(command, env) for name, command in asked.items()}
    facts = answer(
        "import json; from commbench.hardware import machine_facts; print(json.dumps(machine_facts.collect()))", env
    )
    return {
        "machine": machine.plain(),
        "python": sys.version,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "copy_in_one_process": answer(REFERENCE, env) if machine.torch_cuda else None,
        "facts": facts,
        **texts,
    }


def spoken(command: list[str], env: dict[str, str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, errors="replace", env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr


def pack(out: Path) -> Path:
    """Pack everything but the samples into one file to send back."""
    target = out / "gpu-check.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for file in sorted(out.rglob("*")):
            inside, wanted = file.relative_to(out), file.parent == out or file.name in KEPT
            if wanted and file.is_file() and file != target and inside.parts[0] != SITE:
                archive.add(file, Path("gpu-check") / inside)
    return target


def main(words: list[str]) -> int:
    begin = time.monotonic()
    gpus = gpu_count()
    if isinstance(gpus, str):
        print(f"gpu-check: {gpus}; run it on a machine with an NVIDIA GPU (docs/gpu.md)", file=sys.stderr)
        return 2
    out = Path(words[0] if words else "gpu-check").resolve()
    env = environment(importable(out / SITE))
    sys.path.insert(0, str(out / SITE))
    machine = look(gpus, env)
    known = {check.name: check for check in checks.checks(machine)}
    unknown = [name for name in words[1:] if name not in known]
    if unknown:
        print(f"gpu-check: unknown checks: {', '.join(unknown)}; allowed: {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"{gpus} GPU(s) {', '.join(machine.names)}; torch {machine.torch}, source {ROOT}", flush=True)
    (out / "evidence.json").write_text(json.dumps(evidence(machine, env), indent=1))
    lines = []
    for name in words[1:] or known:
        lines.append(verdict(known[name], machine, out, env, BOUND_S - (time.monotonic() - begin)))
        print(lines[-1], flush=True)
    (out / "table.txt").write_text("\n".join(map(str, lines)) + "\n")
    (out / "table.json").write_text(json.dumps([asdict(line) for line in lines], indent=1))
    failed = sum(line.verdict == "failed" for line in lines)
    print(f"{len(lines)} checks, {failed} failed, {time.monotonic() - begin:.0f} s; send back {pack(out)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
