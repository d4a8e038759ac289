"""`make pyz`: one file with commbench and all that it needs beside torch and numpy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from bootstrap import MACHINES

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
# what `install_requires` of setup.cfg brings beside torch and numpy, without what rich needs for
# Markdown and source code, and NVML for GPUs
PURE = (
    *("hydra-core", "omegaconf", "antlr4-python3-runtime==4.9.*", "packaging", "pyyaml", "rich"),
    "nvidia-ml-py",
)
COMPILED = ("psutil",)  # for the stable ABI, so one wheel a machine fits every Python
MACHINE_NAMES = ("x86_64", "aarch64")
GLIBCS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
PYTHON = b"#!/usr/bin/env python3\n"
NOT_BUILT = shutil.ignore_patterns("tests", "build")
WITHOUT = ("*.so", "__pycache__", "bin", "_yaml")


def build(target: Path) -> None:
    """Write the archive. Raises CalledProcessError where pip can't get a package."""
    with tempfile.TemporaryDirectory() as name:
        site = Path(name) / "site"
        source = Path(name) / "source"  # a build leaves a folder in its tree
        for folder in ("commbench", "replay"):
            shutil.copytree(ROOT / folder, source / folder, ignore=NOT_BUILT)
        for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, source)
        install(site, str(source), str(source / "replay"), *PURE)
        for pattern in WITHOUT:
            for found in [*site.rglob(pattern)]:
                shutil.rmtree(found) if found.is_dir() else found.unlink()
        for machine in MACHINE_NAMES:
            platforms = [f"--platform={glibc}_{machine}" for glibc in GLIBCS]
            install(site / MACHINES / machine, "--only-binary=:all:", *platforms, *COMPILED)
        shutil.copy(ROOT / "tools/pyz/bootstrap.py", site / "__main__.py")
        write(target, site)


def install(folder: Path, *words: str) -> None:
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    command: Sequence[str] = (
        *(*PIP, "install", "--no-deps", "--no-compile", "--target", str(folder)),
        *(*constraints, *words),
    )
    subprocess.run(command, check=True)


def write(target: Path, site: Path) -> None:
    with target.open("wb") as file:
        file.write(PYTHON)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for path in sorted(site.rglob("*")):
                if path.is_file():
                    packed.write(path, path.relative_to(site))
    target.chmod(0o755)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    build(target)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB; torchrun --nproc-per-node 2 {target}")
