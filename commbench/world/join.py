"""Into the world: who is here, where each rank runs, and whether what was asked fits."""

from __future__ import annotations

from commbench.config.settings import Settings
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Control

from .identity import Place, assemble, bind, by_node, connect, hosted_world


def enter(settings: Settings, place: Place | None) -> tuple[World, Control]:
    """The world and its control plane; `place` is None where this process hosts all ranks."""
    if place is None:
        around = Layout.around(settings.layouts)
        return hosted_world(around.nodes, around.ranks_per_node)
    backend = settings.backend
    control = connect(place, backend.library or "auto", backend.threads, interface=settings.interface)
    world = assemble(place, control)
    return world, by_node(world, control)


def bound(settings: Settings, world: World) -> str:
    """Pin this rank as asked; what was done, in words."""
    if len(world.hosted) > 1:
        return "none"
    here = world.nodes[world.node_of(world.rank)]
    return bind(settings.bind, here.index(world.rank), len(here), settings.backend.threads_per_rank)


def refuse_misfits(settings: Settings, world: World) -> None:
    """Raises ConfigError where no layout fits into this world."""
    misfits = [layout.misfit(world) for layout in settings.layouts]
    if all(misfits):
        raise ConfigError(f"{misfits[0]}; start more ranks or choose a smaller layout")
