"""Facts about a process and its machine, such as `host.kernel`: flat, JSON-able; without a source the key is missing.

`collect()` runs on every rank; `differences([...])` compares all ranks; `by_node([...], nodes)` is what run.json keeps.
"""

from __future__ import annotations

from types import ModuleType

from . import gpu, host, ipc, network, peer_access, resource_limits, software, topology
from .comparison import by_node as by_node
from .comparison import differences as differences
from .sources import Facts, one_line

MODULES: tuple[ModuleType, ...] = (host, resource_limits, software, network, topology, gpu, peer_access, ipc)


def collect() -> Facts:
    """All facts of this process and its machine; a module that fails leaves `<module>.error`."""
    facts: Facts = {}
    for module in MODULES:
        try:
            facts |= module.collect()
        except Exception as error:  # facts explain a run, they must never end one
            facts[f"{module.__name__.rpartition('.')[2]}.error"] = one_line(repr(error))
    return facts
