"""How the GPUs and NICs of a node are connected: `nvidia-smi topo -m`, and what lies between the GPUs of a case."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from commbench.core.case import Planned

from .sources import Facts, first_line, one_line, run_command

COMMAND = "nvidia-smi"
TABLE = "topology.nvidia_smi_topo_m"
TIMEOUT_S = 10.0
NOT_AVAILABLE = "N/A"
SAME_GPU, OTHER_NODE = "SELF", "NET"  # links that are not in the table
CPU_AFFINITY, NUMA_AFFINITY, GPU_NUMA_ID = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # the header is underlined
_EXTRAS = re.compile(f"{CPU_AFFINITY}|{NUMA_AFFINITY}|{GPU_NUMA_ID}")
_DEVICE = re.compile(r"GPU[0-9]+|NIC[0-9]+|[a-z][a-z0-9_]*[0-9]")  # older drivers name a NIC: mlx5_0
_LINK = re.compile(r"X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A")
_CPUS = re.compile(r"[0-9]+([-,][0-9]+)*")
_LEGEND = re.compile(r"\s*(X|NV#|[A-Z]{3,5})\s+=\s+(.+)")
_NIC_LEGEND = re.compile(r"\s*(NIC[0-9]+)\s*:\s*(\S+)\s*")


@dataclass(frozen=True)
class Topology:
    """The table of `nvidia-smi topo -m`; affinities that are empty or N/A are left out."""

    devices: tuple[str, ...] = ()
    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    cpu_affinity: Mapping[str, str] = field(default_factory=dict)
    numa_affinity: Mapping[str, str] = field(default_factory=dict)
    gpu_numa_id: Mapping[str, str] = field(default_factory=dict)
    legend: Mapping[str, str] = field(default_factory=dict)
    nic_legend: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """As JSON, with links as {"GPU0 GPU1": "NV18"}."""
        return {**asdict(self), "links": {" ".join(pair): link for pair, link in self.links.items()}}


@dataclass(frozen=True)
class RankGpu:
    """The GPU of a rank; None is unknown.

    `index` is NVML's, which nvidia-smi calls GPU<index>; CUDA's order may differ. `capability` is 90 for 9.0,
    generation and width of PCIe are the current ones, `nvlinks` counts the active ones.
    """

    node: int
    index: int | None = None
    uuid: str | None = None
    capability: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    c2c_gb_per_s: float | None = None  # NVLink-C2C to the CPU, all links in one direction

    @classmethod
    def from_facts(cls, node: int, own: Mapping[str, object], machine: Mapping[str, object]) -> RankGpu:
        """From a rank's `gpu.own.*` and its node's `gpu.<index>.*`; missing facts and other types are unknown."""

        def integer(value: object) -> int | None:
            return value if isinstance(value, int) and not isinstance(value, bool) else None

        index, uuid = integer(own.get("gpu.own.index")), own.get("gpu.own.uuid")
        capability = re.fullmatch(r"(\d{1,3})\.(\d)", str(machine.get(f"gpu.{index}.compute_capability")))
        return cls(
            node=node,
            index=index,
            uuid=uuid if isinstance(uuid, str) else None,
            capability=10 * int(capability[1]) + int(capability[2]) if capability else None,
            pcie_generation=integer(machine.get(f"gpu.{index}.pcie_generation")),
            pcie_width=integer(machine.get(f"gpu.{index}.pcie_width")),
            nvlinks=integer(machine.get(f"gpu.{index}.nvlink_links")),
            c2c_gb_per_s=c2c if isinstance(c2c := machine.get(f"gpu.{index}.c2c_gb_per_s"), float) else None,
        )

    def is_same(self, other: RankGpu) -> bool:
        """Whether both ranks use one GPU. Parts of a GPU (MIG) have UUIDs of their own, but its index."""
        if self.node != other.node:
            return False
        if self.index is None or other.index is None:
            return self.uuid is not None and self.uuid == other.uuid
        return self.index == other.index


def shared_link(job: Planned, gpus: Sequence[RankGpu], topologies: Mapping[int, Topology]) -> str | None:
    """The column `link`: the link of a pair, or the one that all pairs of a collective or of several pairs share.

    None on CPUs, where the pairs differ, and where a GPU or its link is unknown. `gpus` are those of the world's ranks,
    `topologies` those of its nodes. NET is another node, which NVLink may reach as well: see the column `transport`.
    """
    if job.case.device == "cpu":
        return None
    members = [gpus[rank] for rank in job.members]
    nodes = {gpu.node for gpu in members}
    if not job.case.pairs and len(nodes) > 1:  # two ranks of a node never have the link of two nodes
        return OTHER_NODE if len(nodes) == len(members) else None
    pairs = job.case.pairs or combinations(range(len(members)), 2)
    links = {link_between(members[first], members[second], topologies) for first, second in pairs}
    return next(iter(links)) if len(links) == 1 else None


def link_between(first: RankGpu, second: RankGpu, topologies: Mapping[int, Topology]) -> str | None:
    """SELF, NET, or the cell of the topology table, also one that is unknown to `parse_topo`."""
    if first.node != second.node:
        return OTHER_NODE
    if first.is_same(second):
        return SAME_GPU
    links = topologies.get(first.node, Topology()).links
    row, column = f"GPU{first.index}", f"GPU{second.index}"
    link = links.get((row, column)) or links.get((column, row))
    return None if link == NOT_AVAILABLE else link


def collect(command: str = COMMAND, timeout_s: float = TIMEOUT_S) -> Facts:
    """The text of the table as `topology.nvidia_smi_topo_m`, or null and the cause in `topology.reason`."""
    text, reason = read_table(command, timeout_s)
    facts: Facts = {TABLE: text}
    return facts if reason is None else facts | {"topology.reason": reason}


def node_record(facts: Mapping[str, object]) -> dict[str, Any] | None:
    """The parsed table of a node's facts, for run.json; None if it has none."""
    text = facts.get(TABLE)
    return parse_topo(text).record() if isinstance(text, str) else None


