"""Where and with what a result was made: flat facts such as `host.kernel`, JSON-able; missing source = missing key.

`collect()` on every rank; `differences([...])` of all ranks before measuring; `by_node([...], nodes)` for the record.
"""

from __future__ import annotations

from types import ModuleType

from . import environment, gpu, host, ipc, network, peer_access, resource_limits, topology, versions
from .comparison import by_node as by_node
from .comparison import differences as differences
from .sources import Facts, one_line

MODULES: tuple[ModuleType, ...] = (
    host,
    resource_limits,
    versions,
    network,
    environment,
    topology,
    gpu,
    peer_access,
    ipc,
)


def collect() -> Facts:
    """All facts of this process and its machine; a module that breaks leaves `<module>.error`."""
    facts: Facts = {}
    for module in MODULES:
        facts |= _collect(module)
    return facts


def _collect(module: ModuleType) -> Facts:
    try:
        return dict(module.collect())
    except Exception as error:  # provenance explains a run, it must never end one
        return {f"{module.__name__.rpartition('.')[2]}.error": one_line(repr(error))}
