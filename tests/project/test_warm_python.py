"""The server that forks the processes of tests (tests/support/warm_python.py) outlives what happens
to its clients."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterator

import pytest
from warm_python import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """Its owner has ended; it notices once it has handled the other events."""
    ended, owner = os.pipe()
    os.close(owner)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Server(listener, ended)
        yield made
        made.selector.close()
    os.close(ended)


def test_a_client_that_is_gone_when_its_process_ends_does_not_end_the_server(
    server: Server,
) -> None:
    """As where a launcher kills a client whose process has ended: select() may return both events,
    in any order."""
    client, other = socket.socketpair()
    other.close()
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    server.processes[client] = pid
    client_key = server.selector.register(client, selectors.EVENT_READ)
    process_key = server.selector.register(os.pidfd_open(pid), selectors.EVENT_READ, client)
    events = iter([[(process_key, selectors.EVENT_READ), (client_key, selectors.EVENT_READ)]])
    owner_key = server.selector.get_key(server.ended)
    server.selector.select = lambda timeout=None: next(events, [(owner_key, selectors.EVENT_READ)])  # type: ignore[method-assign]
    assert server.serve() is None and server.processes == {}
