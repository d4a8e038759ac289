"""The __main__.py of commbench.pyz: unpack the archive once, then run commbench from there.

It is unpacked beside the archive, so that all nodes that share the folder use one copy, and else in
the folder for temporary files.
"""

import hashlib
import os
import platform
import runpy
import shutil
import stat
import sys
import tempfile
import zipfile
from pathlib import Path

MACHINES = "machine"  # its folders have what is compiled, by platform.machine()


def unpacked(archive: Path) -> Path:
    """The folder with the content of the archive."""
    with zipfile.ZipFile(archive) as packed:
        checksums = [f"{each.filename} {each.CRC:08x}" for each in packed.infolist()]
        digest = hashlib.sha256("\n".join(checksums).encode()).hexdigest()[:12]
        for parent in (archive.parent, Path(tempfile.gettempdir())):
            folder = parent / f".{archive.name}-{os.geteuid()}-{digest}"
            if is_own(folder) or unpack(packed, folder):
                return folder
    raise SystemExit(
        f"{archive.name}: it can be unpacked neither beside itself nor in"
        f" {tempfile.gettempdir()}; set TMPDIR to a folder that you may write to"
    )


def is_own(folder: Path) -> bool:
    """Whether nobody else can have put anything there."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & others
    )


def unpack(packed: zipfile.ZipFile, folder: Path) -> bool:
    """Whether the folder is there at the end, unpacked by this process or another one."""
    aside = None
    try:
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        packed.extractall(aside)
        aside.rename(folder)
    except OSError:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    return is_own(folder)


if __name__ == "__main__":
    folder = unpacked(Path(sys.path[0]).resolve())
    machine = folder / MACHINES / platform.machine()
    # what is compiled comes last: the image may have its own
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")]), str(machine)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the ranks
    sys.path[0] = str(folder)
    sys.path.append(str(machine))
    runpy.run_module("commbench", run_name="__main__", alter_sys=True)
