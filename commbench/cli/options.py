"""What commands share: options whose errors end like all bad input, in one line, and output to a file or a terminal."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NoReturn

from commbench.core.errors import ConfigError
from commbench.world.output import drop_unread_output


class Options(argparse.ArgumentParser):
    """argparse, but for its exit: raises ConfigError that points to the help of `prog`."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def from_0(word: str) -> int:
    if not re.fullmatch(r"\d{1,18}", word):
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 0 on")
    return int(word)


def from_1(word: str) -> int:
    if not re.fullmatch(r"\d{1,18}", word) or not int(word):
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 1 on")
    return int(word)


def check_not_folder(option: str, file: Path) -> None:
    if file.is_dir():
        raise ConfigError(f"{option} {file} is a folder; name a file in it")


def write_file(option: str, file: Path, text: str, replace: bool = True) -> None:
    """Raises ConfigError where it can't be written, or exists and is not to be replaced."""
    try:
        with file.open("w" if replace else "x", encoding="utf-8", errors="replace", newline="") as out:
            out.write(text)
    except OSError as error:
        raise ConfigError(f"{option} {file} can't be written: {error.strerror}; choose another file") from error


def write_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        drop_unread_output()
