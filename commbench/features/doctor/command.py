"""What would run here, and what is missing, without starting anything and without torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from typing import Any

from commbench.cli.listings import backends
from commbench.cli.options import CommandParser
from commbench.config.compose import ConfigComposer
from commbench.core.errors import ConfigError
from commbench.core.extras import how_to_install, is_installed
from commbench.core.protocols import Backend
from commbench.core.terminal import Terminal, first_line, paragraphs, printable
from commbench.core.units import format_bytes, natural_key, plural
from commbench.hardware import machine_facts, mpi_library, resource_limits
from commbench.hardware.library_settings import problem_texts, settings_of
from commbench.hardware.sources import fact_text, run_command
from commbench.hardware.topology import matrix_text
from commbench.hardware.torch_install import other_torch_text
from commbench.results.columns import grouped
from commbench.results.network_cards import facts_by_device, interfaces_of, ports_of

ENGINE_CODE = "from commbench.engines import native; print(native.cache_problem or '')"
ENGINE_TIMEOUT_S = 60.0
PEER_FACTS = ("access", "native_atomics", "performance_rank")
MOST_PAIRS = 8  # that a line names
NCCL_FACTS = (
    *("versions.nccl_wheel", "versions.nccl_system"),
    *("versions.torch_cuda", "versions.torch_hip"),  # a torch for GPUs may contain its own
)


def doctor(words: list[str]) -> int:
    """`commbench doctor`: print what this machine has and which backends can run; returns 0."""
    parser = CommandParser(
        prog="commbench doctor",
        description="What this machine has, and which backends can run. Nothing is started.",
    )
    parser.add_argument("--json", action="store_true", help="all facts, for other programs")
    parser.add_argument("--config-dir", help="a folder with more YAML, e.g. DIR/backend/mine.yaml")
    options = parser.parse_args(words)
    with ThreadPoolExecutor(1) as pool:
        engine_problem = pool.submit(native_engine_problem)
        facts = machine_facts.collect()
    notes = [*folder_problems(), engine_problem.result()]
    notes += [str(facts[key]) for key in sorted(facts) if key.endswith(".error")]
    notes += _settings_without_effect()
    other = facts.get("versions.torch_of_system")
    notes += [] if other is None else [other_torch_text(other)]
    with ConfigComposer(options.config_dir) as composer:
        built = backends(composer)
    problems = {name: _problem_of(backend) for name, backend in built.items()}
    notes += _remarks(backend for name, backend in built.items() if problems[name] is None)
    if options.json:
        record = {"facts": facts, "backends": problems, "notes": list(filter(None, notes))}
        print(json.dumps(record, indent=1, default=str))
    else:
        print(machine_text(facts, list(filter(None, notes)), problems))
    return 0


def machine_text(
    facts: Mapping[str, Any], notes: Sequence[str], problems: Mapping[str, str | None]
) -> str:
    """The facts that people of clusters look for first, a line each; `problems`: why a backend
    can't run."""
    sections = {
        "machine": _host_lines(facts) + [("note", note) for note in notes],
        "network": _network_lines(facts),
        "libraries": [
            *_mpi_lines(),
            *([] if any(key in facts for key in NCCL_FACTS) else [("NCCL", "none found")]),
            *(
                (key.removeprefix("versions."), str(facts[key]))
                for key in sorted(facts)
                if key.startswith("versions.")
            ),
        ],
        "GPU": _gpu_lines(facts),
        "backends": [(name, reason or "can run here") for name, reason in problems.items()],
    }
    terminal = Terminal.of(sys.stdout)
    texts = {}
    for title, section in sections.items():
        lines = [title, *(f"  {name:<24} {text}" for name, text in section)]
        texts[title] = paragraphs(lines, terminal, " " * len(f"  {'':<24} "))
    if (matrix := matrix_text(facts)) is not None:
        texts["GPU"] += "\n" + indent(printable(matrix), "  ")
    return "\n".join(texts.values())


