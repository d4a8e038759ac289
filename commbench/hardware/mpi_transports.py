"""Which transport an MPI library takes within a node and between nodes, as far as it tells.

Open MPI: the chosen PML (`mca_pml_base_selected_component`, whose name is at the same place in
versions 4 and 5), and the BTLs or the MTL that have registered their control variables (MPI_T). ob1
takes shared memory within a node if that BTL is open. MPICH: the device in its version string. UCX
below either of them: its log.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .sources import fact_text
from .ucx_log import BETWEEN, WITHIN, ucx_transports

SHARED_MEMORY = ("sm", "vader", "smcuda")
NETWORK_BTLS = ("tcp", "openib", "usnic", "ugni", "portals4")  # that send messages
# a variable that each MTL registers
MTL_VARIABLES = {
    "ofi": "mtl_ofi_provider_include",
    "psm2": "mtl_psm2_connect_timeout",
    "psm": "mtl_psm_connect_timeout",
    "portals4": "mtl_portals4_eager_limit",
}
# in mca_base_component_t
FRAMEWORK_AT = 40
NAME_AT = 84
NAME_BYTES = 64
_DEVICE = re.compile(r"MPICH Device:\s*(\S+)")


def transports(library: ctypes.CDLL, version_text: str, ucx_log: str) -> dict[str, str]:
    """The transports WITHIN and BETWEEN nodes (ob1/sm, cm/ofi, ucx/rc_mlx5:mlx5_0:1, ch4:ofi);
    without what is not known. `version_text` is that of MPI_Get_library_version."""
    by_ucx = ucx_transports(ucx_log)
    if device := _DEVICE.search(version_text):  # its own shared memory within a node
        return {BETWEEN: by_ucx.get(BETWEEN, fact_text(device[1]))}
    pml = _chosen_pml(library)
    if pml != "ob1":
        mtls = _registered(library, MTL_VARIABLES.items()) if pml == "cm" else []
        name = "/".join([pml, *mtls[:1]]) if pml else None
        return ({WITHIN: name, BETWEEN: name} if name else {}) | by_ucx
    variables = {name: f"btl_{name}_eager_limit" for name in (*SHARED_MEMORY, *NETWORK_BTLS)}
    opened = _registered(library, variables.items())
    network = "+".join(name for name in opened if name in NETWORK_BTLS)
    within = next((name for name in opened if name in SHARED_MEMORY), network)
    return {where: f"ob1/{name}" for where, name in ((WITHIN, within), (BETWEEN, network)) if name}


def used_transports(known: Mapping[str, str], nodes: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Those that a world with these ranks on its nodes uses; empty if one of them is not known."""
    wanted = [WITHIN] if any(len(ranks) > 1 for ranks in nodes) else []
    wanted += [BETWEEN] if len(nodes) > 1 else []
    return tuple(known[where] for where in wanted) if known.keys() >= {*wanted} else ()


def _chosen_pml(library: ctypes.CDLL) -> str | None:
    with suppress(ValueError):  # a library without that symbol
        content = (ctypes.c_char * (NAME_AT + NAME_BYTES)).in_dll(
            library, "mca_pml_base_selected_component"
        )
        if content.raw[FRAMEWORK_AT:].startswith(b"pml\0"):
            return fact_text(content.raw[NAME_AT:].split(b"\0")[0].decode(errors="replace")) or None
    return None


def _registered(library: Any, variables: Iterable[tuple[str, str]]) -> list[str]:
    """The names of those control variables that the library has."""
    found = list[str]()
    number = ctypes.c_int()
    with suppress(AttributeError):  # a library without MPI_T
        if library.MPI_T_init_thread(0, ctypes.byref(number)) == 0:
            for name, variable in variables:
                if library.MPI_T_cvar_get_index(variable.encode(), ctypes.byref(number)) == 0:
                    found.append(name)
            library.MPI_T_finalize()
    return found
