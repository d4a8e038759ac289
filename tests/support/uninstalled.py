"""All installed packages but commbench, for `python -S`."""

from __future__ import annotations

import sysconfig
from pathlib import Path


def packages_without_commbench(folder: Path) -> Path:
    """A new folder for PYTHONPATH, with links."""
    folder.mkdir(parents=True)
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if "commbench" not in entry.name and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder
