"""The options of a command line; wrong ones end like all bad input: in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from commbench.core.errors import ConfigError


class Options(argparse.ArgumentParser):
    """argparse, but for its exit: raises ConfigError that points to the help of `prog`."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")
