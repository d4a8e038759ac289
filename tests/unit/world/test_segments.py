"""Shared memory of killed ranks: found by who maps it, removed by name, and nobody else's."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commbench.world.supervisor import mapped_shared_memory, remove_shared_memory

HOLD = """
import mmap, sys, time
maps = []
for path in sys.argv[1:]:
    with open(path, "r+b") as file:
        maps.append(mmap.mmap(file.fileno(), 4096))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def names() -> Iterator[tuple[Path, Path, Path]]:
    """A library's segment, one of somebody else's, and a library's that nobody of us maps."""
    token = secrets.token_hex(4)
    made = tuple(Path("/dev/shm") / f"{name}{token}" for name in ("mpich_shm_", "commbench_test_", "mpich_shm_x"))
    for path in made:
        path.write_bytes(bytes(4096))
    yield made[0], made[1], made[2]
    for path in made:
        path.unlink(missing_ok=True)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to")
def test_only_what_the_ranks_of_a_library_map_is_removed(names: tuple[Path, Path, Path]) -> None:
    ours, foreign, unmapped = names
    words = [sys.executable, "-c", HOLD, str(ours), str(foreign)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert mapped_shared_memory([process.pid, 2**22 + 1]) == {ours}
        remove_shared_memory(mapped_shared_memory([process.pid]))
        assert mapped_shared_memory([process.pid]) == set(), "it has no name any more"
        process.kill()
    assert [path.exists() for path in (ours, foreign, unmapped)] == [False, True, True]
    remove_shared_memory([ours])  # already gone
