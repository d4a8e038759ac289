"""Files of a run's folder that are written atomically, or wait in memory until the disk has
room."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from commbench.core.errors import WorldBroken
from commbench.core.states import RunStatus
from commbench.core.terminal import print_error
from commbench.core.units import format_bytes, format_seconds
from commbench.results.run_folder import replace_file

BOUND_BYTES = 256 << 20  # of what waits in memory
DISK_RETRY_S = 0.5  # between two cases, where every file waits for a full disk
END_S = 5.0
# of retries at the end of a run; an interrupted one must not keep its user waiting
INTERRUPTED_S = 1.0
PAUSE_S = 0.5
# of writing files through to the disk, which only a power failure makes necessary before the end
SYNC_ALLOWANCE_S = 1.0
SYNC_SHARE = 0.1  # of the time of the run, in addition
SLOW_SYNC_S = 0.5  # of one small file, from which on the folder is called slow
SMALL_FILE_BYTES = 1 << 20

_called_slow = set[Path]()


@dataclass(frozen=True)
class Item:
    """The content of a file, or lines to append to it. Items with `keep` are dropped last."""

    content: memoryview
    keep: bool
    append: bool = False


class DurableFiles:
    """The files of one folder, by name. Only the first failure and the recovery from it are
    reported, a line each.

    `waiting` holds what could not be written yet, `dropped` the names of files that exceeded the
    bound, `error` the text of the last failure.
    """

    def __init__(self, folder: Path, bound_bytes: int = BOUND_BYTES) -> None:
        self.folder = folder
        self._bound_bytes = bound_bytes
        self.waiting: dict[str, Item] = {}
        self.dropped: list[str] = []
        self.error = ""
        self._published: set[str] = set()
        self._failing = False
        self._begun_s = time.monotonic()
        self._syncs_s = 0.0  # spent on writing files through to the disk
        self._bound = format_bytes(bound_bytes)

    def put(self, name: str, content: bytes | memoryview, keep: bool = True) -> None:
        """Write a whole file; a newer one of that name replaces it. Never raises OSError."""
        self._take(name, Item(memoryview(content), keep))

    def append(self, name: str, content: bytes) -> None:
        """Append to a file. Never raises OSError."""
        before = self.waiting.pop(name, None)
        self._take(
            name,
            Item(
                memoryview(bytes(before.content) + content if before else content),
                True,
                append=True,
            ),
        )

    def retry(self, patience_s: float) -> bool:
        """Try until everything is written or the time is over; returns whether nothing waits any
        more."""
        end = time.monotonic() + patience_s
        while not self._write_waiting(end) and time.monotonic() < end:
            time.sleep(max(0.0, min(PAUSE_S, end - time.monotonic())))
        return not self.waiting

    def gone(self) -> set[str]:
        """The names of files that were written and have been removed since, such as with their
        folder."""
        return {
            name
            for name in self._published
            if name not in self.waiting and not (self.folder / name).exists()
        }

    def forget(self, name: str) -> None:
        """Do not count the absence of a file that was merged into another one."""
        self._published.discard(name)

    def replace(self, earlier: str, newer: str) -> None:
        """Remove a file whose content is also in a newer one, if that is written."""
        if newer in self.waiting:
            return
        self.waiting.pop(earlier, None)
        self._published.discard(earlier)
        with suppress(OSError):
            (self.folder / earlier).unlink(missing_ok=True)

    def rescue(self, more: Mapping[str, bytes]) -> Path | None:
        """Move what waits, and `more`, to a new temporary folder, rows first; None if that is
        impossible.

        What does not fit there keeps waiting.
        """
        try:
            refuge = Path(tempfile.mkdtemp(prefix=f"commbench-{self.folder.name}-"))
        except OSError:
            return None
        before = len(self.waiting)
        with suppress(OSError):
            for name, content in more.items():
                _write(refuge, name, Item(memoryview(content), True))
            for name in self._by_worth():
                _write(refuge, name, self.waiting[name])
                del self.waiting[name]
        if len(self.waiting) < before:
            return refuge
        shutil.rmtree(refuge, ignore_errors=True)
        return None

    def _take(self, name: str, item: Item) -> None:
        """Write the item or let it wait, and drop the oldest ones beyond the bound: rows only after
        all samples."""
        self.waiting[name] = item
        self._write_waiting(time.monotonic() + DISK_RETRY_S)
        size = sum(item.content.nbytes for item in self.waiting.values())
        for oldest in sorted(self.waiting, key=lambda name: self.waiting[name].keep):
            if size <= self._bound_bytes:
                return
            if not self.dropped:
                print_error(
                    f"more than {self._bound} wait for {self.folder}; what came first is lost,"
                    " samples before rows"
                )
            size -= self.waiting.pop(oldest).content.nbytes
            self.dropped.append(oldest)

    def _by_worth(self) -> list[str]:
        """Rows first, then in order of arrival: a case must not wait for a gigabyte of samples."""
        return sorted(self.waiting, key=lambda name: not self.waiting[name].keep)

    def _write_waiting(self, end: float) -> bool:
        for name in self._by_worth():
            try:
                self._write_in_time(name, self.waiting[name])
            except OSError as error:
                self.error = error_text(error)
                if not self._failing:
                    self._failing = True
                    print_error(
                        f"{self.folder / name} can't be written: {self.error}; the run continues;"
                        f" its results wait in memory (at most {self._bound}), and are tried again"
                        " with each case"
                    )
                if time.monotonic() > end:  # as long as files arrive there is no hurry
                    break
            else:
                del self.waiting[name]
                self._published.add(name)
        if self._failing and not self.waiting:
            self._failing = False
            but = f", but for {len(self.dropped)} files that are lost" if self.dropped else ""
            print_error(f"{self.folder} can be written again; all that waited is saved{but}")
        return not self.waiting

    def _write_in_time(self, name: str, item: Item) -> None:
        """Write a file, and through to the disk as long as that takes little of the run's time.
        Raises OSError."""
        begun_s = time.monotonic()
        allowed_s = SYNC_ALLOWANCE_S + SYNC_SHARE * (begun_s - self._begun_s)
        sync = self._syncs_s < allowed_s
        _write(self.folder, name, item, sync)
        took_s = time.monotonic() - begun_s
        self._syncs_s += took_s if sync else 0.0
        is_slow = took_s > SLOW_SYNC_S and item.content.nbytes < SMALL_FILE_BYTES
        if is_slow and self.folder not in _called_slow:
            _called_slow.add(self.folder)
            print_error(
                f"{self.folder} is slow: a file took {format_seconds(took_s)}; files are written"
                f" through to its disk only in {SYNC_SHARE:.0%} of the time, and at the end;"
                " output=FOLDER chooses a faster one"
            )


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Turn an OSError into a WorldBroken where a writer can't begin."""
    try:
        yield
    except OSError as error:
        raise WorldBroken(
            f"{error.filename or folder} can't be written: {error_text(error)}; make room, or"
            " choose another folder with output=FOLDER"
        ) from error


def retry_s(status: RunStatus | None) -> float:
    """How long the end of a run with this status may retry."""
    return INTERRUPTED_S if status == "interrupted" else END_S


def clear_torn(folder: Path) -> None:
    """Remove what a run that was killed during a write has left. Raises OSError."""
    for aside in folder.glob("*.tmp"):
        aside.unlink()


def error_text(error: OSError) -> str:
    """The text of an error without its number and path."""
    return error.strerror or str(error)


def _write(folder: Path, name: str, item: Item, sync: bool = True) -> None:
    target = folder / name
    if target.parent != folder:
        # never its parents: under a lost mount lies another disk
        target.parent.mkdir(exist_ok=True)
    if item.append:
        _extend(target, item.content, sync)
        return
    replace_file(target, item.content, sync)


def _extend(target: Path, content: memoryview, sync: bool) -> None:
    """Append everything or nothing: an incomplete write to a full disk is undone."""
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(file).st_size
        try:
            while content:
                content = content[os.write(file, content) :]
            if sync:
                os.fsync(file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, size)
            raise
    finally:
        os.close(file)
