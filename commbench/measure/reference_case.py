"""The reference case, measured in each pass: if its time changes, so has the machine, and not the
case under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.config.settings import Settings, Timing
from commbench.core.case import CaseGroup, World
from commbench.core.protocols import Communicator, Control
from commbench.core.variables import BY_NAME
from commbench.runtime.heartbeat import Progress
from commbench.stats.series import Series, median_interval

from .calibration import copy_times
from .case import CaseVisit
from .plan import plan
from .plan_facts import PlanFacts
from .row_samples import case_rows, times_of
from .samples import Samples
from .time_limits import MEETING_S, case_deadline_s
from .visit_setup import VisitSetup

REFERENCE_BYTES = 8
REFERENCE_REPETITIONS = 50
REFERENCE_COPY_BYTES = 256 * 1024
REFERENCE_COPIES = 40
REFERENCE_S = 0.05  # limits its warm-up
MOVED = 0.05  # relative to the median over passes


class PassReading(NamedTuple):
    """The median of one pass with its 95 % interval, in seconds per operation."""

    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, times: Series) -> PassReading:
        """From seconds per operation; with fewer than 6, which have no interval, both ends are the
        median."""
        median = float(np.median(times))
        return cls(median, *(median_interval(times) or (median, median)))


class ReferenceCase:
    """A ping-pong of 8 B between the first two ranks of the largest layout, and a copy within each
    host's memory.

    All ranks make one; on rank 0 `passes` has the readings of each pass.
    """

    def __init__(self, settings: Settings, world: World, facts: PlanFacts) -> None:
        self._settings = replace(
            settings,
            benchmarks=(P2PLatency(),),
            timing=Timing(
                "reference",
                repetitions=REFERENCE_REPETITIONS,
                warmup_s=0.0,
                case_s=REFERENCE_S,
                visits=1,
            ),
            budget=replace(settings.budget, case_s=None),
            layouts=(max(settings.layouts, key=lambda layout: layout.size),),
            dtypes=settings.dtypes[:1],
            sizes=((REFERENCE_BYTES,),),
            sizes_to_memory=False,
            pairs=((0, 1),),
            schedule="serial",
            axes={
                name: (None,) if BY_NAME[name].feature else values[:1]
                for name, values in settings.axes.items()
            },
        )
        (planned,) = plan(self._settings, world, facts)
        self._planned = None if planned.skip else planned
        self.groups = set() if planned.skip else {planned.group}  # whose communicators it needs
        self._source = np.ones(REFERENCE_COPY_BYTES, np.uint8)
        self._target = np.ones(REFERENCE_COPY_BYTES, np.uint8)
        self.passes: dict[int, dict[str, PassReading]] = {}

    def measure(
        self,
        number: int,
        communicators: Mapping[CaseGroup, Communicator | None],
        control: Control,
        progress: Progress,
    ) -> None:
        """Measure the reference case of a pass; all ranks of the world call it. Raises
        WorldBroken."""
        readings = dict[str, PassReading]()
        planned = self._planned
        deadline_s = (
            MEETING_S if self._planned is None else case_deadline_s(self._planned, self._settings)
        )
        if planned is not None and (communicator := communicators[planned.group]) is not None:
            setup = VisitSetup(
                planned,
                communicator,
                control=control.subset(planned.members),
                settings=self._settings,
                empty_sample_s={},
                sink=lambda _: None,
                progress=progress,
                number=number,
            )
            outcome = CaseVisit(setup).measure()
            if isinstance(outcome, Samples) and not outcome.wrong_elements and control.rank == 0:
                times, _, _ = times_of(case_rows(planned), outcome)
                readings["p2p_latency_s"] = PassReading.of(times[0])
        progress.enter("the reference case")
        times = copy_times(self._target, self._source, REFERENCE_COPIES)[REFERENCE_COPIES // 4 :]
        copies = control.gather(PassReading.of(times), deadline_s, "reference case")
        if control.rank == 0:
            self.passes[number] = readings | {"copy_s": max(PassReading(*copy) for copy in copies)}

    def record(self) -> list[dict[str, object]]:
        """For run.json: the readings of each pass, and whether one of them moved."""
        moved = moved_passes(self.passes)
        return [
            {"pass": number, **readings, "moved": number in moved}
            for number, readings in self.passes.items()
        ]


def moved_passes(passes: Mapping[int, Mapping[str, PassReading]]) -> frozenset[int]:
    """The passes with a reading that differs from the median over all passes by more than 5 % and
    by more than half of its own interval."""
    moved = set()
    for name in {name for readings in passes.values() for name in readings}:
        known = {number: readings[name] for number, readings in passes.items() if name in readings}
        usual_s = float(np.median([reading.median_s for reading in known.values()]))
        for number, reading in known.items():
            if abs(reading.median_s - usual_s) > max(
                MOVED * usual_s, (reading.high_s - reading.low_s) / 2
            ):
                moved.add(number)
    return frozenset(moved)
