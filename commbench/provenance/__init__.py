"""Where and with what a result was made: flat facts such as `host.kernel`, JSON-able; missing source = missing key.

`collect()` on every rank; `differences([...])` of all ranks before measuring; `by_node([...], nodes)` for the record.
"""

from __future__ import annotations

from types import ModuleType

from commbench.provenance import environment, gpu, host, ipc, limits, network, peer_access, topology, versions
from commbench.provenance.comparison import by_node as by_node
from commbench.provenance.comparison import differences as differences
from commbench.provenance.sources import Facts, one_line

MODULES: tuple[ModuleType, ...] = (host, limits, versions, network, environment, topology, gpu, peer_access, ipc)


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
