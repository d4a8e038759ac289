"""How a rank joins its world: the store that its launcher opens, and the control plane over it."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from commbench.core.case import RankIdentity, World
from commbench.core.errors import WorldBroken, process_limit
from commbench.core.launchers import launcher_named
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Control, Launcher
from commbench.hardware.network import LOOPBACK, network_advice
from commbench.runtime.control import StoreControl, by_node, hosted_world
from commbench.runtime.rendezvous import CONNECT_S, FIRST_MEETING_S, assemble, server_store
from commbench.runtime.start_limit import MARGIN_S, NO_ANSWER, ends_within, meetings_end

if TYPE_CHECKING:  # a rank and the start of a command don't wait for Hydra
    from commbench.config.settings import Settings


def connect(
    identity: RankIdentity,
    backend: Backend,
    interface: str | None = None,
    environ: Mapping[str, str] = os.environ,
    ahead: Sequence[str] = (),
) -> StoreControl:
    """The control plane of this rank's world. `ahead`: modules that are imported while MPI_Init
    waits for the other ranks, without Python's lock. Raises ConfigError or WorldBroken."""
    launcher = launcher_named(identity.launcher)
    if launcher.meets_over_mpi:
        threading.Thread(target=_import_each, args=(ahead,), daemon=True).start()
    # MPI_Init and the two exchanges behind it have limits of their own
    waits = 4 if launcher.meets_over_mpi else 1
    limit_s = waits * CONNECT_S + MARGIN_S
    what = "the connection to rank 0's store"
    if backend.needs_torch:  # before the limit begins: slow imports are no fault
        importlib.import_module("torch.distributed")
    try:
        if identity.size == 1:  # the exported port may be in use by an earlier command
            store = server_store(LOOPBACK, 0, LOOPBACK, backend.needs_torch)
        else:
            with ends_within(limit_s, what, partial(_unanswered, launcher, environ), identity):
                store = launcher.open_store(identity, environ, backend, interface)
    except (RuntimeError, KeyError, ValueError, OSError, OverflowError) as error:
        text = f"rank {identity.rank} found no control plane: {error}"
        raise process_limit(error) or WorldBroken(text) from error
    return StoreControl(store, identity.rank, identity.size)


def _unanswered(launcher: Launcher, environ: Mapping[str, str]) -> str:
    """What to do where a connection is accepted, but not answered."""
    if launcher.address(environ) is None:
        return network_advice(NO_ANSWER)
    return f"{NO_ANSWER}, or another process holds its port: export another MASTER_PORT"


def _import_each(modules: Sequence[str]) -> None:
    """What fails is imported again where it is needed, which says why."""
    for name in modules:
        with suppress(Exception):
            importlib.import_module(name)


def join_world(
    settings: Settings, identity: RankIdentity | None, ahead: Sequence[str] = ()
) -> tuple[World, Control]:
    """The world and its control plane; `identity` is None where this process hosts all ranks.
    `ahead`: see connect."""
    if identity is None:
        around = Layout.around(settings.layouts)
        return hosted_world(around.nodes, around.ranks_per_node)
    control = connect(identity, settings.backend, settings.interface, ahead=ahead)
    with meetings_end(FIRST_MEETING_S, "the first meeting", identity):
        world = assemble(identity, control)
        return world, by_node(world, control)
