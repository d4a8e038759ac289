"""Faults as data: what breaks, in which world and phase, on which rank, and how the run must
end."""

from __future__ import annotations

from collections.abc import Iterator
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
            return (4,) if self.own else (1, 4)
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


def table() -> Iterator[Combination]:
    """All combinations, without duplicates."""
    seen = set()
    for combination in (
        *_deaths(),
        *_hangs(),
        *_memory(),
        *_signals(),
        *_launchers(),
        *_given(),
        *_links(),
        *_starts(),
        *_folders(),
        *_output(),
    ):
        if combination not in seen:
            seen.add(combination)
            yield combination


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


def _deaths() -> Iterator[Combination]:
    for phase, rank in product(PHASES, (0, 1)):
        restarted = (phase, rank) in (("at the start", 0), ("in a call", 1), ("between cases", 1))
        yield Combination("kill", phase, rank, "gloo", restarts=2 if restarted else 0)
    for world in ("openmpi", "mpich", "tcp"):
        yield Combination("kill", "in a call", 0, world, restarts=0)
        yield Combination("kill", "in a call", 1, world)
    for world in ("openmpi", "mpich"):
        yield Combination("kill", "opening", 1, world)
        yield Combination("kill", "between cases", 0, world, restarts=0)
    for world in OWN:
        yield Combination("stop", "in a call", 1, world, restarts=2 if world == "openmpi" else 0)
    for fault, worlds in (
        ("segfault", ("gloo", "mpich")),
        ("exit 0", ("gloo", "openmpi", "tcp")),
        ("exit 1", ("mpich",)),
    ):
        for world in worlds:
            yield Combination(fault, "in a call", 1, world, restarts=0)
    for fault in ("stop", "exit 0", "exit 1"):
        yield Combination(fault, "in a call", 0, "gloo", restarts=0)
    for phase in ("opening", "preparing", "closing"):
        yield Combination("stop", phase, 1, "gloo", restarts=0)
    yield Combination("stop", "between cases", 1, "gloo")
    yield Combination("stop", "in a call", 0, "openmpi", restarts=0)
    yield Combination("stop", "in a call", 0, "mpich", restarts=0)
    yield Combination("segfault", "at the start", 0, "tcp")
    yield Combination("exit 1", "at the start", 1, "openmpi", restarts=0)
    yield Combination("exit 0", "opening", 1, "mpich")
    yield Combination("kill", "in a call", 1, "gloo", times=2)
    yield Combination("kill", "at the start", 0, "openmpi", times=2)


def _hangs() -> Iterator[Combination]:
    for world in ("gloo", "openmpi"):
        yield Combination("hang", "closing", 1, world, restarts=0)
    yield Combination("hang", "at the start", 1, "gloo")
    yield Combination("hang", "at the start", 1, "openmpi", restarts=0)
    yield Combination("hang", "in a call", 0, "gloo", restarts=0)
    yield Combination("hang", "in a call", 1, "openmpi", restarts=0)
    yield Combination("hang", "in a call", 1, "tcp", restarts=0)
    yield Combination("hang with GIL", "at the start", 1, "gloo", restarts=0)
    yield Combination("hang with GIL", "in a call", 1, "openmpi", restarts=0)
    yield Combination("hang with GIL", "in a call", 0, "mpich", restarts=0)
    yield Combination("raise", "at the start", 1, "gloo")
    yield Combination("raise", "in a check", 0, "gloo", restarts=0)


def _memory() -> Iterator[Combination]:
    for world, rank in product(("gloo", "openmpi"), (0, 1)):
        yield Combination("no memory", "preparing", rank, world)


def _signals() -> Iterator[Combination]:
    for fault, world in product(("Ctrl-C", "SIGTERM"), OWN):
        yield Combination(fault, "in a call", 0, world)
    yield Combination("SIGINT", "in a call", 0, "gloo")
    for world in ("gloo", "openmpi"):
        yield Combination("SIGHUP", "in a call", 0, world)
    yield Combination("SIGTERM", "at the start", 0, "gloo")
    yield Combination("Ctrl-C", "in a check", 1, "mpich")


def _launchers() -> Iterator[Combination]:
    """Faults of the processes between the terminal and the ranks, and of what ranks do before they
    meet."""
    for fault, world in product(LAUNCHER, ("gloo", "openmpi", "own torchrun")):
        yield Combination(
            fault, "in a call", 0, world, restarts=2 if fault == "launcher SIGKILL" else 0
        )
    for world in ("gloo", "openmpi", "mpich"):
        yield Combination("parent SIGKILL", "in a call", 0, world)
    yield Combination("parent SIGSTOP", "in a call", 0, "gloo")
    for fault, world in product(("Ctrl-C", "SIGTERM", "kill"), ("own torchrun",)):
        yield Combination(fault, "in a call", 1, world)
    yield Combination("SIGHUP", "in a call", 0, "own torchrun")
    for world in ("gloo", "openmpi", "own torchrun"):
        yield Combination("stop", "starting", 1, world)
        yield Combination("exit 0", "starting", 1, world)
    yield Combination(FULL_SHM, "starting", 0, "mpich")


def _given() -> Iterator[Combination]:
    for world, rank in product(GIVEN, (0, 1)):
        yield Combination("kill", "in a call", rank, world)
    for world in ("torchrun", "mpirun openmpi", "mpirun mpich"):
        yield Combination("stop", "in a call", 1, world)
    yield Combination("hang", "at the start", 1, "torchrun")


def _starts() -> Iterator[Combination]:
    """A rank that never comes to where the ranks meet."""
    yield Combination("hang", "starting", 0, "torchrun")
    for world in ("mpirun openmpi", "mpirun openmpi 4", "mpirun mpich"):
        yield Combination("hang", "starting", 1, world)
    yield Combination("hang", "starting", 1, "openmpi", restarts=0)


def _links() -> Iterator[Combination]:
    for world in HOSTS:
        yield Combination("link down", "in a call", 1, world)


def _folders() -> Iterator[Combination]:
    for world in ("gloo", "openmpi"):
        yield Combination(RENAMED, "at the start", 0, world)


def _output() -> Iterator[Combination]:
    """Text that can't be written, that nobody reads, or that a stopped terminal does not take."""
    for fault, world in product(OUTPUT, ("gloo", "openmpi", "torchrun")):
        yield Combination(fault, "at the start", 0, world)
    for world in ("gloo", "openmpi"):
        yield Combination(CTRL_S, "at the start", 0, world)
