"""Whether the world that a process's variables name is its own, and the line that says so.

Variables outlive the rank that they were exported to: a shell that srun, torchrun or another
launcher has started hands them to every command that is typed into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError
from commbench.core.launchers import launcher_named, launchers, rank_variables
from commbench.core.units import plural, word_list
from commbench.hardware.sources import MASKED
from commbench.runtime.rendezvous import exported_identity

SHELLS = ("sh", "ash", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh")
FLUX_RANK = "FLUX_TASK_RANK"
TORCHRUN_ID = "TORCHELASTIC_RUN_ID"
# the numbers of ranks whose launchers export nothing else that a rank could join a world by
UNREAD_RANKS = {
    "PMIX_RANK": "prterun",
    "PMI_ID": "mpirun_rsh",
    "MPIRUN_RANK": "mpirun_rsh",
    FLUX_RANK: "Flux",
    "PALS_RANKID": "PALS",
    "ALPS_APP_PE": "aprun",
    "JSM_NAMESPACE_RANK": "jsrun",
    "MPI_RANKID": "the mpirun of Platform MPI",
    "HOROVOD_RANK": "horovodrun",
}
# what torch.distributed.init_process_group("env://") reads
ENV_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ENV = "torchrun"  # its ranks meet in the same way


def env_identity(environ: Mapping[str, str]) -> RankIdentity | None:
    """The rank that torch's env:// would take this process for. Raises ConfigError."""
    if any(not environ.get(name) for name in ENV_VARIABLES):
        return None
    return exported_identity(ENV, environ, "RANK", "WORLD_SIZE", "LOCAL_RANK")


def refuse_unread_rank(environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a rank that knows its number only by one of UNREAD_RANKS: each rank
    would start a world of its own."""
    name = _unread_rank(environ)
    if name is not None and not _shell_with((name,), environ):
        programs = [program for launcher in launchers() for program in launcher.programs]
        raise ConfigError(
            f"{name}={environ[name]}: {UNREAD_RANKS[name]} has started this process as a rank, but"
            " exports no number of ranks that commbench reads; start the ranks with"
            f" {word_list(programs, 'or')}; to let commbench start its own: env -u {name}"
            " commbench ..."
        )


def _unread_rank(environ: Mapping[str, str]) -> str | None:
    return next((name for name in UNREAD_RANKS if name in environ), None)


def why_foreign(identity: RankIdentity, environ: Mapping[str, str]) -> str | None:
    """Why this process is no rank of the world that its variables name; None if it is."""
    foreign = launcher_named(identity.launcher).foreign(identity, environ)
    if foreign is not None:
        return foreign
    shell = _shell_with(identity.variables, environ)
    is_typed = any(name in environ for name in rank_variables().terminals)
    if shell is not None and (identity.size == 1 or is_typed):
        return f"they are of the shell that this command was typed into ({shell})"
    if identity.size == 1 and is_from_env(identity, environ):
        return "no launcher has started this process, and the world has no other rank"
    return None


def is_from_env(identity: RankIdentity, environ: Mapping[str, str]) -> bool:
    """Whether nothing but RANK and its companions says that there is a torchrun."""
    return identity.launcher == ENV and TORCHRUN_ID not in environ


def world_note(
    identity: RankIdentity | None, foreign: str | None, environ: Mapping[str, str]
) -> str | None:
    """The line about the world that was taken or left, None where there is nothing to doubt.

    `identity` is what the variables name, `foreign` why it was not taken.
    """
    if identity is None:
        return _left_over(environ)
    seen = ", ".join(f"{name}={environ.get(name)}" for name in identity.variables)
    if foreign is not None:
        return f"{seen} are ignored: {foreign}; commbench starts its own ranks"
    from_env = is_from_env(identity, environ)
    shell = _shell_with(identity.variables, environ)
    if identity.rank != 0 or not (from_env or identity.size == 1 or shell):
        return None
    by = identity.launcher
    if from_env:
        by = f"torch's env:// at {environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    others = f"; the other {identity.size - 1} must be started, too" if shell else ""
    own = f"env -u {identity.variables[0]} commbench ..."
    return (
        f"this is rank 0 of {plural(identity.size, 'rank', 'ranks')} of {by} ({seen}){others}; to"
        f" let commbench start ranks of its own: {own}"
    )


def _left_over(environ: Mapping[str, str]) -> str | None:
    """The line where variables name a rank, but no world: not where the ranks meet, or in a shell
    that a launcher has started."""
    unread = _unread_rank(environ)
    if unread is not None:
        return (
            f"{unread}={environ[unread]} is ignored: it is of the shell that this command was typed"
            " into; commbench starts its own ranks"
        )
    missing = [name for name in ENV_VARIABLES if not environ.get(name)]
    if not missing or "RANK" in missing or environ.get("WORLD_SIZE") == "1":
        return None
    seen = [f"{name}={environ[name]}" for name in ENV_VARIABLES[:2] if name not in missing]
    return (
        f"{', '.join(seen)} {'is' if len(seen) == 1 else 'are'} ignored without"
        f" {' and '.join(missing)}; commbench starts its own ranks"
    )


def _shell_with(variables: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The nearest interactive shell above this process that was started with the same values of
    these variables, in the same world."""
    names = (*variables, *rank_variables().worlds)
    mine = [environ.get(name) for name in names]
    ancestors: list[psutil.Process] = []
    with suppress(*MASKED):  # /proc may hide them
        ancestors = psutil.Process().parents()
    for process in ancestors:
        with suppress(*MASKED):  # it is gone, or another user's
            words = process.cmdline()
            if not _is_interactive(words):
                continue
            theirs = process.environ()
            if [theirs.get(name) for name in names] == mine:
                return f"{Path(words[0]).name}, pid {process.pid}"
    return None


def _is_interactive(words: list[str]) -> bool:
    """Whether a command line is that of a shell without a script."""
    if not words or Path(words[0]).name.lstrip("-") not in SHELLS:
        return False
    short = "".join(word[1:] for word in words[1:] if word[:1] == "-" and word[:2] != "--")
    if "i" in short:
        return True
    return "c" not in short and all(word[:1] == "-" for word in words[1:])
