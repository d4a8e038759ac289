"""A virtual environment with torch, numpy and what they need, as an image has them. It is made of
links, in a second."""

from __future__ import annotations

import re
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

BESIDE = ("torch", "numpy")


def bare_environment(folder: Path, names: tuple[str, ...] = BESIDE) -> Path:
    """Its python."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in _with_needed(names):
        for file in distribution(name).files or ():
            link = site / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(Path(str(distribution(name).locate_file(file.parts[0]))))
    return folder / "bin" / "python"


def _with_needed(names: tuple[str, ...]) -> set[str]:
    found = set[str]()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            requires = distribution(name).requires or ()
        except PackageNotFoundError:  # of another platform
            continue
        if name not in found:
            found.add(name)
            needed = (word for word in requires if "extra ==" not in word)
            waiting += [re.split(r"[^A-Za-z0-9._-]", word)[0] for word in needed]
    return found
