"""Faults as data: what breaks, in which world and phase, on which rank, and how the run must
end."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from commbench.runtime.printing import LAST_TEXT_S

OWN = ("gloo", "openmpi", "mpich", "tcp", "own torchrun")  # worlds that commbench starts
# started by hand: gloo, then mpi
GIVEN = ("torchrun", "mpirun openmpi", "mpirun openmpi 4", "mpirun mpich")
HOSTS = ("torchrun, 2 hosts", "openmpi, 2 hosts", "mpich, 2 hosts")
PHASES = (
    "starting",
    "opening",
    "preparing",
    "at the start",
    "in a call",
    "in a check",
    "between cases",
    "closing",
)
# no case has begun: nothing can be lost, and a fresh world would fail as well
EARLY = ("starting", "opening")
# the rank server, torchrun or mpirun
LAUNCHER = ("launcher SIGKILL", "launcher SIGTERM", "launcher SIGSTOP")
# commbench itself; the second one goes on after PAUSE_S
PARENT = ("parent SIGKILL", "parent SIGSTOP")
PAUSE_S = 4.0
RENAMED = "folder renamed"  # the run's, while it is measured
FULL_SHM = "/dev/shm full"
CAUSES = {  # what the line says of a process that has failed
    "kill": "SIGKILL",
    "segfault": "SIGSEGV",
    "stop": "is stopped",
    "exit 0": "status 0",
    "exit 1": "status 1",
    "raise": "planted",
    "hang": "no end (of .+ )?after",
    "hang with GIL": "no heartbeat",
    FULL_SHM: "SIGBUS",
    "launcher SIGKILL": "was killed by SIGKILL",
    "launcher SIGSTOP": "is stopped",
    # mpirun ends its ranks, and exits with 1
    "launcher SIGTERM": "was ended by SIGTERM|exited with status",
}
# what happens to the command's stdout: nobody may notice it in the results
FULL_STDOUT = "stdout full"
OUTPUT = (FULL_STDOUT, "stdout closed", "reader gone")
CTRL_S = "SIGTERM after Ctrl-S"
SIGNALS = {"SIGINT": 130, "Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129, CTRL_S: 143}
LATE_S = 3.0  # budget.late_s of the combinations that reach it
START_S = 10.0  # for what ranks wait 120 s for before their first heartbeat
DEATH_S = 20.0  # 10 s until the heartbeat is missed, and the end of the world
STOPPED_S = 10.0  # a parent sees the state of its ranks
SIGNAL_S = 3.0  # 1 s for a library call to return (runtime/signals.py), and the end of mpirun
FINISHED = 3  # cases before the one that breaks
KILLED_AND_RESTARTED = (("at the start", 0), ("in a call", 1), ("between cases", 1))


@dataclass(frozen=True)
class Combination:
    """`times`: in how many worlds the fault happens; `restarts`: budget.restarts of worlds that
    commbench starts."""

    fault: str
    phase: str
    rank: int
    world: str
    times: int = 1
    restarts: int = 2

    def __str__(self) -> str:
        more = f", {self.times} times" if self.times > 1 else ""
        more += ", no restart" if self.own and not self.restarts else ""
        return f"{self.fault} of rank {self.rank} {self.phase}, {self.world}{more}"

    @property
    def own(self) -> bool:
        return self.world in OWN

    @property
    def finished(self) -> int:
        """How many of the five cases have ended when it happens, without the one that is being
        recorded."""
        exceptions = {"closing": 5, "between cases": FINISHED - 1} | dict.fromkeys(EARLY, 0)
        return exceptions.get(self.phase, FINISHED)

    @property
    def waits(self) -> bool:
        """Whether only the deadline detects it."""
        return self.fault == "hang"

    @property
    def bound_s(self) -> float:
        """Seconds allowed from the fault until the world is gone."""
        if self.fault == CTRL_S:
            return SIGNAL_S + LAST_TEXT_S
        if self.fault in SIGNALS or self.fault == "parent SIGKILL":
            return SIGNAL_S
        if self.own and self.fault == "stop":
            return STOPPED_S
        if self.waits and self.phase == "starting":  # the other rank may still import
            return START_S + DEATH_S + STOPPED_S
        return LATE_S + 25.0 if self.waits else DEATH_S

    @property
    def statuses(self) -> tuple[int, ...]:
        """Correct exit statuses. A launcher that was started by hand replaces 3 by its own."""
        if self.fault in SIGNALS:
            return (SIGNALS[self.fault], -1) if self.fault == "SIGHUP" else (SIGNALS[self.fault],)
        if self.fault == "parent SIGKILL":
            return (-9,)
        if self.fault == FULL_STDOUT:
            return (3,) if self.own else (1, 3)
        if not self.ends_world:
            return (0,)
        if self.fault == RENAMED:
            return (3,)
        if self.phase == "closing":  # everything is measured, but the world broke
            return (0, 3)
        if not self.own:
            return tuple(range(1, 256))
        if self.phase in EARLY or self.times > self.restarts:
            return (3,)
        return (1,) if self.times > 1 else (0,)

    def library_leaves(self, left: str) -> bool:
        """Whether an MPI library left this, and nobody lives who could remove it: hydra kills all
        ranks at once when one dies, and so do launchers whose parent is killed."""
        nobody = (
            self.world == "mpirun mpich" and self.fault == "kill"
        ) or self.fault == "parent SIGKILL"
        return nobody and left.startswith(("/dev/shm/mpich_shm_", "/dev/shm/sm_segment."))

    @property
    def ends_world(self) -> bool:
        """Whether the world ends of it, at once or after some time."""
        return self.fault not in ("no memory", "parent SIGSTOP", *OUTPUT)

    @property
    def complete(self) -> bool:
        """Whether all other cases must be measured in the end."""
        fresh = self.statuses[0] in (0, 1) and self.own
        return fresh or self.fault in ("no memory", *OUTPUT)

    @property
    def silent(self) -> bool:
        """Whether nobody has failed, or nobody is left to say so."""
        quiet = ("no memory", RENAMED, *SIGNALS, *PARENT, *OUTPUT)
        return self.fault in quiet or self.phase == "closing"


def table() -> list[Combination]:
    """All combinations, each once."""
    own3 = ("gloo", "openmpi", "own torchrun")
    call, start, early = "in a call", "at the start", "starting"
    rows = [
        *_each("kill", PHASES, (0, 1), ("gloo",), 0, restarted=KILLED_AND_RESTARTED),
        *_each("kill", (call,), (0,), ("openmpi", "mpich", "tcp"), 0),
        *_each("kill", (call,), (1,), ("openmpi", "mpich", "tcp", "own torchrun")),
        *_each("kill", ("opening",), (1,), ("openmpi", "mpich")),
        *_each("kill", ("between cases",), (0,), ("openmpi", "mpich"), 0),
        *_each("kill", (call,), (0, 1), GIVEN),
        Combination("kill", call, 1, "gloo", times=2),
        Combination("kill", start, 0, "openmpi", times=2),
        *_each("stop", (call,), (1,), ("gloo", "mpich", "tcp", "own torchrun"), 0),
        *_each("stop", (call,), (1,), ("openmpi", "torchrun", "mpirun openmpi", "mpirun mpich")),
        *_each("stop", (call,), (0,), ("gloo", "openmpi", "mpich"), 0),
        *_each("stop", ("opening", "preparing", "closing"), (1,), ("gloo",), 0),
        *_each("stop", ("between cases",), (1,), ("gloo",)),
        *_each("stop", (early,), (1,), own3),
        *_each("segfault", (call,), (1,), ("gloo", "mpich"), 0),
        *_each("segfault", (start,), (0,), ("tcp",)),
        *_each("exit 0", (call,), (1,), ("gloo", "openmpi", "tcp"), 0),
        *_each("exit 0", (call,), (0,), ("gloo",), 0),
        *_each("exit 0", ("opening",), (1,), ("mpich",)),
        *_each("exit 0", (early,), (1,), own3),
        *_each("exit 1", (call,), (1,), ("mpich",), 0),
        *_each("exit 1", (call,), (0,), ("gloo",), 0),
        *_each("exit 1", (start,), (1,), ("openmpi",), 0),
        *_each("raise", (start,), (1,), ("gloo",)),
        *_each("raise", ("in a check",), (0,), ("gloo",), 0),
        *_each("hang", ("closing",), (1,), ("gloo", "openmpi"), 0),
        *_each("hang", (start,), (1,), ("gloo", "torchrun")),
        *_each("hang", (start,), (1,), ("openmpi",), 0),
        *_each("hang", (call,), (0,), ("gloo",), 0),
        *_each("hang", (call,), (1,), ("openmpi", "tcp"), 0),
        # a rank that never comes to where the ranks meet
        *_each("hang", (early,), (0,), ("torchrun",)),
        *_each("hang", (early,), (1,), ("mpirun openmpi", "mpirun openmpi 4", "mpirun mpich")),
        *_each("hang", (early,), (1,), ("openmpi",), 0),
        *_each("hang with GIL", (start,), (1,), ("gloo",), 0),
        *_each("hang with GIL", (call,), (1,), ("openmpi",), 0),
        *_each("hang with GIL", (call,), (0,), ("mpich",), 0),
        *_each("no memory", ("preparing",), (0, 1), ("gloo", "openmpi")),
        *_each("Ctrl-C", (call,), (0,), OWN),
        *_each("Ctrl-C", (call,), (1,), ("own torchrun",)),
        *_each("Ctrl-C", ("in a check",), (1,), ("mpich",)),
        *_each("SIGTERM", (call,), (0,), OWN),
        *_each("SIGTERM", (call,), (1,), ("own torchrun",)),
        *_each("SIGTERM", (start,), (0,), ("gloo",)),
        *_each("SIGINT", (call,), (0,), ("gloo",)),
        *_each("SIGHUP", (call,), (0,), own3),
        *_each(CTRL_S, (start,), (0,), ("gloo", "openmpi")),
        *_each("launcher SIGKILL", (call,), (0,), own3),
        *_each("launcher SIGTERM", (call,), (0,), own3, 0),
        *_each("launcher SIGSTOP", (call,), (0,), own3, 0),
        *_each("parent SIGKILL", (call,), (0,), ("gloo", "openmpi", "mpich")),
        *_each("parent SIGSTOP", (call,), (0,), ("gloo",)),
        *_each(FULL_SHM, (early,), (0,), ("mpich",)),
        *_each("link down", (call,), (1,), HOSTS),
        *_each(RENAMED, (start,), (0,), ("gloo", "openmpi")),
        *(
            combination
            for fault in OUTPUT
            for combination in _each(fault, (start,), (0,), ("gloo", "openmpi", "torchrun"))
        ),
    ]
    return list(dict.fromkeys(rows))


def _each(
    fault: str,
    phases: Iterable[str],
    ranks: Iterable[int],
    worlds: Iterable[str],
    restarts: int = 2,
    restarted: Container[tuple[str, int]] = (),
) -> Iterator[Combination]:
    """The fault in each phase, on each rank, in each world. `restarted` have two restarts."""
    for phase, rank, world in product(phases, ranks, worlds):
        allowed = 2 if (phase, rank) in restarted else restarts
        yield Combination(fault, phase, rank, world, restarts=allowed)


def quick() -> list[Combination]:
    """The combinations of the test suites: fast ones, in worlds of every kind of launcher."""
    return [
        Combination("kill", "in a call", 1, "gloo"),
        Combination("kill", "in a call", 0, "openmpi", restarts=0),
        Combination("segfault", "in a call", 1, "mpich", restarts=0),
        Combination("raise", "in a check", 0, "gloo", restarts=0),
        Combination("no memory", "preparing", 1, "openmpi"),
        Combination("kill", "in a call", 1, "torchrun"),
    ]
