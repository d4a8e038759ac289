"""A Python process that has imported commbench's hardware and answers questions, each in a fork of
its own.

Each line on stdin is a question in JSON: a `program` that prints one line, its whole `environment`,
and the `libraries` to load first. In a fork LD_LIBRARY_PATH comes too late for the loader, which
knows a loaded library by its soname.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import traceback

for module in ("commbench.hardware.gpu", "commbench.hardware.machine_facts"):
    importlib.import_module(module)


def answer(program: str, environment: dict[str, str], libraries: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for library in libraries:
        ctypes.CDLL(library)
    exec(program, {"__name__": "__main__"})


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                answer(**json.loads(line))
            except BaseException:
                print(json.dumps({"failed": traceback.format_exc()}))
            sys.stdout.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            print(json.dumps({"failed": f"exit status {status}"}))
        sys.stdout.flush()
