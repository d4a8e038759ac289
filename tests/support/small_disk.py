"""A real disk that gets full, read-only and free again: a tmpfs of 1 MiB. Where this user can't
mount, its tests are skipped: root needs CAP_SYS_ADMIN, which a container rarely has."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

MOUNT_S = 20


@dataclass(frozen=True)
class Disk:
    path: Path

    def fill(self, spare_bytes: int = 0) -> None:
        """Until it takes not a byte more, but for the spare ones."""
        with (self.path / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - spare_bytes))

    def free(self) -> None:
        (self.path / "ballast").unlink()

    def read_only(self, on: bool) -> None:
        """By a second mount above the first: a run holds its lock file open for writing, so the
        first one is busy."""
        if on:
            _command("mount", "--bind", "-o", "ro", str(self.path), str(self.path))
        else:
            _command("umount", "--lazy", str(self.path))


@contextmanager
def small_disk(path: Path) -> Iterator[Disk]:
    """Mounted at the path while the context lasts."""
    path.mkdir(parents=True)
    _command("mount", "-t", "tmpfs", "-o", "size=1m", "commbench-test", str(path))
    try:
        yield Disk(path)
    finally:
        while path.is_mount():
            _command("umount", "--lazy", str(path))


def _command(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=MOUNT_S, check=False)
    except FileNotFoundError:
        pytest.skip(f"no disk to fill: no {words[0]} here")
    if done.returncode != 0:
        pytest.skip(f"no disk to fill: {' '.join(words)}: {done.stderr.strip()}")
