"""A run's folder: made once, and files that appear in it whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commbench.errors import ConfigError


def new_folder(output: str) -> str:
    """A folder for a run that no other run has; names sort by time. Raises ConfigError where it can't be written."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    folder = Path(output).absolute() / f"{stamp}-{secrets.token_hex(2)}"
    try:
        folder.mkdir(parents=True)
        (folder / ".probe").touch()
        (folder / ".probe").unlink()
    except OSError as error:
        raise _unwritable(output, error) from error
    return str(folder)


def _unwritable(output: str, error: OSError) -> ConfigError:
    return ConfigError(f"output={output} can't be written: {error.strerror}; choose another with output=FOLDER")


def check_output(output: str) -> None:
    """Raises ConfigError where new_folder would; leaves nothing behind."""
    path = Path(output).absolute()
    try:
        made = [one for one in (path, *path.parents) if not one.exists()]
    except OSError as error:
        raise _unwritable(output, error) from error
    Path(new_folder(output)).rmdir()
    with suppress(OSError):  # another run has begun there
        for one in made:
            one.rmdir()


def publish(aside: Path, target: Path) -> None:
    """Make a file appear whole or not at all, also after a power cut."""
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(value, indent=1, default=str) + "\n")
    publish(aside, path)
