"""NCCL that is none, over gloo: every collective is made of what all ranks gave. See cupy."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from nccl_on_host import COLLECTIVES, NUMBERS, OPERATIONS, given, take, words

from cupy.cuda.runtime import STREAMS

globals().update({f"NCCL_{name}": value for name, value in {**NUMBERS, **OPERATIONS}.items()})
Work = Callable[[], Any]
_group: list[tuple[Any, ...]] = []
_depth = [0]


class NcclError(RuntimeError):
    pass


def get_unique_id() -> bytes:
    return secrets.token_bytes(128)


def get_version() -> int:
    return 22703


def groupStart() -> None:  # noqa: N802
    _depth[0] += 1


def groupEnd() -> None:  # noqa: N802
    _depth[0] -= 1
    if _depth[0] == 0 and _group:
        messages = list(_group)
        communicator = _group[0][0]
        stream = _group[0][-1]
        _group.clear()
        STREAMS[stream].enqueue(lambda: communicator.exchange(messages))


class NcclCommunicator:
    def __init__(self, size: int, unique: bytes, rank: int) -> None:
        assert isinstance(unique, bytes) and len(unique) == 128
        path = Path(os.environ.get("CUPY_ON_HOST_STORE", tempfile.gettempdir())) / unique.hex()[:32]
        self._size = size
        self._rank = rank
        store = dist.FileStore(str(path), size)
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def destroy(self) -> None:
        self._gloo = None

    def send(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._message("send", address, count, kind, peer, stream)

    def recv(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._message("recv", address, count, kind, peer, stream)

    def _message(self, *message: Any) -> None:
        groupStart()
        _group.append((self, *message))
        groupEnd()

    def exchange(self, messages: list[Any]) -> None:
        """A group: everything at once; from itself to itself in the order of the calls."""
        to_self = [
            words(*message[2:5]).copy()
            for message in messages
            if message[1] == "send" and message[5] == self._rank
        ]
        under_way = []
        for _, name, address, count, kind, peer, _ in messages:
            memory = words(address, count, kind).view(np.uint8)
            if peer == self._rank:
                if name == "recv":
                    memory[:] = to_self.pop(0).view(np.uint8)
                continue
            under_way.append(getattr(self._gloo, name)([torch.from_numpy(memory)], peer, 0))
        for work in under_way:
            work.wait()

    def __getattr__(self, name: str) -> Any:
        if name not in COLLECTIVES:
            raise AttributeError(name)
        return lambda *args: STREAMS[args[-1]].enqueue(lambda: self._collective(name, args))

    def _collective(self, name: str, args: tuple[int, ...]) -> None:
        mine = torch.from_numpy(given(name, args, self._size).view(np.uint8))
        everything = [torch.empty_like(mine) for _ in range(self._size)]
        self._gloo.allgather([everything], [mine]).wait()
        word = given(name, args, 1).dtype
        take(name, args, self._rank, [tensor.numpy().view(word) for tensor in everything])