def from_records(records: Sequence[Mapping[str, Any] | None]) -> dict[int, Topology]:
    """The topologies of `node_record`s, in the order of the nodes, by the number of the node."""
    known = {node: record for node, record in enumerate(records) if record is not None}
    return {
        node: Topology(**{**record, "links": {tuple(pair.split()): link for pair, link in record["links"].items()}})
        for node, record in known.items()
    }


def read_table(command: str = COMMAND, timeout_s: float = TIMEOUT_S) -> tuple[str | None, str | None]:
    """(table, None) or (None, why there is none)."""
    program = shutil.which(command)
    if program is None:
        return None, f"{command} is not installed"
    try:
        finished = run_command([program, "topo", "-m"], timeout_s)
    except OSError as error:
        return None, f"{command} failed: {one_line(str(error))}"
    if finished is None:
        return None, f"{command} did not answer within {timeout_s:g} s"
    message = first_line(finished.out) or first_line(finished.err) or "no message"
    if finished.status != 0:
        return None, f"{command} failed: {message}"
    # a table that parse_topo cannot read is kept all the same: a person can
    return (finished.out, None) if "GPU0" in finished.out else (None, f"{command} shows no GPU: {message}")


class _Header(NamedTuple):
    columns: list[str]
    extras: list[str]


class _Row(NamedTuple):
    name: str
    cells: list[str]
    extras: dict[str, str]


def parse_topo(text: str) -> Topology:
    """Read the table, with tabs or spaces between its cells; a text without one gives an empty Topology."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    headers = ((number, header) for number, line in enumerate(lines) if (header := _parse_header(line)))
    start, header = next(headers, (len(lines), _Header([], [])))
    rows = _parse_rows(lines[start + 1 :], header)
    links = {(row.name, column): cell for row in rows for column, cell in zip(header.columns, row.cells, strict=False)}

    def extra(name: str) -> dict[str, str]:
        values = {row.name: row.extras.get(name, "") for row in rows}
        return {device: value for device, value in values.items() if value not in ("", NOT_AVAILABLE)}

    def legend(pattern: re.Pattern[str]) -> dict[str, str]:
        return {match[1]: one_line(match[2]) for line in lines[start:] if (match := pattern.fullmatch(line))}

    unknown = [
        f"{row} {column}: unknown link {cell}" for (row, column), cell in links.items() if not _LINK.fullmatch(cell)
    ]
    width = len(header.columns)
    short = [f"{row.name}: {len(row.cells)} of {width} links" for row in rows if len(row.cells) < width]
    return Topology(
        devices=tuple(row.name for row in rows),
        links=links,
        cpu_affinity=extra(CPU_AFFINITY),
        numa_affinity=extra(NUMA_AFFINITY),
        gpu_numa_id=extra(GPU_NUMA_ID),
        legend=legend(_LEGEND),
        nic_legend=legend(_NIC_LEGEND),
        warnings=(*unknown, *short),
    )


def _parse_header(line: str) -> _Header | None:
    """The names of the columns; None unless the line holds only such names and begins with a GPU."""
    columns = _EXTRAS.split(line)[0].split()
    if not columns or not columns[0].startswith("GPU") or not all(map(_DEVICE.fullmatch, columns)):
        return None
    return _Header(columns, list(dict.fromkeys(_EXTRAS.findall(line))))


def _parse_rows(lines: Iterable[str], header: _Header) -> list[_Row]:
    """The rows up to the legend; the first of a repeated device counts."""
    rows: dict[str, _Row] = {}
    for line in lines:
        if line.strip().startswith(("Legend", "NIC Legend")):
            break
        if line.split() and _DEVICE.fullmatch(line.split()[0]):
            row = _parse_row(line, header)
            rows.setdefault(row.name, row)
    return list(rows.values())


def _parse_row(line: str, header: _Header) -> _Row:
    """By tabs if each device has its cell, so that an empty affinity stays empty, else by spaces."""
    width = 1 + len(header.columns)
    fields = [cell.strip() for cell in line.strip(" \r").split("\t")]
    if len(fields) >= width and all(fields[:width]) and not any(" " in cell for cell in fields):
        extras = fields[width:]
        # nvidia-smi writes two tabs before the GPU NUMA ID, because the title before it is so wide
        if GPU_NUMA_ID in header.extras and len(extras) > len(header.extras) and extras[2] == "":
            del extras[2]
        return _Row(fields[0], fields[1:width], dict(zip(header.extras, extras, strict=False)))
    words = line.split()
    cells: list[str] = []
    for word in words[1:width]:
        if _CPUS.fullmatch(word):  # the row is short: this is its affinity
            break
        cells.append(word)
    return _Row(words[0], cells, _spaced_extras(words[1 + len(cells) :], header.extras))


def _spaced_extras(words: list[str], names: list[str]) -> dict[str, str]:
    """Assign words to titles where spaces hide the empty ones; ambiguous words are left out."""
    if len(words) >= len(names):
        return dict(zip(names, words, strict=False))
    extras: dict[str, str] = {}
    if words and names[-1] == GPU_NUMA_ID and words[-1] == NOT_AVAILABLE:
        words, names, extras = words[:-1], names[:-1], {GPU_NUMA_ID: NOT_AVAILABLE}
    if len(words) == len(names) or (words and re.search("[-,]", words[0])):
        extras |= dict(zip(names, words, strict=False))
    return extras
