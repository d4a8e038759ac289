"""Where things lie in this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
# stand-ins for hardware and libraries, each in a folder of its own
SUPPORT = ROOT / "tests" / "support"


def _by_name(group: str) -> dict[str, Path]:
    """The files of a group; those of a feature lie in its folder."""
    folders = ("conf", "commbench/features/*")
    files = (file for folder in folders for file in ROOT.glob(f"{folder}/{group}/*.yaml"))
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


BENCHMARKS = _by_name("benchmark")
EXPERIMENTS = _by_name("experiment")
HOST_GPU = SUPPORT / "host_gpu"
DATA = ROOT / "tests" / "data"
HARDWARE_TEXTS = DATA / "hardware"  # what commands and files of real machines said
# real traces, where a checkout has them beside it
TRACES = ROOT.parent / "shared" / "traces"