def _host_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = {
        "host.hostname": "host",
        "host.cpu_model": "CPU",
        "host.kernel": "kernel",
        "limits.cpu_cores": "cores",
        "host.cpu_affinity": "cores of this process",
    }
    lines = [(name, str(facts[key])) for key, name in names.items() if key in facts]
    nodes = {
        int(match[1]): cpus
        for key, cpus in facts.items()
        if (match := re.fullmatch(r"host\.numa_node(\d+)_cpus", key))
    }
    lines += [("NUMA nodes", "; ".join(f"{node}: cores {nodes[node]}" for node in sorted(nodes)))]
    available = resource_limits.allocatable_bytes()
    lines += [
        ("memory available", "unknown" if available is None else f"{available / 2**30:.1f} GiB")
    ]
    shm_bytes = facts.get("limits.shm_total_bytes")
    size = "no /dev/shm" if shm_bytes is None else f"{shm_bytes / 2**30:.1f} GiB in /dev/shm"
    lines += [("shared memory", resource_limits.small_shm(facts) or size)]
    memlock = facts.get("host.ulimit_memlock_bytes")
    locked = format_bytes(memlock) if isinstance(memlock, int) else str(memlock)
    files = facts.get("host.ulimit_nofile")
    return [*lines, ("limits", f"locked memory {locked}, open files {files}")]


def _network_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A line for each interface but loopback, the fastest first, and for each port of an RDMA
    device."""
    lines = []
    by_name = sorted(interfaces_of(facts).items(), key=lambda item: natural_key(item[0]))
    for name, own in sorted(by_name, key=lambda item: -(item[1].get("speed_mbit_per_s") or 0)):
        if name == "lo":
            continue
        rate = own.get("speed_mbit_per_s")
        texts = [
            own.get("state"),
            "rate unknown" if rate is None else f"{rate / 1000:g} Gb/s",
            f"MTU {own.get('mtu_bytes')}",
            own.get("ipv4") or own.get("ipv6"),
            own.get("driver"),
            _numa_text(own),
        ]
        lines.append((name, ", ".join(str(text) for text in texts if text)))
    lines = lines or [("none", "no interface but loopback")]
    ports = ports_of(facts)
    for name, own in sorted(ports.items(), key=lambda item: natural_key(item[0])):
        rate = own.get("rate_gbit_per_s")
        texts = [
            own.get("state"),
            "rate unknown" if rate is None else f"{rate:g} Gb/s",
            own.get("link_layer"),
            _numa_text(own),
        ]
        lines.append((name, f"RDMA, {', '.join(str(text) for text in texts if text)}"))
    return lines if ports else [*lines, ("RDMA devices", "none")]


def _numa_text(own: Mapping[str, Any]) -> str | None:
    node = own.get("numa_node")
    return None if node is None else f"NUMA node {node}"


def _mpi_lines() -> list[tuple[str, str]]:
    """The MPI library that backend=mpi takes, the launcher that belongs to it, and the mpirun on
    PATH where that is another one."""
    try:
        library = mpi_library.find("auto")
        if library is None:
            return [("MPI library", "none found")]
        own = library.launcher()
    except ConfigError as error:
        return [("MPI library", str(error))]
    lines = [("MPI library", f"{library.kind}, {library.path}"), ("its launcher", own)]
    on_path = shutil.which("mpirun")
    if on_path is not None and Path(on_path).resolve() != Path(own).resolve():
        lines.append(("mpirun on PATH", f"{on_path} {_launcher_note(library, on_path)}"))
    return lines


def _settings_without_effect() -> list[str]:
    """The variables here that the MPI library does not know."""
    with suppress(ConfigError):  # _mpi_lines names it
        if (library := mpi_library.find("auto")) is not None:
            return problem_texts(each.record() for each in settings_of(library, os.environ))
    return []


def _launcher_note(library: mpi_library.MpiLibrary, on_path: str) -> str:
    """Whether an mpirun belongs to the library; by what it says of itself."""
    done = run_command([on_path, "--version"], ENGINE_TIMEOUT_S)
    text = "" if done is None else done.stdout + done.stderr
    is_open_mpi = "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text
    if is_open_mpi == (library.kind == "openmpi"):
        return "(the same library)"
    other = "openmpi" if is_open_mpi else "mpich"
    return f"starts ranks of {other}: with it, set backend.library={other}"


def _gpu_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if "gpu.count" in facts:
        newest = facts.get("gpu.cuda_driver_version")
        cuda = "" if newest is None else f", CUDA {newest} at most"
        version = facts.get("gpu.driver_version", "of unknown version")
        lines.append(("driver", f"{version}{cuda}, {facts['gpu.count']} GPU(s)"))
    if "gpu.reason" in facts:
        lines.append(("not known", str(facts["gpu.reason"])))
    matrix = ["the matrix below"] if matrix_text(facts) else []
    reason = [str(facts["topology.reason"])] if "topology.reason" in facts else []
    topology = "; ".join([*matrix, *reason]) or "unknown"
    return [*lines, *_peer_lines(facts), ("topology", topology)]


def _peer_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What CUDA's sample topologyQuery prints, a line for the pairs that are alike."""
    pairs = facts_by_device(facts, "peer.")
    alike = grouped(
        (pair for pair in pairs if "-" in pair),
        lambda pair: tuple(pairs[pair].get(name) for name in PEER_FACTS),
    )
    lines = []
    for (access, atomics, rank), own in alike.items():
        names = ", ".join(own[:MOST_PAIRS]) + (", ..." if len(own) > MOST_PAIRS else "")
        text = f"access {access}, native atomics {atomics}, performance rank {rank}: {names}"
        lines.append((plural(len(own), "pair of GPUs", "pairs of GPUs"), text))
    return lines


