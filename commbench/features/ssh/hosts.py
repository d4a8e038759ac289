"""The program of `launcher=ssh`: logs in to each host, and starts torchrun there.

A host gets its command and its variables on standard input: no shell reads them, and no list of
processes shows the variables. The first host whose ranks fail ends the others.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from commbench.hardware.network import own_address

NODE_PROGRAM = Path(__file__).with_name("node.py")
# one line, which every login shell takes: the program itself comes as the first line of input
READ_PROGRAM = "import json, sys; exec(json.loads(sys.stdin.readline()))"
POLL_S = 0.05
END_S = 10.0  # for the ranks of a host to end, and for its login


def main(words: Sequence[str]) -> int:
    """The exit status of the first host that failed, else 0."""
    options = _parser().parse_args(words)
    hosts = options.hosts.split(",")
    names = filter(None, options.exports.split(","))
    environment = {name: os.environ[name] for name in names if name in os.environ}
    logins = dict[str, subprocess.Popen[bytes]]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for number, host in enumerate(hosts):
            command = torchrun_command(number, hosts, options)
            logins[host] = log_in(options.agent, host, command, environment)
        return wait_for(logins)
    finally:
        end(logins.values())


def torchrun_command(number: int, hosts: Sequence[str], options: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={len(hosts)}", f"--node-rank={number}", f"--nproc-per-node={options.each}"),
        *("--rdzv-backend=static", f"--master-addr={hosts[0]}", f"--master-port={options.port}"),
        *("-m", "commbench", *options.worker),
    ]


def log_in(
    agent: str, host: str, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Its standard input stays open: when it closes, the host ends what it runs."""
    program = [sys.executable, "-c", READ_PROGRAM]
    is_here = own_address(host) is not None
    # of another host, a shell there reads these words
    words = program if is_here else [agent, host, shlex.join(program)]
    login = subprocess.Popen(words, stdin=subprocess.PIPE)
    job = {"command": command, "environment": environment, "folder": str(Path.cwd())}
    assert login.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, and its status says so
        for line in (NODE_PROGRAM.read_text(), job):
            login.stdin.write(f"{json.dumps(line)}\n".encode())
        login.stdin.flush()
    return login


def wait_for(logins: Mapping[str, subprocess.Popen[bytes]]) -> int:
    """The status of the first that fails, or 0 when all have ended."""
    running = dict(logins)
    while running:
        for host, login in list(running.items()):
            status = login.poll()
            if status == 0:
                del running[host]
            elif status is not None:
                print(f"launcher=ssh: {host} ended with status {status}", file=sys.stderr)
                return status if status > 0 else 128 - status
        time.sleep(POLL_S)
    return 0


def end(logins: Collection[subprocess.Popen[bytes]]) -> None:
    """Close the standard input of all, and end those that remain."""
    for login in logins:
        with suppress(OSError):
            login.stdin.close()  # type: ignore[union-attr]
    until_s = time.monotonic() + END_S
    for login in logins:
        try:
            login.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            login.kill()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="commbench.features.ssh.hosts")
    for option in ("--agent", "--hosts", "--each", "--port", "--exports"):
        parser.add_argument(option, required=True)
    parser.add_argument("worker", nargs="*")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
