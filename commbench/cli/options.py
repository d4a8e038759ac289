"""The parser of a command's options, whose errors end like all bad input, and numbers that several commands take."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import NoReturn

from commbench.core.errors import ConfigError

LARGEST_NUMBER = 10**18 - 1


class CommandParser(argparse.ArgumentParser):
    """Raises ConfigError that points to the command's help."""

    def error(self, message: str) -> NoReturn:
        setting = re.search(r"arguments: --(\w[\w.]*=\S*)", message)
        hint = f"settings have no dashes: {setting[1]}; " if setting else ""
        raise ConfigError(f"{message}; {hint}see {self.prog} --help")


def whole_number(least: int, most: int = LARGEST_NUMBER) -> Callable[[str], int]:
    """The type of an option that takes an integer between these bounds."""
    bounds = f"from {least} on" if most == LARGEST_NUMBER else f"from {least} to {most}"

    def parse(word: str) -> int:
        if not re.fullmatch(r"\d{1,18}", word) or not least <= int(word) <= most:
            raise argparse.ArgumentTypeError(f"{word} is not a whole number {bounds}")
        return int(word)

    return parse


def percent(word: str) -> float:
    value = float(word) if re.fullmatch(r"\d{1,4}(\.\d{1,9})?", word) else 0.0
    if not value:
        raise argparse.ArgumentTypeError(f"{word} is not a percentage above 0")
    return value
