"""`python -m commbench`, and the console script's entry point."""

from __future__ import annotations

import sys

from commbench.cli.main import main as main

if __name__ == "__main__":
    sys.exit(main())
