"""What somebody has set in an MPI library and in UCX below it, as the library itself reads it, and
what of that has no effect: an unknown name, or one of a transport that is not used.

Sources: ompi_info --parsable --all (Open MPI), the names in the file of the library (MPICH,
MVAPICH), its warnings (UCX). A program is started: not to be called before the measurements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from commbench.core.secrets import MASK, is_secret, mask
from commbench.core.suggestions import did_you_mean

from .mpi_library import MpiLibrary, open_mpi_parameters
from .sources import NoReading, fact_text, read_text

OPEN_MPI_PREFIX = "OMPI_MCA_"
MPICH_NAME = re.compile(rb"(?:MPIR_CVAR|MPIR_PARAM|MPICH|MV2|MVP)_[A-Z0-9_]+")
ENVIRONMENT = "environment"
DEFAULT = "default"
DOUBLE_CHECKED = ("btl_tcp_links",)  # recorded with its default, too, where messages take TCP
# variables that launchers export to their ranks (also Open MPI 4 to ranks of Open MPI 5), and those
# of launchers (PRRTE's frameworks)
OF_LAUNCHERS = re.compile(
    "(?:orte|prte|pmix|ess|plm|ras|rmaps|odls|oob|routed|rml|grpcomm|iof|errmgr|state|schizo|filem"
    "|hwloc)(?:_.*)?|cpu_type|initial_wdir|num_procs|shmem_RUNTIME_QUERY_hint|mpi_oversubscribe"
    "|PREFIXES"
)
_COMPONENT = re.compile(r"(btl|mtl)_([a-z0-9]+)_\w+")
PMLS = {"btl": "ob1", "mtl": "cm"}  # that take them
PARAMETER_FILES = "mca_base_param_files"
COMMON = ("base", "self")  # no transports of their own


@dataclass(frozen=True)
class Setting:
    """`source` is `environment`, `file PATH:LINE` or `default`; `problem`: why it has no
    effect."""

    name: str
    value: str
    source: str
    problem: str | None = None

    def record(self) -> dict[str, str]:
        """As in run.json, without credentials."""
        known = {key: text for key, text in asdict(self).items() if text is not None}
        return known | {"value": MASK if is_secret(self.name) else mask(fact_text(self.value))}


def problem_texts(records: Iterable[Mapping[str, str]]) -> list[str]:
    """`btl_tcp_link=3 (environment): Open MPI does not know it` of each that has no effect."""
    return [
        f"{each['name']}={each['value']} ({each['source']}): {each['problem']}"
        for each in records
        if "problem" in each
    ]


def effect_text(records: Iterable[Mapping[str, str]]) -> str:
    """`in effect: btl_tcp_links=36 (environment)`, by source; `btl_tcp_links=1 or 36` of several
    runs; empty where nothing has an effect."""
    values: dict[str, dict[str, set[str]]] = {}  # by source and name
    for each in records:
        if "problem" not in each:
            named = values.setdefault(each["source"], {})
            named.setdefault(each["name"], set()).add(each["value"])
    texts = []
    for source, named in values.items():
        settings = (f"{name}={' or '.join(sorted(own))}" for name, own in sorted(named.items()))
        texts.append(f"{' '.join(settings)} ({source})")
    return f"in effect: {'; '.join(texts)}" if texts else ""


def settings_of(library: MpiLibrary, environ: Mapping[str, str]) -> list[Setting]:
    """The settings of an MPI library and of UCX in this environment; unknown names last."""
    own = _open_mpis(library, environ) if library.kind == "openmpi" else _mpichs(library, environ)
    ucx = [Setting(name, environ[name], ENVIRONMENT) for name in environ if name.startswith("UCX_")]
    return sorted([*own, *ucx], key=lambda each: each.problem is not None)


def judged(
    settings: Iterable[Setting],
    used: Sequence[str],
    unknown_to_ucx: Container[str],
    exported: Container[str],
) -> Iterator[Setting]:
    """With the problem of each in a world whose messages take the transports `used` (ob1/sm), if
    these are known. What commbench has `exported` is for several libraries, so it has none."""
    for each in settings:
        transport = _transport_of(each.name)
        is_used = transport is None or any(map(transport.fullmatch, used))
        problem = each.problem
        if each.name in exported or f"{OPEN_MPI_PREFIX}{each.name}" in exported:
            problem = None
        elif each.name in unknown_to_ucx:
            problem = "UCX does not know it"
        elif used and not is_used:
            problem = problem or f"messages take {' and '.join(used)}"
        if each.source != DEFAULT or problem is None:
            yield replace(each, problem=problem)


def _transport_of(name: str) -> re.Pattern[str] | None:
    """What the name of a used transport must match for this setting to have an effect; None for a
    setting that belongs to no transport."""
    if name.startswith("UCX_"):
        return re.compile("ucx.*|ch4:ucx")
    match = _COMPONENT.fullmatch(name)
    if match is None or match[2] in COMMON:
        return None
    return re.compile(rf"{PMLS[match[1]]}/(?:.*\+)?{match[2]}(?:\+.*)?")


def _open_mpis(library: MpiLibrary, environ: Mapping[str, str]) -> list[Setting]:
    """MCA parameters that do not have their default or are DOUBLE_CHECKED, and those of the
    environment and of parameter files that ompi_info does not name as set."""
    parameters = dict[str, dict[str, str]]()
    with suppress(NoReading):  # ompi_info may be missing
        parameters = open_mpi_parameters(library, environ)
    known = [
        Setting(name, own.get("value", ""), re.sub(r"[()]", "", own["source"]))
        for name, own in parameters.items()
        if own.get("source", DEFAULT) != DEFAULT or name in DOUBLE_CHECKED
    ]
    asked = [
        Setting(name.removeprefix(OPEN_MPI_PREFIX), environ[name], ENVIRONMENT)
        for name in environ
        if name.startswith(OPEN_MPI_PREFIX)
    ]
    for file in parameters.get(PARAMETER_FILES, {}).get("value", "").split(","):
        for number, line in enumerate(read_text(Path(file)).splitlines() if file else (), start=1):
            name, sign, value = map(str.strip, line.partition("="))
            if sign and not name.startswith("#"):
                asked.append(Setting(name, value, f"file {file}:{number}"))
    set_names = {each.name for each in known}
    others = [
        each
        if each.name in parameters
        else replace(each, problem=_unknown("Open MPI", each.name, parameters))
        for each in asked
        if each.name not in set_names
    ]
    told = [*known, *others] if parameters else asked
    return [each for each in told if not OF_LAUNCHERS.fullmatch(each.name)]


def _mpichs(library: MpiLibrary, environ: Mapping[str, str]) -> list[Setting]:
    """Control variables: the library has the names of all that it reads in its file."""
    asked = [name for name in environ if MPICH_NAME.fullmatch(name.encode(errors="replace"))]
    names = set[str]()
    if asked:
        with suppress(OSError):
            content = Path(library.path).read_bytes()
            names = {name.decode() for name in MPICH_NAME.findall(content)}
    return [
        Setting(name, environ[name], ENVIRONMENT, _unknown("MPICH", name, names or asked))
        for name in asked
    ]


def _unknown(library: str, name: str, known: Collection[str]) -> str | None:
    """The problem of a name that the library does not know; None for another one."""
    if name in known:
        return None
    meant = did_you_mean(name, known).strip()
    return f"{library} does not know it{f'; {meant}' if meant else ''}"
