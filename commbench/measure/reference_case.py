"""The reference case, measured once a pass: where it moves, the machine has changed, and not the case under test.

It is a ping-pong of 8 B between the first two ranks of the largest layout, and a copy within the memory of each host
that no library takes part in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.config.settings import Settings, Timing
from commbench.core.case import Benchmark, World
from commbench.core.protocols import Communicator, Control
from commbench.world.heartbeat import Progress

from .case import Turn, measure
from .case_record import measured_times
from .conditions import copy_times
from .plan import Facts, plan
from .preflight import MEETING_S
from .samples import Samples
from .statistics import Series, median_interval
from .time_limits import case_deadline_s

MESSAGE_BYTES, REPETITIONS = 8, 50
COPY_BYTES, COPIES = 256 * 1024, 40
LARGEST_CASE_S = 0.05  # bounds its warm-up
MOVED = 0.05  # relative to the median over passes


class Reading(NamedTuple):
    """The median of one pass with its 95 % interval, in seconds per operation."""

    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, times: Series) -> Reading:
        """From seconds per operation; without an interval (fewer than 6) the median stands for both ends."""
        median = float(np.median(times))
        return cls(median, *(median_interval(times) or (median, median)))


class ReferenceCase:
    """Made by all ranks alike; `passes` fills on rank 0: a reading of each kind, by the number of the pass."""

    def __init__(self, settings: Settings, world: World, facts: Facts) -> None:
        self._settings = replace(
            settings,
            benchmarks=(cast(Benchmark, P2PLatency()),),
            timing=Timing("reference", repetitions=REPETITIONS, warmup_s=0.0, case_s=LARGEST_CASE_S),
            budget=replace(settings.budget, case_s=None),
            layouts=(max(settings.layouts, key=lambda layout: layout.size),),
            dtypes=settings.dtypes[:1],
            sizes=((MESSAGE_BYTES,),),
            sizes_to_memory=False,
            pairs=((0, 1),),
            schedule="serial",
            streams=settings.streams[:1],
            engines=settings.engines[:1],
            timing_modes=settings.timing_modes[:1],
        )
        (job,) = plan(self._settings, world, facts)
        self._job = None if job.skip else job
        self._source, self._target = np.ones(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)
        self.passes: dict[int, dict[str, Reading]] = {}

    @property
    def groups(self) -> set[tuple[int, ...]]:
        """The ranks whose communicator it needs."""
        return set() if self._job is None else {self._job.members}

    def measure(
        self,
        number: int,
        communicators: Mapping[tuple[int, ...], Communicator | None],
        control: Control,
        progress: Progress,
    ) -> None:
        """Measure it at the end of a pass; all ranks of the world call it. Raises WorldBroken."""
        readings: dict[str, Reading] = {}
        job, deadline_s = self._job, MEETING_S if self._job is None else case_deadline_s(self._job, self._settings)
        if job is not None and (communicator := communicators[job.members]) is not None:
            members = control.subset(job.members)
            outcome = measure(
                job, communicator, members, self._settings, {}, lambda _: None, progress, turn=Turn(number)
            )
            if isinstance(outcome, Samples) and not outcome.wrong_elements and control.rank == 0:
                readings["p2p_latency_s"] = Reading.of(measured_times(job, outcome))
        progress.enter("the reference case")
        times = copy_times(self._target, self._source, COPIES)[COPIES // 4 :]
        copies = control.gather(Reading.of(times), deadline_s, "reference case")
        if control.rank == 0:
            self.passes[number] = readings | {"copy_s": max(Reading(*one) for one in copies)}

    def disturbed(self) -> frozenset[int]:
        return disturbed_passes(self.passes)

    def record(self) -> list[dict[str, object]]:
        """For run.json: [median, low, high] in s of each kind, by pass, and whether one of them moved."""
        disturbed = self.disturbed()
        return [
            {"pass": number, **{name: list(one) for name, one in readings.items()}, "moved": number in disturbed}
            for number, readings in self.passes.items()
        ]


def disturbed_passes(passes: Mapping[int, Mapping[str, Reading]]) -> frozenset[int]:
    """The passes with a reading that differs from the median over passes by more than 5 % and by more than half the
    width of its own interval."""
    found = set()
    for name in {name for readings in passes.values() for name in readings}:
        known = {number: readings[name] for number, readings in passes.items() if name in readings}
        usual_s = float(np.median([one.median_s for one in known.values()]))
        for number, one in known.items():
            if abs(one.median_s - usual_s) > max(MOVED * usual_s, (one.high_s - one.low_s) / 2):
                found.add(number)
    return frozenset(found)
