"""What runs on each host of `launcher=ssh`, by `python -c`: a command in an environment, until it
ends or the login does. It must import nothing of commbench."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

END_S = 5.0


def main() -> int:
    job = json.loads(sys.stdin.readline())
    environment = {**os.environ, **job["environment"]}
    folder = job["folder"] if os.path.isdir(job["folder"]) else None  # noqa: PTH112
    child = subprocess.Popen(
        job["command"],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=end_with_login, args=(child,), daemon=True).start()
    status = child.wait()
    end_group(child.pid, signal.SIGKILL)  # what torchrun has left
    return 128 - status if status < 0 else status


def end_with_login(child: "subprocess.Popen[bytes]") -> None:
    sys.stdin.read()
    end_group(child.pid, signal.SIGTERM)
    time.sleep(END_S)
    end_group(child.pid, signal.SIGKILL)


def end_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
