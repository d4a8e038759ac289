"""How the GPUs and NICs of a node are connected (`nvidia-smi topo -m`), and the link between the
GPUs of a case."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from typing import Any

from commbench.core.case import Planned
from commbench.core.terminal import first_line

from .sources import LONGEST_MESSAGE, Facts, NoReading, command_output, fact_text

COMMAND = "nvidia-smi"
TOPOLOGY_FACT = "topology.nvidia_smi_topo_m"
ROCM_TOPOLOGY_FACT = "topology.rocm_smi_showtopo"
TIMEOUT_S = 30.0  # without its persistence daemon the driver initialises one GPU after the other
NOT_AVAILABLE = "N/A"
SAME_GPU = "SELF"
OTHER_NODE = "NET"  # links that are not in that table

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # the header is underlined
_AFFINITIES = re.compile("(CPU|NUMA) Affinity|GPU NUMA ID")  # the columns after the links
# older drivers name a NIC: mlx5_0
_DEVICE = re.compile(r"GPU[0-9]+|NIC[0-9]+|[a-z][a-z0-9_]*[0-9]")
_BUS_ID_FACT = re.compile(r"gpu\.([0-9]{1,4})\.pci_bus_id")
_CPUS = re.compile(r"[0-9]+([-,][0-9]+)*")
_LINK = "X|NV[0-9]+|C2C|PIX|PXB|PHB|NODE|SYS|SOC"
_FUSED = re.compile(f"(?:{_LINK}){{2,}}")  # cells without a space between them, as PIXNODE

Topology = Mapping[str, str]  # the cells of `nvidia-smi topo -m`: NV18 of "GPU0 GPU1"


@dataclass(frozen=True)
class RankGpu:
    """The GPU of a rank; None is unknown.

    `index` is that in the node's topology table and facts, GPU<index> of nvidia-smi, found by the
    PCI bus id: CUDA's order may differ, and a container counts only the GPUs that it sees.
    `capability` is 90 for 9.0, PCIe generation and width are the current ones, `nvlinks` is the
    number of active links.
    """

    node: int
    index: int | None = None
    pci_bus_id: str | None = None
    capability: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    c2c_gb_per_s: float | None = None  # NVLink-C2C to the CPU, all links in one direction

    @classmethod
    def from_facts(
        cls,
        node: int,
        own: Mapping[str, Any],
        machine: Mapping[str, Any],
        reading: Mapping[str, Any] | None = None,
    ) -> RankGpu:
        """Made from a rank's `gpu.own.*`, its node's `gpu.<index>.*`, and what the rank itself has
        read of its GPU (fields of nvml.Gpu), which counts before the node's facts."""
        bus_id = own.get("gpu.own.pci_bus_id")
        index = _index_of(bus_id, machine)

        def value(name: str) -> Any:
            later = (reading or {}).get(name)
            return machine.get(f"gpu.{index}.{name}") if later is None else later

        capability = own.get("gpu.own.compute_capability") or value("compute_capability")
        return cls(
            node=node,
            index=index,
            pci_bus_id=bus_id,
            capability=int(capability.replace(".", "")) if capability else None,
            pcie_generation=value("pcie_generation"),
            pcie_width=value("pcie_width"),
            nvlinks=value("nvlink_links"),
            c2c_gb_per_s=value("c2c_gb_per_s"),
        )

    def is_same(self, other: RankGpu) -> bool:
        """Whether both ranks use the same GPU: parts of one (MIG) have different UUIDs, but the
        same PCI bus id."""
        if self.node != other.node or self.pci_bus_id is None:
            return False
        return self.pci_bus_id == other.pci_bus_id


def _index_of(pci_bus_id: str | None, machine: Mapping[str, Any]) -> int | None:
    """The index of the GPU among those that the node's first rank sees; None if it sees another
    set of them, as in another container."""
    indices = (
        int(match[1])
        for key, value in machine.items()
        if value == pci_bus_id and (match := _BUS_ID_FACT.fullmatch(key))
    )
    return None if pci_bus_id is None else next(indices, None)


