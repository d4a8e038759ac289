"""What opens communicators in each library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from commbench.backends.cupy.backend import CupyCommunicator, CupyNccl
from commbench.backends.mpi.backend import Mpi, MpiCommunicator
from commbench.backends.tcp.backend import Tcp, TcpCommunicator
from commbench.backends.torch.distributed import TorchCommunicator
from commbench.backends.torch.gloo import Gloo
from commbench.backends.torch.nccl import Nccl, NcclCommunicator
from commbench.core.program import Group
from commbench.core.protocols import Backend
from commbench.core.units import word_list
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


@dataclass(frozen=True)
class Library:
    """A backend whose communicators can be opened while the clock runs, the class of the one that a
    case has, and what opens others beside it; `native`: for engine=native. `no_split`: why it can't
    split one."""

    backend: type[Backend]
    communicator: type[Any]
    opener: Callable[[Any], Opener]
    native: Callable[[Any], Opener] | None = None
    no_split: str | None = None


LIBRARIES = (
    Library(Nccl, NcclCommunicator, NcclOpener),  # before its base class, that of gloo
    Library(Gloo, TorchCommunicator, GroupOpener),
    Library(Mpi, MpiCommunicator, MpiOpener, native=NativeMpiOpener),
    Library(Tcp, TcpCommunicator, TcpOpener),
    Library(
        CupyNccl,
        CupyCommunicator,
        CupyOpener,
        no_split="CuPy has no ncclCommSplit; use backend=nccl",
    ),
)
_openers = WeakKeyDictionary[Any, dict[Engine, Opener]]()


def no_opener(backend: Backend, split: bool) -> str | None:
    """Why communicators of this backend can't be opened, or split. A simulated one has steps of its
    own."""
    if backend.hosts_ranks:
        return None
    for library in LIBRARIES:
        if isinstance(backend, library.backend):
            return library.no_split if split else None
    known = word_list([library.backend.name for library in LIBRARIES], "or")
    return f"{backend.name} opens no communicators; use {known}"


def opener_of(communicator: Any, engine: Engine) -> Opener:
    """The same one for all steps."""
    known = _openers.setdefault(communicator, {})
    if engine not in known:
        library = next(each for each in LIBRARIES if isinstance(communicator, each.communicator))
        native = library.native if engine == "native" else None
        known[engine] = (native or library.opener)(communicator)
    return known[engine]
