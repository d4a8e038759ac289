"""What opens communicators in each library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from commbench.backends.cupy.backend import CupyCommunicator, CupyNccl
from commbench.backends.mpi.backend import Mpi, MpiCommunicator
from commbench.backends.simulated.backend import Simulated
from commbench.backends.tcp.backend import Tcp, TcpCommunicator
from commbench.backends.torch.distributed import TorchCommunicator
from commbench.backends.torch.gloo import Gloo
from commbench.backends.torch.nccl import Nccl, NcclCommunicator
from commbench.core.program import Group
from commbench.core.protocols import Backend
from commbench.core.variables import Engine

from .cupy import CupyOpener
from .mpi import MpiOpener, NativeMpiOpener
from .nccl import NcclOpener
from .tcp import TcpOpener
from .torch_groups import GroupOpener


class Opener(Protocol):
    """Opens communicators beside that of a case, one at a time, and keeps the open one. Each method
    returns the call of the library that does so: a Call, or a NativeCall."""

    def open(self, groups: Sequence[Group], colour: int | None) -> Any:
        """See Opening."""

    def first_call(self, members: Group) -> Any:
        """A barrier of the open one."""

    def close(self, members: Group) -> Any:
        """All ranks call it, after the first call of each."""


_openers = WeakKeyDictionary[Any, dict[Engine, Opener]]()


def opener_of(communicator: Any, engine: Engine) -> Opener:
    """The same one for all steps."""
    known = _openers.setdefault(communicator, {})
    if engine not in known:
        known[engine] = _opener(communicator, engine)
    return known[engine]


def no_opener(backend: Backend, split: bool) -> str | None:
    """Why communicators of this backend can't be opened, or split."""
    match backend:
        case CupyNccl() if split:
            return "CuPy has no ncclCommSplit; use backend=nccl"
        case Gloo() | Nccl() | Mpi() | Tcp() | CupyNccl() | Simulated():
            return None
        case _:
            return f"{backend.name} opens no communicators; use gloo, mpi or nccl"


def _opener(communicator: Any, engine: Engine) -> Opener:
    match communicator:
        case NcclCommunicator():
            return NcclOpener(communicator)
        case TorchCommunicator():
            return GroupOpener(communicator)
        case MpiCommunicator():
            return (NativeMpiOpener if engine == "native" else MpiOpener)(communicator)
        case TcpCommunicator():
            return TcpOpener(communicator)
        case CupyCommunicator():
            return CupyOpener(communicator)
        case _:
            raise TypeError(type(communicator))
