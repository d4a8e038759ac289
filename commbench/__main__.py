"""`python -m commbench`, and the console script's entry point."""

from __future__ import annotations

import sys

from commbench.core.extras import missing_package

try:
    from commbench.cli.main import main as main
except ModuleNotFoundError as error:  # in a clone that is not installed
    if (sentence := missing_package(error)) is None:
        raise
    sys.stderr.write(f"commbench: {sentence}\n")
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())
