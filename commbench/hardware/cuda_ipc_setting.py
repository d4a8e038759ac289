"""The setting `cuda_ipc` in each library's own words, and whether such a word can have had an effect.

NCCL: user guide, environment variables. Open MPI: btl_smcuda_component.c. UCX: docs/source/faq.md ("^" denies a list).
MPICH has no switch: its IPC takes messages from a threshold on, and smaller ones whose buffer is sent again
(src/mpid/ch4/shm/ipc; a maintainer's advice in pmodels/mpich#7302). MVAPICH: MVAPICH2-GDR's user guide, this one only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from commbench.core.errors import ConfigError

ASKED = ("auto", "on", "off")
NCCL, OPEN_MPI, UCX, MPICH, MVAPICH = "NCCL", "Open MPI", "UCX", "MPICH", "MVAPICH"
SMCUDA = "OMPI_MCA_btl_smcuda_use_cuda_ipc"
THRESHOLD, REPEATED = "MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD", "MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR"
NEVER = 2**31 - 1  # bytes; the threshold is a C int, so messages from 2 GiB on are beyond it
# UCX takes all transports by default, and a list given to switch one on would switch the others off
WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    NCCL: {"on": {"NCCL_P2P_DISABLE": "0"}, "off": {"NCCL_P2P_DISABLE": "1"}},
    OPEN_MPI: {"on": {SMCUDA: "1"}, "off": {SMCUDA: "0"}},
    UCX: {"on": {}, "off": {"UCX_TLS": "^cuda_ipc"}},
    MPICH: {"on": {}, "off": {THRESHOLD: str(NEVER), REPEATED: "0"}},
    MVAPICH: {"on": {"MV2_CUDA_IPC": "1"}, "off": {"MV2_CUDA_IPC": "0"}},
}
NO, YES = ("0", "false", "no", "off", "n"), ("1", "true", "yes", "on", "y")


def translated(asked: str, libraries: Iterable[str]) -> dict[str, str]:
    """The variables to export before these libraries start; none for auto. Raises ConfigError for unknown words."""
    _check(asked, ASKED, "cuda_ipc")
    exports: dict[str, str] = {}
    for library in libraries:
        _check(library, tuple(WORDS), "the library of cuda_ipc")
        exports |= WORDS[library].get(asked, {})
    return exports


def without_effect(asked: str, library: str, environment: Mapping[str, str]) -> str | None:
    """In words why the library can't have done what was asked, with this environment; None where it may have.

    Raises ConfigError for unknown words. What it did in fact, only its log and the counters of the links tell.
    """
    _check(asked, ASKED, "cuda_ipc")
    _check(library, tuple(WORDS), "the library of cuda_ipc")
    reason = None if asked == "auto" else REASONS[library](asked, environment)
    return None if reason is None else f"cuda_ipc={asked} had no effect on {library}: {reason}"


def _check(word: str, allowed: tuple[str, ...], name: str) -> None:
    if word not in allowed:
        raise ConfigError(f"{name}={word} is unknown; allowed: {', '.join(allowed)}")


def _nccl(asked: str, environment: Mapping[str, str]) -> str | None:
    disabled, level = environment.get("NCCL_P2P_DISABLE"), environment.get("NCCL_P2P_LEVEL", "").upper()
    if asked == "off":
        return None if disabled == "1" or level in ("LOC", "0") else f"NCCL_P2P_DISABLE is {_said(disabled)}"
    if disabled == "1":
        return "NCCL_P2P_DISABLE=1 forbids all transfers between GPUs"
    return f"NCCL_P2P_LEVEL={level} forbids all transfers between GPUs" if level in ("LOC", "0") else None


def _open_mpi(asked: str, environment: Mapping[str, str]) -> str | None:
    """ob1 carries messages through btl smcuda; the PMLs ucx and cm do it themselves and never read its switches."""
    pml = environment.get("OMPI_MCA_pml", "")
    if pml and not admitted(pml, ("ob1",)):
        carrier = f"OMPI_MCA_pml={pml} carries the messages, and btl smcuda's switch is one of ob1"
        by_ucx = admitted(pml, ("ucx",)) and _ucx(asked, environment) is None
        return None if by_ucx else carrier
    without = not admitted(environment.get("OMPI_MCA_btl", ""), ("smcuda",))
    if without:
        return None if asked == "off" else f"OMPI_MCA_btl={environment['OMPI_MCA_btl']} leaves smcuda out"
    value = environment.get(SMCUDA)
    wrong = (value or "1").lower() not in NO if asked == "off" else (value or "1").lower() in NO
    return f"{SMCUDA} is {_said(value)}" if wrong else None


def _ucx(asked: str, environment: Mapping[str, str]) -> str | None:
    pml, transports = environment.get("OMPI_MCA_pml", ""), environment.get("UCX_TLS", "")
    if pml and not admitted(pml, ("ucx",)):
        return f"OMPI_MCA_pml={pml} carries the messages, not UCX"
    allowed = admitted(transports, ("cuda_ipc", "cuda", "all"))
    if allowed == (asked == "on"):
        return None
    return f"UCX_TLS is {_said(transports or None)}, which {'admits' if allowed else 'leaves out'} cuda_ipc"


def _mpich(asked: str, environment: Mapping[str, str]) -> str | None:
    if asked == "on":
        forbids = {"MPIR_CVAR_ENABLE_GPU": NO, "MPIR_CVAR_NOLOCAL": YES}
        said = [f"{name}={environment[name]}" for name, words in forbids.items() if _is(environment.get(name), words)]
        return f"{said[0]} forbids it" if said else None
    threshold, repeated = environment.get(THRESHOLD), environment.get(REPEATED)
    if threshold is None or not _is(repeated, NO):
        return f"{THRESHOLD} is {_said(threshold)} and {REPEATED} is {_said(repeated)}"
    return None


def _mvapich(asked: str, environment: Mapping[str, str]) -> str | None:
    if asked == "on" and not _is(environment.get("MV2_USE_CUDA"), YES):
        return f"MV2_USE_CUDA is {_said(environment.get('MV2_USE_CUDA'))}, so it takes no memory of a GPU"
    value = environment.get("MV2_CUDA_IPC")
    wrong = not _is(value, NO) if asked == "off" else _is(value, NO)
    return f"MV2_CUDA_IPC is {_said(value)}" if wrong else None


REASONS: Mapping[str, Callable[[str, Mapping[str, str]], str | None]] = {
    NCCL: _nccl,
    OPEN_MPI: _open_mpi,
    UCX: _ucx,
    MPICH: _mpich,
    MVAPICH: _mvapich,
}


def admitted(chosen: str, names: Iterable[str]) -> bool:
    """Whether a list as MCA and UCX write it, `a,b` or `^a,b` for all others, admits one of the names; empty does."""
    listed = {word.strip() for word in chosen.removeprefix("^").split(",") if word.strip()}
    if not listed:
        return True
    return listed.isdisjoint(names) if chosen.startswith("^") else not listed.isdisjoint(names)


def _is(value: str | None, words: tuple[str, ...]) -> bool:
    return value is not None and value.strip().lower() in words


def _said(value: str | None) -> str:
    return "not set" if value is None else value
