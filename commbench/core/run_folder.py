"""A run's folder: made once, and files that appear in it whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commbench.core.errors import ConfigError

STAMP = "%Y%m%dT%H%M%S.%f"  # names sort by time
NAMES = 20  # tried before a folder is given up
PROBE_BYTES = 4096
NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # file systems that know no fsync of folders


def new_folder(output: str) -> str:
    """A folder for a run that no other run has; names sort by time. Raises ConfigError where it can't be written."""
    try:
        folder = _made(Path(output).absolute())
        _probe(folder)
    except OSError as error:
        raise _unwritable(output, error) from error
    return str(folder)


def _made(output: Path) -> Path:
    """Raises OSError. Whoever makes a folder has it to himself: another start at the same moment takes another name."""
    for left in range(NAMES, -1, -1):
        stamp = datetime.now(timezone.utc).strftime(STAMP)
        folder = output / f"{stamp}-{secrets.token_hex(2)}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if left == 0 or not output.is_dir():
                raise
    raise AssertionError


def _probe(folder: Path) -> None:
    """Raises OSError, and leaves nothing behind then. A full disk still makes files, but takes no bytes."""
    probe = folder / ".probe"
    try:
        probe.write_bytes(bytes(PROBE_BYTES))
        probe.unlink()
    except OSError:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
            folder.rmdir()
        raise


def _unwritable(output: str, error: OSError) -> ConfigError:
    return ConfigError(f"output={output} can't be written: {error.strerror}; choose another with output=FOLDER")


def check_output(output: str) -> None:
    """Raises ConfigError where new_folder would; leaves nothing behind."""
    path = Path(output).absolute()
    try:
        made = [one for one in (path, *path.parents) if not one.exists()]
    except OSError as error:
        raise _unwritable(output, error) from error
    try:
        Path(new_folder(output)).rmdir()
    finally:
        with suppress(OSError):  # another run has begun there
            for one in made:
                one.rmdir()


def publish(aside: Path, target: Path) -> None:
    """Make a file appear whole or not at all, also after a power cut. Raises OSError."""
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(target)
    with suppress(PermissionError):  # a folder that may be written but not listed
        _sync_folder(target.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(folder)


def json_text(value: Mapping[str, Any]) -> str:
    """run.json as it is written."""
    return json.dumps(value, indent=1, default=str) + "\n"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Raises OSError, and leaves what was there before then."""
    aside = path.with_suffix(".tmp")
    try:
        aside.write_text(json_text(value))
        publish(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