def _remarks(usable: Iterable[Backend | ConfigError]) -> list[str]:
    """What the backends say of their libraries on GPUs."""
    remarks = [
        (backend.name, backend.remark("cuda"))
        for backend in usable
        if not isinstance(backend, ConfigError)
    ]
    return [f"backend={name} device=cuda: {text}" for name, text in remarks if text]


def _problem_of(backend: Backend | ConfigError) -> str | None:
    """Why a backend can't run here; None if it can."""
    if isinstance(backend, ConfigError):
        return str(backend)
    try:
        return backend.missing(backend.devices[0])
    except ConfigError as error:
        return str(error)
    except Exception as error:  # one library that fails must not hide the others
        return f"{type(error).__name__}: {first_line(error)}"


def native_engine_problem() -> str | None:
    """One line if engine=native can't run or is compiled at each start. A process of its own asks:
    numba takes 0.4 s to import, and no other command of this kind needs it."""
    if not is_installed("numba"):
        return f"engine=native: {how_to_install('numba')}"
    done = run_command([sys.executable, "-c", ENGINE_CODE], ENGINE_TIMEOUT_S)
    if done is None:
        return f"engine=native did not load within {ENGINE_TIMEOUT_S:g} s"
    if done.returncode != 0:
        error = done.stderr.strip().rpartition("\n")[2]
        return f"engine=native can't be loaded, use engine=python: {fact_text(error)}"
    return fact_text(done.stdout) or None


def folder_problems() -> list[str]:
    """A line for each problem with the working directory and its results that would show up only
    later."""
    lines = []
    if any(Path(name).exists() for name in ("commbench.py", "torch.py", "mpi4py.py")):
        lines.append(
            "rename commbench.py, torch.py, mpi4py.py in this folder: `python -m`, `torchrun -m`"
            " import them"
        )
    results = Path("results")
    if results.is_dir() and not os.access(results, os.W_OK):
        try:
            owner = results.owner()
        except KeyError:  # no passwd entry, as in a container
            owner = f"user {results.stat().st_uid}"
        lines.append(
            f"{results.absolute()} belongs to {owner}: choose another folder with output=DIR"
        )
    return lines
