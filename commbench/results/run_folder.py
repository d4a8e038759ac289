"""The folder of a run: how it is created, and how files appear in it whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from commbench.core.errors import ConfigError, Unreadable, no_permission
from commbench.core.foreign import plain_file
from commbench.core.units import about_duration

TIMESTAMP = "%Y%m%dT%H%M%S.%f"
CLOCK_STEP = timedelta(seconds=10)  # beyond what the clocks of two hosts differ by
RECORD = "run.json"
PARTS = "parts"  # the folder of what is not merged yet
DISK_PROBE_BYTES = 4096
NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # file systems without fsync of folders


def mapping_or_empty(value: Any) -> Mapping[str, Any]:
    """A part of run.json, or nothing where somebody has written another type there."""
    return value if isinstance(value, Mapping) else {}


def is_utf8(text: str) -> bool:
    """Whether an argument or a path came in UTF-8: Python keeps other bytes as surrogates, which no
    file format takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def time_in_name(name: str) -> datetime | None:
    """The time in the name of a run's folder; None for any other name."""
    try:
        return datetime.strptime(name.partition("-")[0], TIMESTAMP).replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _last_time(parent: Path) -> datetime | None:
    """The time of the last name in a folder, or in the folder of that name: a command with several
    runs has one. None where there are no such names."""
    named = {time: path for path in parent.glob("*") if (time := time_in_name(path.name))}
    if not named:
        return None
    below = (time_in_name(path.name) for path in named[max(named)].rglob("*"))
    return max([*named, *filter(None, below)])


def _next_stamp(parent: Path, after: str) -> str:
    """The clock's time, or the next microsecond after the last name where the clock has gone back:
    names are the order of runs."""
    now = datetime.now(timezone.utc)
    earlier = (time_in_name(after), time_in_name(parent.name), _last_time(parent))
    last = max((time for time in earlier if time is not None), default=None)
    if last is not None and now <= last:
        now = last + timedelta(microseconds=1)
    return now.strftime(TIMESTAMP)


def clock_behind(run: Mapping[str, Any]) -> timedelta | None:
    """How far the clock was behind the run before, from run.json; None where it was not, and for
    an imported run, which was measured before it was named."""
    named = None if "imported" in run else time_in_name(str(run.get("run_id")))
    try:
        behind = named and named - datetime.fromisoformat(str(run.get("started_at")))
    except (ValueError, TypeError):  # not as commbench writes it
        return None
    return behind if behind and behind > CLOCK_STEP else None


def clock_text(runs: Iterable[Mapping[str, Any]]) -> str | None:
    """That the clock has gone back before one of these runs; None where it has not."""
    behind = max(filter(None, map(clock_behind, runs)), default=None)
    if behind is None:
        return None
    return (
        f"the clock was up to {about_duration(behind.total_seconds())} behind the run before: the"
        " names of runs say their order, not their time"
    )


def new_folder(output: str, after: str = "") -> str:
    """Create the folder of a run. Its name sorts after those beside it, and after the name `after`.
    Raises ConfigError if it can't be written to."""
    parent = Path(output).absolute()
    if not is_utf8(str(parent)):  # neither parquet files nor run.json can be written there
        raise ConfigError(
            f"the name of the folder {parent} is not UTF-8; choose another with output=FOLDER"
        )
    try:
        while True:
            folder = parent / f"{_next_stamp(parent, after)}-{secrets.token_hex(2)}"
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:  # another run has created it: take another name
                if not parent.is_dir():
                    raise
        probe = folder / ".probe"
        try:
            # on a full disk files can be created, but not written
            probe.write_bytes(bytes(DISK_PROBE_BYTES))
            probe.unlink()
        except OSError:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
                folder.rmdir()
            raise
    except OSError as error:
        raise _unwritable(output, error) from error
    return str(folder)


def _unwritable(output: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"output={output} can't be written: {error.strerror}; choose another with output=FOLDER"
    )


def check_output(output: str) -> None:
    """Raise ConfigError where new_folder would, leaving nothing behind."""
    path = Path(output).absolute()
    try:
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
    except OSError as error:
        raise _unwritable(output, error) from error
    try:
        Path(new_folder(output)).rmdir()
    finally:
        with suppress(OSError):  # another run has begun there
            for folder in created:
                folder.rmdir()


def publish(temporary: Path, target: Path, sync: bool = True) -> None:
    """Rename a file so that it appears whole or not at all; with `sync` also after a power failure.
    Raises OSError."""
    if not sync:
        temporary.replace(target)
        return
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(target)
    try:
        folder = os.open(target.parent, os.O_RDONLY)
    except PermissionError:  # it may be written to, but not read
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(folder)


def read_record(folder: str | Path) -> dict[str, Any]:
    """The contents of run.json; empty if it is absent or damaged."""
    try:
        run = json.loads(file_bytes(Path(folder) / RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return run if isinstance(run, dict) else {}


def exists(path: Path) -> bool:
    """Whether there is such a file; False where its disk can't tell."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def check_readable(folder: Path) -> None:
    """Raises Unreadable for a folder that this user may not read; a missing one is no error."""
    try:
        os.scandir(folder).close()
    except PermissionError as error:
        raise Unreadable(no_permission(folder)) from error
    except OSError:
        return


def walk(
    path: str | Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As os.walk, through links to folders, too; each folder once, so that links in a circle
    end. A folder goes before the links beside it."""
    seen = set[tuple[int, int]]()
    for folder, folders, names in os.walk(path, onerror=onerror, followlinks=True):
        try:
            status = Path(folder).stat()
        except OSError:  # it was removed meanwhile
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort(key=lambda name: (Path(folder, name).is_symlink(), name))
        yield Path(folder), folders, names


def file_bytes(path: Path) -> bytes:
    """The content of a plain file; opening anything else, such as a FIFO, could wait forever.
    Raises OSError."""
    with plain_file(path) as file:
        return file.read()


def record_problem(folder: str | Path) -> str | None:
    """Why run.json of a run that was begun can't be read; None where it can, or where nothing was
    begun."""
    path = Path(folder)
    try:
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return f"{path} is gone: it was removed or renamed"
    except OSError as error:
        return f"{path} can't be read: {error.strerror}"
    if RECORD not in names:
        begun = PARTS in names or any(name.endswith(".parquet") for name in names)
        return f"{path / RECORD} is gone: it was removed or renamed" if begun else None
    try:
        file_bytes(path / RECORD)
    except OSError as error:
        return f"{path / RECORD} can't be read: {error.strerror}"
    return None if read_record(path) else f"{path / RECORD} is damaged"


def resume_command(folder: str | Path) -> str:
    """The command that finishes a run, for a shell."""
    return f"commbench resume {shlex.quote(str(folder))}"


def how_to_finish(folder: str | Path) -> str | None:
    """How a run that ended early is finished, or why that is impossible; None where nothing was
    begun."""
    if read_record(folder):
        return f"finish it with: {resume_command(folder)}"
    return record_problem(folder)


def json_text(value: Mapping[str, Any]) -> str:
    """A value as the text of run.json."""
    return json.dumps(value, indent=1, default=str) + "\n"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file. Raises OSError, and keeps the old file then."""
    replace_file(path, json_text(value).encode())


def replace_file(path: Path, content: bytes | memoryview, sync: bool = True) -> None:
    """Write a whole file, which may exist, see `publish`. Raises OSError, and keeps the old file
    then."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(content)
        publish(temporary, path, sync)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
