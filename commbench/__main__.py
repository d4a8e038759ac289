"""`python -m commbench`, and the console script's entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from commbench.cli.main import main as command


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of a command, also where its terminal is gone by now."""
    try:
        return command(argv)
    finally:
        from commbench.world.output import drop_unread_output

        drop_unread_output()


if __name__ == "__main__":
    sys.exit(main())
