"""How the GPUs and NICs of this machine are wired, in nvidia-smi's words, and a reader for that table."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from .sources import Facts, Finished, first_line, one_line, run_command

COMMAND = "nvidia-smi"
TIMEOUT_S = 10.0
NOT_AVAILABLE = "N/A"
CPU_AFFINITY, NUMA_AFFINITY, GPU_NUMA_ID = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # the header is underlined
_EXTRAS = re.compile(f"{CPU_AFFINITY}|{NUMA_AFFINITY}|{GPU_NUMA_ID}")
_DEVICE = re.compile(r"GPU[0-9]+|NIC[0-9]+|[a-z][a-z0-9_]*[0-9]")  # old drivers name a NIC: mlx5_0
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


class _Header(NamedTuple):
    columns: list[str]
    extras: list[str]


class _Row(NamedTuple):
    name: str
    cells: list[str]
    extras: dict[str, str]


def collect(command: str = COMMAND, timeout_s: float = TIMEOUT_S) -> Facts:
    """The raw table as `topology.nvidia_smi_topo_m`, or null there and the cause in `topology.reason`."""
    text, reason = read_table(command, timeout_s)
    facts: Facts = {"topology.nvidia_smi_topo_m": text}
    return facts if reason is None else facts | {"topology.reason": reason}


def record(facts: Mapping[str, object]) -> dict[str, object] | None:
    """The table of a node's facts as JSON, links as {"GPU0 GPU1": "NV18"}; None where there is none."""
    text = facts.get("topology.nvidia_smi_topo_m")
    if not isinstance(text, str):
        return None
    told = asdict(parse_topo(text))
    return {**told, "links": {" ".join(pair): link for pair, link in told["links"].items()}}


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
        return None, f"{command} gave no answer within {timeout_s:g} s"
    return _judge(command, finished)


def _judge(command: str, finished: Finished) -> tuple[str | None, str | None]:
    said = first_line(finished.out) or first_line(finished.err) or "it said nothing"
    if finished.status != 0:
        return None, f"{command} failed: {said}"
    # A table that we can't read is kept all the same: somebody else can.
    return (finished.out, None) if "GPU0" in finished.out else (None, f"{command} shows no GPU: {said}")


def parse_topo(text: str) -> Topology:
    """Read the table, with tabs or spaces between its cells; a text without one gives an empty Topology."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    found = ((number, header) for number, line in enumerate(lines) if (header := _header(line)))
    start, header = next(found, (len(lines), _Header([], [])))
    rows = _rows(lines[start + 1 :], header)
    pairs = [(row.name, column, cell) for row in rows for column, cell in zip(header.columns, row.cells, strict=False)]
    return Topology(
        devices=tuple(row.name for row in rows),
        links={(row, column): cell for row, column, cell in pairs},
        cpu_affinity=_extra(rows, CPU_AFFINITY),
        numa_affinity=_extra(rows, NUMA_AFFINITY),
        gpu_numa_id=_extra(rows, GPU_NUMA_ID),
        legend=_legend(lines[start:], _LEGEND),
        nic_legend=_legend(lines[start:], _NIC_LEGEND),
        warnings=tuple(_warnings(rows, header, pairs)),
    )


def _header(line: str) -> _Header | None:
    """The names of the columns, when the line holds nothing else and begins with a GPU."""
    extras = list(dict.fromkeys(_EXTRAS.findall(line)))
    columns = _EXTRAS.split(line)[0].split()
    if not columns or not columns[0].startswith("GPU") or not all(map(_DEVICE.fullmatch, columns)):
        return None
    return _Header(columns, extras)


def _rows(lines: Iterable[str], header: _Header) -> list[_Row]:
    """The rows up to the legend; of a repeated device the first."""
    rows: dict[str, _Row] = {}
    for line in lines:
        if line.strip().startswith(("Legend", "NIC Legend")):
            break
        if line.split() and _DEVICE.fullmatch(line.split()[0]):
            row = _row(line, header)
            rows.setdefault(row.name, row)
    return list(rows.values())


def _row(line: str, header: _Header) -> _Row:
    """By tabs when each device has its cell, so that an empty affinity stays empty; else by spaces."""
    width = 1 + len(header.columns)
    fields = [cell.strip() for cell in line.strip(" \r").split("\t")]
    if len(fields) >= width and all(fields[:width]) and not any(" " in cell for cell in fields):
        return _Row(fields[0], fields[1:width], _tabbed_extras(fields[width:], header.extras))
    words = line.split()
    cells: list[str] = []
    for word in words[1:width]:
        if _CPUS.fullmatch(word):  # the row is short: this is its affinity
            break
        cells.append(word)
    return _Row(words[0], cells, _spaced_extras(words[1 + len(cells) :], header.extras))


def _tabbed_extras(fields: list[str], names: list[str]) -> dict[str, str]:
    # nvidia-smi writes two tabs before the GPU NUMA ID, because the title before it is so wide.
    if GPU_NUMA_ID in names and len(fields) > len(names) and fields[2] == "":
        fields = fields[:2] + fields[3:]
    return dict(zip(names, fields, strict=False))


def _spaced_extras(words: list[str], names: list[str]) -> dict[str, str]:
    """Which words are which, when spaces hide the empty ones; what can't be told is left out."""
    if len(words) >= len(names):
        return dict(zip(names, words, strict=False))
    extras: dict[str, str] = {}
    if words and names[-1] == GPU_NUMA_ID and words[-1] == NOT_AVAILABLE:
        words, names, extras = words[:-1], names[:-1], {GPU_NUMA_ID: NOT_AVAILABLE}
    if len(words) == len(names) or (words and re.search("[-,]", words[0])):
        extras |= dict(zip(names, words, strict=False))
    return extras


def _extra(rows: Iterable[_Row], name: str) -> dict[str, str]:
    values = {row.name: row.extras.get(name, "") for row in rows}
    return {device: value for device, value in values.items() if value not in ("", NOT_AVAILABLE)}


def _legend(lines: Iterable[str], pattern: re.Pattern[str]) -> dict[str, str]:
    matches = [match for line in lines if (match := pattern.fullmatch(line))]
    return {match[1]: one_line(match[2]) for match in matches}


def _warnings(rows: Iterable[_Row], header: _Header, pairs: Iterable[tuple[str, str, str]]) -> list[str]:
    """Cells that no driver known to us writes, and rows that are too short."""
    unknown = [f"{row} {column}: unknown link {cell}" for row, column, cell in pairs if not _LINK.fullmatch(cell)]
    width = len(header.columns)
    short = [f"{row.name}: {len(row.cells)} of {width} links" for row in rows if len(row.cells) < width]
    return unknown + short