def shared_link(
    planned: Planned, gpus: Sequence[RankGpu], topologies: Mapping[int, Topology]
) -> str | None:
    """The column `link`: the link of a pair, or that of all pairs of a collective or of several
    pairs.

    None on CPUs, if the pairs have different links, and if a link is unknown. `gpus` are those of
    the world's ranks, `topologies` those of its nodes. NET is another node, even if NVLink reaches
    it: see the column `transport`.
    """
    if planned.case.device == "cpu":
        return None
    members = [gpus[rank] for rank in planned.members]
    nodes = {gpu.node for gpu in members}
    # the link of all pairs only if each rank has its own node
    if not planned.case.pairs and len(nodes) > 1:
        return OTHER_NODE if len(nodes) == len(members) else None
    pairs = planned.case.pairs or combinations(range(len(members)), 2)
    links = {link_between(members[first], members[second], topologies) for first, second in pairs}
    return next(iter(links)) if len(links) == 1 else None


def link_between(first: RankGpu, second: RankGpu, topologies: Mapping[int, Topology]) -> str | None:
    """SELF, NET, or the cell of the topology table, whatever it is; None if it is unknown."""
    if first.node != second.node:
        return OTHER_NODE
    if first.is_same(second):
        return SAME_GPU
    links = topologies.get(first.node, {})
    row = f"GPU{first.index}"
    column = f"GPU{second.index}"
    link = links.get(f"{row} {column}") or links.get(f"{column} {row}")
    return None if link == NOT_AVAILABLE else link


def collect(timeout_s: float = TIMEOUT_S) -> Facts:
    """The table as `topology.nvidia_smi_topo_m`; if there is none, it is None. `topology.reason`
    says why, or which of its rows can't be read."""
    try:
        table = command_output([COMMAND, "topo", "-m"], timeout_s)
    except NoReading as error:
        return {TOPOLOGY_FACT: None, "topology.reason": str(error)}
    if "GPU0" in table:  # also a table that parse_topo can't read is kept for the reader
        shifted = [name for name, cells in _rows(table) if cells is None]
        reason = (
            f"{COMMAND} topo -m: the cells of {', '.join(shifted)} are not those of its columns"
        )
        return {TOPOLOGY_FACT: table} | ({"topology.reason": reason} if shifted else {})
    message = fact_text(first_line(table))[:LONGEST_MESSAGE]
    return {TOPOLOGY_FACT: None, "topology.reason": f"{COMMAND} shows no GPU: {message}"}


def matrix_text(facts: Mapping[str, object]) -> str | None:
    """The table as `nvidia-smi` or `rocm-smi` shows it on a terminal, without the underlining of
    its header; None if there is none."""
    text = facts.get(ROCM_TOPOLOGY_FACT) or facts.get(TOPOLOGY_FACT)
    return _ANSI.sub("", str(text)).expandtabs().rstrip() if text else None


def node_record(facts: Mapping[str, object]) -> dict[str, Any] | None:
    """The node's topology for run.json, {"links": {"GPU0 GPU1": "NV18"}}; None if `nvidia-smi`
    printed no table."""
    text = facts.get(TOPOLOGY_FACT)
    return {"links": parse_topo(text)} if isinstance(text, str) else None


def parse_topo(text: str) -> Topology:
    """Read the table, with tabs or spaces between its cells; {} where there is none. A row may be
    cut off."""
    links = dict[str, str]()
    for row, cells in _rows(text):
        for column, cell in (cells or {}).items():
            links.setdefault(f"{row} {column}", cell)
    return links


def _rows(text: str) -> Iterator[tuple[str, dict[str, str] | None]]:
    """The cells of each row by their columns; None where it has too few, or its own column not
    the X, so that they stand under others."""
    columns = list[str]()
    for line in _ANSI.sub("", text).splitlines():
        if not columns:  # the header: no other line consists of the names of devices
            names = _AFFINITIES.split(line)[0].split()
            if names and names[0].startswith("GPU") and all(map(_DEVICE.fullmatch, names)):
                columns = names
        elif line.strip().startswith(("Legend", "NIC Legend")):
            break
        elif (words := line.split()) and _DEVICE.fullmatch(words[0]):
            before = list(takewhile(lambda word: not _CPUS.fullmatch(word), words[1:]))
            cells = [cell for word in before for cell in _cells(word)]
            is_cut = len(before) == len(words) - 1  # nothing stands behind its links
            row = dict(zip(columns, cells, strict=False))
            is_whole = is_cut or len(cells) >= len(columns)
            yield words[0], row if is_whole and row.get(words[0], "X") == "X" else None


def _cells(word: str) -> list[str]:
    return re.findall(_LINK, word) if _FUSED.fullmatch(word) else [word]
