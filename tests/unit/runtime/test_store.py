"""The store of worlds without torch, in its own process: the control plane over it, and what it
does in trouble."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest
from processes import free_port
from rank_threads import SOON_S, together

from commbench.core.case import World
from commbench.core.errors import Missing, StoreLost
from commbench.runtime.control import NodeControl, StoreControl, join_nodes
from commbench.runtime.store import KeyValueStore, frame, hosted_store

SOON = timedelta(seconds=SOON_S)
HOST = """\
import socket, sys
from commbench.runtime.store import hosted_store
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
store = hosted_store("127.0.0.1", port, listener.detach())
print(port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process that hosts a store, as rank 0 does."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as host:
        yield host
        host.kill()


@pytest.fixture
def port(owner: subprocess.Popen[str]) -> int:
    assert owner.stdout is not None
    return int(owner.stdout.readline())


def client(port: int) -> KeyValueStore:
    return KeyValueStore("127.0.0.1", port, SOON_S)


def test_values_are_bytes_of_any_size_until_they_are_deleted(port: int) -> None:
    store = client(port)
    other = client(port)
    large = os.urandom(3_000_000)
    store.set("a", "é")
    store.set("b", large)
    assert other.multi_get(["b", "a"]) == [large, "é".encode()] and other.get("a") == "é".encode()
    assert other.check(["a", "b"]) and not other.check(["a", "c"])
    assert other.delete_key("a") and not store.check(["a"]) and not store.delete_key("a")
    store.set("a", b"")
    assert other.clone().get("a") == b""


def test_a_get_waits_for_the_last_of_its_keys(port: int) -> None:
    reader = client(port)

    def work(rank: int) -> list[bytes]:
        store = client(port)
        if rank:
            time.sleep(0.05 * rank)
            store.set(f"key {rank}", str(rank))
        return store.multi_get(["key 1", "key 2", "key 3"])

    assert together(work, range(4)) == [[b"1", b"2", b"3"]] * 4
    assert reader.check(["key 1"])


def test_the_answer_to_a_get_that_took_too_long_is_not_taken_for_the_next_one(port: int) -> None:
    store = client(port)
    other = client(port)
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(RuntimeError, match=r"no answer from the store in 0\.05 s"):
        store.get("late")
    other.set("late", "now")
    other.set("next", "value")
    store.set_timeout(SOON)
    assert [store.get("next"), store.get("late")] == [b"value", b"now"]


def test_a_rank_that_reads_nothing_does_not_stop_the_others(port: int) -> None:
    sleeper = "import sys, os, signal; from commbench.runtime.store import GET, frame, socket\n"
    sleeper += "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    sleeper += (
        "[s.sendall(frame(n, [GET, b'large'])) for n in range(20)]; print(flush=True);"
        " signal.pause()"
    )
    store = client(port)
    store.set("large", bytes(4_000_000))
    with subprocess.Popen(
        [sys.executable, "-c", sleeper, str(port)], stdout=subprocess.PIPE
    ) as asleep:
        assert asleep.stdout is not None and asleep.stdout.readline()
        begin = time.monotonic()
        store.set("a", "b")
        assert store.get("a") == b"b" and time.monotonic() - begin < SOON_S
        asleep.kill()
    assert store.get("a") == b"b"


def test_a_stranger_is_hung_up_on_and_changes_nothing(port: int) -> None:
    store = client(port)
    store.set("a", "b")
    for words in (struct.pack("!QQQQ", 16, 1, 1 << 40, 1), frame(1, []), frame(1, [b"set", b"a"])):
        with socket.create_connection(("127.0.0.1", port), SOON_S) as stranger:
            stranger.sendall(words)
            assert stranger.recv(100) == b""
    with socket.create_connection(("127.0.0.1", port), SOON_S) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert store.get("a") == b"b"


def test_the_control_plane_works_over_it_and_names_who_is_late(port: int) -> None:
    controls = [StoreControl(client(port), rank, 8) for rank in range(8)]

    def work(control: StoreControl) -> object:
        assert control.agree(None, SOON_S) is None
        gathered = control.gather(control.rank, SOON_S)
        return control.decide(gathered, SOON_S)

    assert together(work, controls) == [list(range(8))] * 8
    assert together(lambda control: control.farewell(SOON_S), controls) == [None] * 8
    for control in controls[1:]:
        if control.rank != 5:
            control.gather(control.rank, SOON_S)
    with pytest.raises(Missing) as missing:
        controls[0].gather(0, 0.3, "a meeting")
    assert list(missing.value.ranks) == [5]


def test_the_nodes_of_a_large_world_have_stores_of_their_own(port: int) -> None:
    nodes = ((0, 1, 2), (3, 4))

    def work(rank: int) -> object:
        control = join_nodes(
            World(rank, 5, nodes, (rank,)), StoreControl(client(port), rank, 5), SOON_S
        )
        assert isinstance(control, NodeControl)
        seen = control.decide(control.gather(rank, SOON_S), SOON_S)
        control.farewell(SOON_S)
        return seen

    assert together(work, range(5)) == [[0, 1, 2, 3, 4]] * 5


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_its_process_ends_with_rank_0_and_then_all_calls_fail(
    owner: subprocess.Popen[str], port: int, end: signal.Signals
) -> None:
    control = StoreControl(client(port), 1, 2)
    server = psutil.Process(owner.pid).children()[0]
    owner.send_signal(end)
    server.wait(SOON_S)
    assert control.gone()
    with pytest.raises(StoreLost, match="the store on rank 0 was lost at 'a meeting'") as lost:
        control.decide(None, SOON_S, "a meeting")
    assert list(lost.value.ranks) == [0]


def test_a_signal_to_the_process_group_of_rank_0_does_not_reach_it(
    owner: subprocess.Popen[str], port: int
) -> None:
    """mpirun ends ranks by their group; rank 0 then saves results, and the others must not miss the
    store."""
    server = psutil.Process(owner.pid).children()[0]
    assert os.getpgid(server.pid) == server.pid != os.getpgid(owner.pid)


def test_ranks_may_connect_before_there_is_a_store() -> None:
    port = free_port()

    def work(rank: int) -> KeyValueStore:
        if rank:
            return client(port)
        time.sleep(0.3)
        listener = socket.create_server(("127.0.0.1", port))
        return hosted_store("127.0.0.1", port, listener.detach())

    host, guest = together(work, range(2))
    guest.set("a", "b")
    assert host.get("a") == b"b"
    with pytest.raises(RuntimeError, match="no store at"):
        KeyValueStore("127.0.0.1", 1, 0.1)
