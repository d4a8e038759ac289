"""Where things lie in this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
PACKAGES = (ROOT / "commbench", ROOT / "replay" / "commbench_replay")
# stand-ins for hardware and libraries, each in a folder of its own
SUPPORT = ROOT / "tests" / "support"
# by name; those of a feature or annex lie in its folder
EXPERIMENTS, BENCHMARKS, BACKENDS, LAUNCHERS = (
    {
        file.stem: file
        for where in ("conf", "commbench/cluster", "commbench/features/*", "replay/*")
        for file in sorted(ROOT.glob(f"{where}/{group}/*.yaml"))
    }
    for group in ("experiment", "benchmark", "backend", "launcher")
)
HOST_GPU = SUPPORT / "host_gpu"
DATA = ROOT / "tests" / "data"
HARDWARE_TEXTS = DATA / "hardware"  # what commands and files of real machines said
# real traces and published measurements, where a checkout has them beside it
TRACES = ROOT.parent / "shared" / "traces"
AICONFIGURATOR = ROOT.parent / "shared" / "reference" / "aiconfigurator"
