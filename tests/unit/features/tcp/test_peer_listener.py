"""Strangers at the port of a world: silent, wrong, garbled, many; real peers are accepted
meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from commbench.features.tcp import peer_listener
from commbench.features.tcp.peer_listener import GREETING, WELCOME, PeerListener, greet

SECRET = bytes(range(16))
TIMEOUT_S = 2.0  # long enough for a peer on a busy machine to come before it


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[PeerListener]:
    """Of a world with the peers 0 to 9."""
    monkeypatch.setattr(peer_listener, "GREETING_TIMEOUT_S", TIMEOUT_S)
    with closing(PeerListener("test", "127.0.0.1")) as server:
        server.serve(SECRET, lambda peer, stream, accepted: peer <= 9)
        yield server


def connect(listener: PeerListener, words: bytes = b"") -> socket.socket:
    connection = socket.create_connection((listener.address, listener.port), timeout=5)
    connection.sendall(words)
    return connection


def enter(listener: PeerListener, peer: int, stream: int) -> float:
    """As a real peer does; returns how long it took, in seconds."""
    begin = time.monotonic()
    with connect(listener) as connection:
        greet(connection, SECRET, peer, stream)
        check_accepted(listener, peer, stream, connection)
    return time.monotonic() - begin


def check_accepted(
    listener: PeerListener, peer: int, stream: int, connection: socket.socket
) -> None:
    """What the listener hands out is the other end, and it hands it out once."""
    accepted = listener.wait_for((peer, stream), 5)
    assert accepted is not None
    with accepted:
        connection.sendall(b"ok")
        assert accepted.recv(2) == b"ok"
    assert connection.recv(1) == b"", "closed"
    assert listener.wait_for((peer, stream), 0) is None


def dropped(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


STRANGERS = {
    "silent": b"",
    "half a greeting": GREETING.pack(SECRET, 1, 0)[:-1],
    "wrong secret": GREETING.pack(bytes(16), 1, 0),
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown rank": GREETING.pack(SECRET, 10, 0),
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_dropped_and_a_peer_does_not_wait_for_that(
    listener: PeerListener, words: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(listener, words) as stranger, connect(listener, words) as another:
        assert enter(listener, 1, 0) < 0.8 * TIMEOUT_S, "less than the stranger is waited for"
        assert dropped(stranger) and dropped(another)  # within the 5 s that they wait
    assert enter(listener, 2, -1) < 0.8 * TIMEOUT_S
    assert listener.wait_for((10, 0), 0) is None
    assert capsys.readouterr().err.count("dropped a connection") == 1, "reported once"


def test_a_crowd_of_silent_strangers_does_not_keep_peers_out(listener: PeerListener) -> None:
    with ExitStack() as crowd:
        for _ in range(peer_listener.MAX_PENDING + 40):
            crowd.enter_context(connect(listener))
        assert enter(listener, 3, 1) < 0.8 * TIMEOUT_S


def test_a_peer_that_greets_in_pieces_is_let_in(listener: PeerListener) -> None:
    with connect(listener) as slow:
        for byte in GREETING.pack(SECRET, 4, 63):
            slow.sendall(bytes([byte]))
            time.sleep(0.005)
        assert slow.recv(1) == WELCOME
        check_accepted(listener, 4, 63, slow)


def test_a_second_connection_with_the_same_greeting_replaces_the_first(
    listener: PeerListener,
) -> None:
    with connect(listener) as first, connect(listener) as second:
        greet(first, SECRET, 6, 0)
        greet(second, SECRET, 6, 0)
        assert first.recv(1) == b"", "closed"
        check_accepted(listener, 6, 0, second)


def test_a_refused_greeting_is_an_error_of_the_connection(listener: PeerListener) -> None:
    with connect(listener) as connection, pytest.raises(OSError, match=r"hung up|reset"):
        greet(connection, bytes(16), 1)


def test_a_peer_that_does_not_come_is_waited_for_until_the_timeout(listener: PeerListener) -> None:
    begin = time.monotonic()
    assert listener.wait_for((7, 0), 0.2) is None
    assert 0.15 < time.monotonic() - begin < 2


def test_a_peer_that_connects_before_the_listener_serves_waits() -> None:
    with (
        closing(PeerListener("test", "127.0.0.1")) as listener,
        connect(listener, GREETING.pack(SECRET, 5, 0)) as early,
    ):
        listener.serve(SECRET, lambda peer, stream, accepted: True)
        assert early.recv(1) == WELCOME
        check_accepted(listener, 5, 0, early)
