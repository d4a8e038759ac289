"""What opens communicators in each library. A feature with a backend that does has a module
`opening` with its OPENING."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from commbench.backends.mpi.backend import Mpi, MpiCommunicator
from commbench.backends.opening import Opener, Opening
from commbench.backends.torch.distributed import TorchCommunicator
from commbench.backends.torch.gloo import Gloo
from commbench.backends.torch.nccl import Nccl, NcclCommunicator
from commbench.core.annexes import registered
from commbench.core.protocols import Backend
from commbench.core.units import word_list
from commbench.core.variables import Engine

from .mpi import MpiOpener, NativeMpiOpener
from .nccl import NcclOpener
from .torch_groups import GroupOpener

CORE = (
    Opening(Nccl, NcclCommunicator, NcclOpener),  # before its base class, that of gloo
    Opening(Gloo, TorchCommunicator, GroupOpener),
    Opening(Mpi, MpiCommunicator, MpiOpener, native=NativeMpiOpener),
)
_openers = WeakKeyDictionary[Any, dict[Engine, Opener]]()


def openings() -> tuple[Opening, ...]:
    """Of all backends that are there."""
    return (*CORE, *registered(Opening))


def no_opener(backend: Backend, split: bool) -> str | None:
    """Why communicators of this backend can't be opened, or split. A simulated one has steps of its
    own."""
    if backend.hosts_ranks:
        return None
    for opening in openings():
        if isinstance(backend, opening.backend):
            return opening.no_split if split else None
    known = word_list([opening.backend.name for opening in openings()], "or")
    return f"{backend.name} opens no communicators; use {known}"


def opener_of(communicator: Any, engine: Engine) -> Opener:
    """The same one for all steps."""
    known = _openers.setdefault(communicator, {})
    if engine not in known:
        opening = next(each for each in openings() if isinstance(communicator, each.communicator))
        native = opening.native if engine == "native" else None
        known[engine] = (native or opening.opener)(communicator)
    return known[engine]
