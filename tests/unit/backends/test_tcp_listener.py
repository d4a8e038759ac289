"""Strangers at the door: silent, wrong, garbled, many; real peers come in meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from commbench.backends.tcp import listener as tcp_listener
from commbench.backends.tcp.listener import GREETING, Listener

SECRET = bytes(range(16))
Arrivals = list[tuple[int, int, bytes]]


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Listener, Arrivals]]:
    monkeypatch.setattr(tcp_listener, "PATIENCE_S", 0.5)
    listener, arrivals = Listener("127.0.0.1", None), []

    def arrived(peer: int, stream: int, one: socket.socket) -> bool:
        if peer > 9:
            return False
        one.sendall(b"in")
        arrivals.append((peer, stream, one.recv(2)))
        one.close()
        return True

    listener.serve(SECRET, arrived)
    yield listener, arrivals
    listener.close()


def knock(listener: Listener, words: bytes = b"") -> socket.socket:
    one = socket.create_connection((listener.address, listener.port), timeout=5)
    one.sendall(words)
    return one


def enter(listener: Listener, peer: int, stream: int) -> float:
    """As a real peer does; how long it took."""
    begin = time.monotonic()
    with knock(listener, GREETING.pack(SECRET, peer, stream)) as one:
        assert one.recv(2) == b"in"
        one.sendall(b"ok")
        assert one.recv(1) == b"", "noted, and closed"
    return time.monotonic() - begin


def dropped(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
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
    door: tuple[Listener, Arrivals], words: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    listener, arrivals = door
    with knock(listener, words) as stranger, knock(listener, words) as another:
        assert enter(listener, 1, 0) < 0.4, "less than the stranger is waited for"
        begin = time.monotonic()
        assert dropped(stranger) and dropped(another)
        assert time.monotonic() - begin < 3
    assert enter(listener, 2, -1) < 0.4
    assert [(peer, stream) for peer, stream, _ in arrivals] == [(1, 0), (2, -1)]
    assert capsys.readouterr().err.count("stranger") == 1, "said once"


def test_a_crowd_of_silent_strangers_does_not_close_the_door(door: tuple[Listener, Arrivals]) -> None:
    listener, arrivals = door
    with ExitStack() as crowd:
        for _ in range(tcp_listener.MOST_GUESTS + 40):
            crowd.enter_context(knock(listener))
        assert enter(listener, 3, 1) < 2
    assert [(peer, stream) for peer, stream, _ in arrivals] == [(3, 1)]


def test_a_peer_that_greets_in_pieces_is_let_in(door: tuple[Listener, Arrivals]) -> None:
    listener, arrivals = door
    with knock(listener) as slow:
        for byte in GREETING.pack(SECRET, 4, 63):
            slow.sendall(bytes([byte]))
            time.sleep(0.005)
        assert slow.recv(2) == b"in"
        slow.sendall(b"ok")
        assert slow.recv(1) == b""
    assert arrivals == [(4, 63, b"ok")]


def test_who_comes_before_the_door_opens_waits_before_it() -> None:
    listener, arrivals = Listener("127.0.0.1", None), []

    def arrived(peer: int, stream: int, one: socket.socket) -> bool:
        arrivals.append(peer)
        one.sendall(b"in")
        one.close()
        return True

    with knock(listener, GREETING.pack(SECRET, 5, 0)) as early:
        listener.serve(SECRET, arrived)
        assert early.recv(2) == b"in"
    listener.close()
    assert arrivals == [5]
